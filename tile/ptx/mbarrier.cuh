// Mbarriers: barriers in shared memory that count arrivals and bytes. Also asynchronous stores to
// another block of the cluster (st.async), which signal completion on an mbarrier. Compute
// capability 9.0 and up.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier
//
// An mbarrier goes from phase to phase. A phase is complete when as many threads have arrived as
// mbarrier_init said, and as many bytes have come as they expected. Then the next one begins. Bytes
// may come before they are expected: as long as an arrival is missing, the phase goes on.
//
// The parity of a phase is 0 for the first one, 1 for the second, 0 for the third. A thread waits
// with the parity of the phase that is to be complete, and must not come two phases late.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef CPU_DEVICE

#include "cpu_device/mbarrier.h"

namespace tile::ptx {
using cpu_device::Mbarrier;
using cpu_device::mbarrier_arrive;
using cpu_device::mbarrier_arrive_expect;
using cpu_device::mbarrier_init;
using cpu_device::mbarrier_wait;
using cpu_device::mbarrier_wait_cluster;
using cpu_device::store_async;
}  // namespace tile::ptx

#else

#include "tile/ptx/shared_address.cuh"

namespace tile::ptx {

/// For __shared__ declarations. Its content belongs to the hardware.
struct Mbarrier {
  std::uint64_t state;
};

/// Initialises the mbarrier, by one thread of its block, before any thread uses it: it is visible
/// to the block after a __syncthreads(), to the cluster after a cluster_sync(), or after
/// cluster_arrive_relaxed() and cluster_wait(). Each phase takes `arrivals`, 1 to 2^20 - 1. The
/// fence makes it visible also to instructions that do not reach it by ordinary loads and stores,
/// such as st.async of other blocks.
///     mbarrier.init.shared::cta.b64 [a], arrivals;
///     fence.mbarrier_init.release.cluster;
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-init
__device__ __forceinline__ void mbarrier_init(Mbarrier* barrier, unsigned arrivals) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], %1;\n"
      "fence.mbarrier_init.release.cluster;" ::"r"(SharedAddress(barrier).value()),
      "r"(arrivals)
      : "memory");
#else
  __trap();
#endif
}

/// Arrives once. A thread that has waited for the phase may overwrite what this thread read before.
///     mbarrier.arrive.shared::cta.b64 _, [a];
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-arrive
__device__ __forceinline__ void mbarrier_arrive(Mbarrier* barrier) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier).value())
               : "memory");
#else
  __trap();
#endif
}

/// The same at the mbarrier in this place of the block of this rank, which may be the thread's own.
/// Without qualifiers it is a .release.cta: threads of another block know that this one has read,
/// but do not see what it has written. .release.cluster would be a fence of the whole GPU, and
/// takes a quarter of a product's speed.
///     mapa.shared::cluster.u32 r, a, rank;
///     mbarrier.arrive.shared::cluster.b64 _, [r];
__device__ __forceinline__ void mbarrier_arrive(Mbarrier* barrier, unsigned rank) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}" ::"r"(SharedAddress(barrier).value()),
      "r"(rank)
      : "memory");
#else
  __trap();
#endif
}

/// Arrives once, and says that `bytes` more are to come in this phase: at most 2^20 - 1 at a time.
/// The barrier is in the thread's own block.
///     mbarrier.arrive.expect_tx.shared::cta.b64 _, [a], bytes;
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-arrive
__device__ __forceinline__ void mbarrier_arrive_expect(Mbarrier* barrier, unsigned bytes) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                   SharedAddress(barrier).value()),
               "r"(bytes)
               : "memory");
#else
  __trap();
#endif
}

/// Waits until the phase of this parity, 0 or 1, is complete. Then the thread sees what TMA stored
/// in it, and what threads of its block did before they arrived. try_wait itself gives up after a
/// time that the hardware chooses, so it stands in a loop. The barrier is in the thread's own
/// block.
///     mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [a], parity;
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-test-wait-try-wait
__device__ __forceinline__ void mbarrier_wait(Mbarrier* barrier, unsigned parity) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred complete;\n"
      "again_%=:\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 complete, [%0], %1;\n"
      "@!complete bra again_%=;\n"
      "}" ::"r"(SharedAddress(barrier).value()),
      "r"(parity)
      : "memory");
#else
  __trap();
#endif
}

/// The same where other blocks of the cluster arrive, or store by st.async or a multicast. The
/// thread then sees what these stores wrote, and what threads of its own block did in shared memory
/// before they arrived. It sees nothing of global memory, not even what its own block stored there.
/// So the multiprocessor keeps its L1 cache. An .acquire.cluster in place of .relaxed.cluster and
/// the fence makes it discard that at each wait (CCTL.IVALL in SASS), and a kernel reads again from
/// L2 what it uses in each iteration. Both instructions are of PTX ISA 8.6; the oldest toolkit that
/// we support, CUDA 12.8, has 8.7.
///     mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 p, [a], parity;
///     fence.acquire.sync_restrict::shared::cluster.cluster;
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-test-wait-try-wait
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-membar
__device__ __forceinline__ void mbarrier_wait_cluster(Mbarrier* barrier, unsigned parity) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred complete;\n"
      "again_%=:\n"
      "mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 complete, [%0], %1;\n"
      "@!complete bra again_%=;\n"
      "fence.acquire.sync_restrict::shared::cluster.cluster;\n"
      "}" ::"r"(SharedAddress(barrier).value()),
      "r"(parity)
      : "memory");
#else
  __trap();
#endif
}

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
