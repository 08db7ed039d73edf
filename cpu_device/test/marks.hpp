// For tests that know the whole report of a kernel: orders of threads, and lines of source.
#pragma once

#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu_device/options.h"

namespace device_test {

struct NamedOrder {
  const char* name;
  cpu_device::Order order;
  uint64_t seed;
};
inline constexpr NamedOrder kOrders[] = {{"forward", cpu_device::Order::forward, 0},
                                         {"reverse", cpu_device::Order::reverse, 0},
                                         {"random:7", cpu_device::Order::random, 7}};

/// "cpu_device/test/file.cu:12", where the one line of the file is that holds the text.
inline std::string place(const std::string& file, const std::string& text) {
  std::ifstream source(std::string(DEVICE_TEST_ROOT "/") + file);
  int found = 0, number = 0;
  for (std::string line; std::getline(source, line);) {
    ++number;
    if (line.find(text) == std::string::npos) continue;
    if (found != 0) throw std::logic_error(text + " is not unique");
    found = number;
  }
  if (found == 0) throw std::logic_error(text + " is nowhere");
  return file + ":" + std::to_string(found);
}

/// The line with the comment // [mark].
inline std::string marked(const std::string& file, const std::string& mark) {
  return place(file, "// [" + mark + "]");
}

}  // namespace device_test
