// What a terminal is told: lines of its width, and colours.
#pragma once

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
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

/// How many columns a text takes: escapes none, nor what follows the first byte of a character.
inline std::size_t width(std::string_view text) {
  std::size_t count = 0;
  bool is_escape = false;
  for (const char c : text) {
    if (c == '\033') is_escape = true;
    const bool follows = (static_cast<unsigned char>(c) & 0xC0u) == 0x80u;
    if (!is_escape && !follows) ++count;
    if (c == 'm') is_escape = false;
  }
  return count;
}

/// Breaks a line between words where it would go beyond `columns`; the rest is indented alike.
inline std::string wrapped(const std::string& line, std::size_t columns) {
  const std::size_t indent = std::min(line.find_first_not_of(' '), line.size());
  std::string text;
  std::size_t column = 0;
  for (std::size_t at = 0, end = 0; at < line.size(); at = end) {
    const std::size_t word = std::min(line.find_first_not_of(' ', at), line.size());
    end = std::min(line.find(' ', word), line.size());
    const std::string_view letters = std::string_view(line).substr(word, end - word);
    if (column > indent && column + (word - at) + width(letters) > columns) {
      text.append("\n").append(indent, ' ');
      column = indent;
    } else {
      text.append(word - at, ' ');
      column += word - at;
    }
    text += letters;
    column += width(letters);
  }
  return text;
}

}  // namespace tile
