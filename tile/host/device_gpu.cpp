#include <array>
#include <cstdio>

#include "tile/host/cuda_check.hpp"
#include "tile/host/device.hpp"
#include "tile/host/memory_requests.hpp"

namespace tile {

bool device_is_simulated() { return false; }

bool device_reads_host_memory() { return false; }

// The runtime knows only which CUDA the driver can serve. nvidia-smi comes with every driver.
std::string driver_version() {
  FILE* pipe =
      popen("nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null", "r");
  if (!pipe) return "unknown";
  std::array<char, 64> line{};
  const bool read = std::fgets(line.data(), line.size(), pipe) != nullptr;
  pclose(pipe);
  std::string version = line.data();
  while (!version.empty() && version.back() == '\n') version.pop_back();
  return read && !version.empty() ? version : "unknown";
}

// A GPU tells no more than its error code; compute-sanitizer knows more, outside the process.
std::string device_report() { return {}; }
void keep_device_reports() {}
void shuffle_device(std::uint64_t) {}

void name_array(const DeviceArray&) {}
void name_launch(const char*, const char*, int) {}

std::string device_activity() { return {}; }
BulkLoads bulk_loads() { return {}; }

std::vector<std::string> launched_kernels() { return take_reported_launches(); }

bool count_memory_requests() { return false; }
std::vector<MemoryRequests> memory_requests() { return {}; }

}  // namespace tile
