#include "harness/device.hpp"

#include <cuda_runtime_api.h>

#include <stdexcept>

#include "harness/cuda_check.hpp"

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
  auto version = [](cudaError_t (*get)(int*)) {
    int number = 0;  // 13000 for 13.0
    if (get(&number) != cudaSuccess) return std::string("unknown");
    return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
  };
  Device found;
  found.name = properties.name;
  found.capability = properties.major * 10 + properties.minor;
  found.multiprocessors = properties.multiProcessorCount;
  found.simulated = device_is_simulated();
  if (!found.simulated) {
    found.driver = version([](int* v) { return cudaDriverGetVersion(v); });
    found.runtime = version([](int* v) { return cudaRuntimeGetVersion(v); });
  }
  return found;
}

}  // namespace

const Device& device() {
  static const Device found = find_device();
  return found;
}

}  // namespace tile
