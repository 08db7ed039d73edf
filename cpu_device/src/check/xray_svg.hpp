// Draws which lanes of a warp touch which words of memory.
#pragma once

#include <string>
#include <vector>

#include "xray.hpp"

namespace cpu_device::check {

struct XrayPanel {
  std::string place, source, title;
  XrayRequest request;
  bool shared;
};
/// False if the file cannot be written.
bool write_xray_svg(const char* path, const std::vector<XrayPanel>& panels);

}  // namespace cpu_device::check
