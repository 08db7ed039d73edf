// cp.async: copies from global to shared memory that the thread does not wait for. They use no
// registers, and run while it computes. sm_80.
// PTX ISA, "Data Movement and Conversion Instructions: Non-bulk copy":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async
//
// A thread commits the copies it has issued as a group, and waits for its groups, oldest first. The
// wait is for this thread's copies only: others see them after a __syncthreads() that follows it.
// Until then no thread may touch the destination. Two copies under way have no order.
#pragma once

#include <cstdint>

#include "tile/ptx/shared_address.cuh"

#ifdef CPU_DEVICE
#include "cpu_device/async.h"
#endif

namespace tile::ptx {

/// Copies kBytes from `global` to `shared`: 4, 8 or 16. Both addresses must be multiples of kBytes.
/// Only copies of 16 bytes can bypass the L1 cache (.cg), and these do.
///     cp.async.ca.shared.global [dst], [src], 4 or 8;
///     cp.async.cg.shared.global.L2::128B [dst], [src], 16;
template <int kBytes>
__device__ __forceinline__ void cp_async(SharedAddress shared, const void* global) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "cp.async copies 4, 8 or 16 bytes");
#ifdef CPU_DEVICE
  cpu_device::copy_async(shared, global, kBytes, kBytes);
#elif !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  const std::size_t from = __cvta_generic_to_global(global);
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared.value()),
                 "l"(from)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared.value()), "l"(from),
                 "n"(kBytes)
                 : "memory");
  }
#else
  __trap();
#endif
}

/// Copies only `source_bytes`, 0 to kBytes, and fills the rest of kBytes with zeros. With 0 nothing
/// is read, and `global` may be any multiple of kBytes.
///     cp.async.cg.shared.global.L2::128B [dst], [src], 16, src_size;
template <int kBytes>
__device__ __forceinline__ void cp_async(SharedAddress shared, const void* global,
                                         int source_bytes) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "cp.async copies 4, 8 or 16 bytes");
#ifdef CPU_DEVICE
  cpu_device::copy_async(shared, global, kBytes, source_bytes);
#elif !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  const std::size_t from = __cvta_generic_to_global(global);
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared.value()),
                 "l"(from), "r"(source_bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared.value()), "l"(from),
                 "n"(kBytes), "r"(source_bytes)
                 : "memory");
  }
#else
  __trap();
#endif
}

/// Makes a group of this thread's copies since the last commit. An empty group counts, too.
///     cp.async.commit_group;
__device__ __forceinline__ void cp_async_commit() {
#ifdef CPU_DEVICE
  cpu_device::commit_copies();
#elif !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  __trap();
#endif
}

/// Waits until all groups of this thread have landed but the latest kPending.
///     cp.async.wait_group N;
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  static_assert(kPending >= 0, "a number of groups");
#ifdef CPU_DEVICE
  cpu_device::wait_for_copies(kPending);
#elif !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#else
  __trap();
#endif
}

/// Waits until all copies of this thread have landed, committed or not.
///     cp.async.wait_all;
__device__ __forceinline__ void cp_async_wait_all() {
#ifdef CPU_DEVICE
  cpu_device::wait_for_all_copies();
#elif !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#else
  __trap();
#endif
}

}  // namespace tile::ptx
