// A typed array in device memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include "tile/host/device.hpp"

namespace device_test {

/// Throws if a runtime call failed.
inline void require(cudaError_t error) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  throw std::runtime_error(std::string(cudaGetErrorName(error)) + ": " + tile::device_report());
}

/// Throws if a kernel launched before was refused or failed.
inline void require_kernels_ran() {
  require(cudaGetLastError());
  require(cudaDeviceSynchronize());
}

template <class T>
class DeviceArray {
 public:
  /// All zero.
  explicit DeviceArray(std::size_t count) : count_(count) {
    require(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)));
    require(cudaMemset(data_, 0, count * sizeof(T)));
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    require(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  T* data() const { return data_; }

  /// The values, once all kernels have run. Throws if one failed.
  std::vector<T> download() const {
    require_kernels_ran();
    std::vector<T> values(count_);
    require(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  T* data_ = nullptr;
  std::size_t count_;
};

}  // namespace device_test
