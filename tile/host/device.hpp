// The device that kernels run on: a GPU, or the CPU device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tile {

struct Device {
  std::string name;
  int capability;  ///< 80 for 8.0
  int multiprocessors;
  std::int64_t shared_bytes_of_block;           ///< the most that a kernel can ask for
  std::int64_t shared_bytes_of_multiprocessor;  ///< for all of its blocks together
  bool simulated;                               ///< the CPU device: times say nothing about a GPU
  std::string driver;                           ///< "580.159.04", or empty on the CPU device
  std::string runtime;                          ///< CUDA runtime, "13.0", or empty as above
};

/// The device in use. Throws std::runtime_error if there is none.
const Device& device();

// Each build has its own implementation (device_cpu.cpp, device_gpu.cpp).

bool device_is_simulated();

/// Whether a kernel may read any memory of this process: on the CPU device, unless it is the check
/// build, which finds what a test could plant there by itself.
bool device_reads_host_memory();

/// The version of the driver; "unknown" if it cannot be found, empty on the CPU device.
std::string driver_version();

/// What the device knows about its last failure beyond the error code, for people: empty on a GPU;
/// on the CPU device the report of a divergent barrier, a bad address and the like.
/// Returns each report once.
std::string device_report();

/// From now on reports wait for device_report() and are not printed as they come: for programs that
/// show the message of every Status.
void keep_device_reports();

/// From now on the CPU device runs blocks and threads in a random order of this seed; with 0 in its
/// default order. A GPU has an order of its own each time.
void shuffle_device(std::uint64_t seed);

/// An array in device memory: rows x cols elements, ld of them from one row to the next.
struct DeviceArray {
  const char* name;
  const void* data;
  std::size_t element_bytes;
  std::int64_t rows, cols, ld;
  bool written;  // if not, its contents are a poison that no thread may read
};

/// Says what part of an allocation kernels may touch, and its name. The CPU device's check build
/// enforces it; everywhere else it has no effect.
void name_array(const DeviceArray& array);

/// What reports call the kernel that this thread launches next by cudaLaunchKernelEx, which is
/// given a function without a name, and where that stands. Both texts are literals.
void name_launch(const char* kernel, const char* file, int line);

/// What was simulated since the last call: "391 blocks, 100,096 threads". Empty on a GPU.
std::string device_activity();

/// What TMA has loaded, in bytes: from global memory, where a multicast to several blocks counts
/// once; and the most that were on their way to one block at one time.
struct BulkLoads {
  std::int64_t bytes, most_on_the_way;
};
/// Since the last call, of this or of device_activity(). Zeros on a GPU.
BulkLoads bulk_loads();

/// The kernels that were launched since the last call, at most the first 16, by their names without
/// template arguments: on the CPU device as the launch itself names them, on a GPU as passed to
/// this thread's launch_status().
std::vector<std::string> launched_kernels();

}  // namespace tile
