// Where in the source a device function was called: reports name it.
#pragma once

namespace cpu_device {

struct Site {
  const char* file;
  int line;

  // As a default argument this is the place of the call, like std::source_location::current(),
  // which clang 14 does not have.
  static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

}  // namespace cpu_device
