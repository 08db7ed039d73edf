// How many blocks a launch has, and their shared memory.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "tile/host/cuda_check.hpp"
#include "tile/host/device.hpp"

namespace tile {

/// Blocks for `items` at `per_block` each, rounded up. A grid has at most 2^31 - 1 blocks along x
/// (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"). `what` names
/// the arguments that the items come from.
inline Status blocks_for(std::string_view what, std::int64_t items, std::int64_t per_block,
                         unsigned int* blocks) {
  const std::int64_t needed = items / per_block + (items % per_block != 0);
  if (needed > 0x7fffffff) return unsupported(what, "more than 2^31 - 1 blocks would be needed");
  *blocks = static_cast<unsigned int>(needed);
  return {};
}

/// How many multiprocessors the card has.
inline Status count_multiprocessors(int* count) {
  int card = 0;
  TILE_RETURN_IF_CUDA_ERROR(cudaGetDevice(&card));
  TILE_RETURN_IF_CUDA_ERROR(cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, card));
  return {};
}

/// As many blocks of `threads` threads as the card holds at one time, but no more than `items` need
/// at an item a thread, and at least 1. For kernels whose threads walk on by the size of the grid.
inline Status blocks_that_fit(std::int64_t items, int threads, int* blocks) {
  int card = 0, multiprocessors = 0, threads_each = 0;
  if (Status s = count_multiprocessors(&multiprocessors); !s.ok()) return s;
  TILE_RETURN_IF_CUDA_ERROR(cudaGetDevice(&card));
  TILE_RETURN_IF_CUDA_ERROR(
      cudaDeviceGetAttribute(&threads_each, cudaDevAttrMaxThreadsPerMultiProcessor, card));
  const std::int64_t fit = std::int64_t{multiprocessors} * (threads_each / threads);
  const std::int64_t needed = (items + threads - 1) / threads;
  *blocks = static_cast<int>(std::clamp<std::int64_t>(needed, 1, fit));
  return {};
}

/// Lets a kernel have this much dynamic shared memory. More than 48 KiB, its static arrays counted
/// in, a kernel must ask for (CUDA C++ Programming Guide, "Shared Memory" of compute capability 7.x
/// and up). It then gets all that a block may have: the limit is the kernel's, not the launch's,
/// and another thread may be about to launch it with more.
template <class Kernel>
Status allow_shared_bytes(Kernel* kernel, std::size_t bytes) {
  if (bytes <= 32 * 1024) return {};
  const auto* function = reinterpret_cast<const void*>(kernel);
  cudaFuncAttributes attributes{};
  TILE_RETURN_IF_CUDA_ERROR(cudaFuncGetAttributes(&attributes, function));
  const auto wanted = static_cast<int>(bytes);
  const int most = device().shared_bytes_of_block - static_cast<int>(attributes.sharedSizeBytes);
  const int allowed = attributes.maxDynamicSharedSizeBytes;
  // A kernel's static arrays take a part of the 48 KiB that it has without asking. Once it has
  // asked, they do not count.
  if (allowed > 48 * 1024 && allowed >= wanted) return {};
  TILE_RETURN_IF_CUDA_ERROR(cudaFuncSetAttribute(
      function, cudaFuncAttributeMaxDynamicSharedMemorySize, std::max(wanted, most)));
  return {};
}

}  // namespace tile
