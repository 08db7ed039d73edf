#pragma once

#include <charconv>
#include <cstdint>
#include <string>

namespace tile {

/// The shortest decimal text that reads back as exactly `value`, so that two numbers that differ by
/// one bit never look the same in a message.
inline std::string number(double value) {
  char text[32];  // the longest, -2.2250738585072014e-308, has 24 characters
  return std::string(text, std::to_chars(text, text + sizeof text, value).ptr);
}

/// Four significant digits, for a reader who compares sizes and not bits.
inline std::string brief(double value) {
  char text[32];
  return std::string(
      text, std::to_chars(text, text + sizeof text, value, std::chars_format::general, 4).ptr);
}

/// "1,048,576".
inline std::string grouped(std::int64_t value) {
  std::string digits = std::to_string(value);
  const std::size_t first = digits[0] == '-' ? 1 : 0;
  for (std::size_t at = digits.size(); at > first + 3;) digits.insert(at -= 3, 1, ',');
  return digits;
}

/// "1 byte", "2 bytes", "1,024 bytes".
inline std::string counted(std::int64_t count, const char* noun) {
  return grouped(count).append(" ").append(noun).append(count == 1 ? "" : "s");
}

/// "a, b, c": what `name` gives for each item.
template <class Range, class Name>
std::string joined(const Range& items, Name name) {
  std::string text;
  for (const auto& item : items) text.append(text.empty() ? "" : ", ").append(name(item));
  return text;
}

}  // namespace tile
