// A little global memory that lives as long as a kernel.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <mutex>

#include "tile/host/cuda_check.hpp"

namespace tile {

/// The card's pool for such memory, made once. It gives nothing back to the card: by default a pool
/// would at every synchronisation, and every launch would wait for it to be mapped again. (CUDA C++
/// Programming Guide, "Stream Ordered Memory Allocator".)
inline Status pool_of_card(cudaMemPool_t* pool) {
  static std::mutex mutex;
  static std::map<int, cudaMemPool_t> pools;
  int card = 0;
  TILE_RETURN_IF_CUDA_ERROR(cudaGetDevice(&card));
  const std::lock_guard lock(mutex);
  if (const auto found = pools.find(card); found != pools.end()) {
    *pool = found->second;
    return {};
  }
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = card;
  TILE_RETURN_IF_CUDA_ERROR(cudaMemPoolCreate(pool, &properties));
  std::uint64_t keep_all = UINT64_MAX;
  TILE_RETURN_IF_CUDA_ERROR(
      cudaMemPoolSetAttribute(*pool, cudaMemPoolAttrReleaseThreshold, &keep_all));
  pools[card] = *pool;
  return {};
}

/// Zeros in global memory, from here on in the order of the stream and until the end of this
/// object. Each stream's kernels have their own.
class StreamMemory {
 public:
  StreamMemory() = default;
  ~StreamMemory() {
    if (data_) static_cast<void>(cudaFreeAsync(data_, stream_));
  }
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;

  Status allocate(std::size_t bytes, void* stream) {
    cudaMemPool_t pool = nullptr;
    TILE_TRY(pool_of_card(&pool));
    stream_ = static_cast<cudaStream_t>(stream);
    TILE_RETURN_IF_CUDA_ERROR(cudaMallocFromPoolAsync(&data_, bytes, pool, stream_));
    TILE_RETURN_IF_CUDA_ERROR(cudaMemsetAsync(data_, 0, bytes, stream_));
    return {};
  }
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

}  // namespace tile
