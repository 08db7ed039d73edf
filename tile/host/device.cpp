#include "tile/host/device.hpp"

#include <cuda_runtime_api.h>

#include <stdexcept>

#include "tile/host/cuda_check.hpp"

namespace tile {
namespace {

Device find_device() {
  int index = 0;
  cudaDeviceProp properties{};
  cudaError_t error = cudaGetDevice(&index);
  if (error == cudaSuccess) error = cudaGetDeviceProperties(&properties, index);
  if (error != cudaSuccess) {
    throw std::runtime_error(cuda_status(error, "looking for a device").message);
  }
  Device found;
  found.name = properties.name;
  found.capability = properties.major * 10 + properties.minor;
  found.multiprocessors = properties.multiProcessorCount;
  found.shared_bytes_of_block = static_cast<std::int64_t>(properties.sharedMemPerBlockOptin);
  found.shared_bytes_of_multiprocessor =
      static_cast<std::int64_t>(properties.sharedMemPerMultiprocessor);
  found.simulated = device_is_simulated();
  found.driver = driver_version();
  if (int version = 0; !found.simulated && cudaRuntimeGetVersion(&version) == cudaSuccess) {
    found.runtime = std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
  }
  return found;
}

}  // namespace

const Device& device() {
  static const Device found = find_device();
  return found;
}

}  // namespace tile
