// What a terminal is told: lines of its width, and colours.
#pragma once

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>

namespace tile {

/// Columns of the terminal that `file` is, and 80 for everything else.
inline std::size_t columns_of(int file = STDOUT_FILENO) {
  winsize size{};
  return ioctl(file, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/// Whether `file` is a terminal that shows colours, and its user wants them (no-color.org).
inline bool has_colours(int file = STDOUT_FILENO) {
  const auto is_set = [](const char* name) {
    const char* value = std::getenv(name);
    return value && *value;
  };
  const char* const terminal = std::getenv("TERM");
  return isatty(file) == 1 && !is_set("NO_COLOR") && terminal &&
         std::string_view(terminal) != "dumb";
}

/// The text in a colour by its number in ECMA-48: "1" bold, "32" green, "31" red.
inline std::string coloured(std::string_view colour, std::string_view text) {
  if (!has_colours()) return std::string(text);
  return "\033[" + std::string(colour) + "m" + std::string(text) + "\033[0m";
}

/// Characters of UTF-8, each of which takes one column.
inline std::size_t width(std::string_view text) {
  std::size_t count = 0;
  for (const char c : text) count += (c & 0xC0) != 0x80;
  return count;
}

/// The text with line breaks in the place of blanks, so that a line has at most `columns` columns.
/// The first begins at column `indent` already, and the others are moved there. A word that is
/// longer stands on a line of its own.
inline std::string wrapped(std::string_view text, std::size_t indent,
                           std::size_t columns = columns_of()) {
  std::string lines;
  std::size_t at = indent;
  while (!text.empty()) {
    const std::size_t end = text.find(' ');
    const std::string_view word = text.substr(0, end);
    if (at > indent && at + 1 + width(word) > columns) {
      lines += "\n" + std::string(indent, ' ');
      at = indent;
    } else if (at > indent) {
      lines += " ";
      ++at;
    }
    lines += word;
    at += width(word);
    text = end == std::string_view::npos ? "" : text.substr(end + 1);
  }
  return lines;
}

}  // namespace tile
