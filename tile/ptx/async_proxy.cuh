// The fence between the two proxies to shared memory. Loads and stores of threads use the generic
// proxy; TMA and wgmma use the async proxy. A barrier alone does not order one after the other (PTX
// ISA, "Proxies"). Compute capability 9.0 and up.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#proxies
#pragma once

#include <cuda_runtime.h>

#ifdef CPU_DEVICE

#include "cpu_device/async_proxy.h"

namespace tile::ptx {
using cpu_device::fence_async_proxy;
}  // namespace tile::ptx

#else

namespace tile::ptx {

/// What this thread stored to shared memory before the fence is seen by later TMA copies and wgmma,
/// also by those of threads that meet this one at a barrier after the fence. Each thread that
/// has stored calls it. What TMA has brought needs none: waiting at its mbarrier is enough.
///     fence.proxy.async.shared::cta;
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-membar
__device__ __forceinline__ void fence_async_proxy() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#else
  __trap();
#endif
}

}  // namespace tile::ptx

#endif
