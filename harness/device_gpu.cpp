#include "harness/device.hpp"

namespace tile {

bool device_is_simulated() { return false; }

// A GPU tells no more than its error code; compute-sanitizer knows more, outside the process.
std::string device_report() { return {}; }

std::string device_activity() { return {}; }

}  // namespace tile
