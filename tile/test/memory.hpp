// Words in device memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "tile/host/cuda_check.hpp"
#include "tile/host/device.hpp"

namespace ptx_test {

inline void require(const tile::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message);
}

template <class T>
class DeviceVector {
 public:
  /// `name` is a literal: what the check build calls the array.
  DeviceVector(const char* name, const std::vector<T>& values) : count_(values.size()) {
    const std::size_t bytes = count_ * sizeof(T);
    require(tile::cuda_status(cudaMalloc(reinterpret_cast<void**>(&data_), bytes), "cudaMalloc"));
    require(tile::cuda_status(cudaMemcpy(data_, values.data(), bytes, cudaMemcpyHostToDevice),
                              "cudaMemcpy"));
    const auto count = static_cast<std::int64_t>(count_);
    tile::name_array({name, data_, sizeof(T), 1, count, count, true});
  }
  DeviceVector(const DeviceVector&) = delete;
  DeviceVector& operator=(const DeviceVector&) = delete;
  ~DeviceVector() { cudaFree(data_); }

  T* data() const { return data_; }

  /// The values, once all kernels have run. Throws if one failed.
  std::vector<T> download() const {
    require(tile::synchronize_status(nullptr));
    std::vector<T> values(count_);
    require(tile::cuda_status(
        cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost),
        "cudaMemcpy"));
    return values;
  }

 private:
  T* data_ = nullptr;
  std::size_t count_;
};
using DeviceWords = DeviceVector<std::uint32_t>;

}  // namespace ptx_test
