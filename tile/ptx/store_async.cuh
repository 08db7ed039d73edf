// Asynchronous stores to another block of the cluster (st.async), which signal completion on an
// mbarrier. Compute capability 9.0 and up.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-st-async
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tile/ptx/mbarrier.cuh"

#ifdef CPU_DEVICE

namespace tile::ptx {
using cpu_device::store_async;
}  // namespace tile::ptx

#else

namespace tile::ptx {

/// Writes `value` to where `shared` lies in the block of this rank, and then counts its bytes at
/// `barrier` in that block. The thread waits for neither. T has 4, 8 or 16 bytes, and `shared` is a
/// multiple of as many. A thread that waits at the mbarrier sees the value, and nothing else that
/// this thread has done. The kernel is launched in clusters: an H200 ends it with
/// cudaErrorIllegalInstruction if it is not.
///     mapa.shared::cluster.u32 d, a, rank;
///     st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 / .b64 / .v4.b32 [d], value, [b];
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-st-async
template <class T>
__device__ __forceinline__ void store_async(T* shared, std::type_identity_t<T> value,
                                            Mbarrier* barrier, unsigned rank) {
  static_assert(std::is_trivially_copyable_v<T>);
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16,
                "st.async writes 4, 8 or 16 bytes");
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  std::uint32_t to, counter;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(to)
      : "r"(SharedAddress(shared).value()), "r"(rank));
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(counter)
      : "r"(SharedAddress(barrier).value()), "r"(rank));
  if constexpr (sizeof(T) == 4) {
    std::uint32_t word;
    std::memcpy(&word, &value, sizeof word);
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
        "r"(word), "r"(counter)
        : "memory");
  } else if constexpr (sizeof(T) == 8) {
    std::uint64_t word;
    std::memcpy(&word, &value, sizeof word);
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(to),
        "l"(word), "r"(counter)
        : "memory");
  } else {
    std::uint32_t words[4];
    std::memcpy(words, &value, sizeof words);
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
        "[%5];" ::"r"(to),
        "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]), "r"(counter)
        : "memory");
  }
#else
  __trap();
#endif
}

}  // namespace tile::ptx

#endif
