// Mbarriers: barriers in shared memory that count arrivals and bytes. Compute capability 9.0 and
// up.
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

#ifdef CPU_DEVICE

#include "cpu_device/mbarrier.h"

namespace tile::ptx {
using cpu_device::Mbarrier;
using MbarrierAddress = Mbarrier*;
using cpu_device::mbarrier_arrive;
using cpu_device::mbarrier_arrive_expect;
using cpu_device::mbarrier_init;
using cpu_device::mbarrier_wait;
using cpu_device::mbarrier_wait_cluster;
}  // namespace tile::ptx

#else

#include "tile/ptx/shared_address.cuh"

namespace tile::ptx {

/// For __shared__ declarations. Its content belongs to the hardware.
struct Mbarrier {
  std::uint64_t state;
};

/// Where an mbarrier is, or the first of several. A loop that waits keeps it in a register. In the
/// address of a shared variable is the block's rank in its cluster, which ptxas otherwise reads
/// again (S2UR) before each wait: in a loop of wgmma that takes 1 % of the time.
class MbarrierAddress {
 public:
  __device__ __forceinline__ MbarrierAddress(Mbarrier* barrier) : address_(barrier) {}
  __device__ __forceinline__ std::uint32_t value() const { return address_.value(); }
  /// The n-th one after it.
  friend __device__ __forceinline__ MbarrierAddress operator+(MbarrierAddress first, int n) {
    first.address_ = first.address_ + n * static_cast<int>(sizeof(Mbarrier));
    return first;
  }

 private:
  SharedAddress address_;
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
__device__ __forceinline__ void mbarrier_arrive(MbarrierAddress barrier) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier.value()) : "memory");
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
__device__ __forceinline__ void mbarrier_arrive_expect(MbarrierAddress barrier, unsigned bytes) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier.value()),
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
__device__ __forceinline__ void mbarrier_wait(MbarrierAddress barrier, unsigned parity) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred complete;\n"
      "again_%=:\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 complete, [%0], %1;\n"
      "@!complete bra again_%=;\n"
      "}" ::"r"(barrier.value()),
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
__device__ __forceinline__ void mbarrier_wait_cluster(MbarrierAddress barrier, unsigned parity) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred complete;\n"
      "again_%=:\n"
      "mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 complete, [%0], %1;\n"
      "@!complete bra again_%=;\n"
      "fence.acquire.sync_restrict::shared::cluster.cluster;\n"
      "}" ::"r"(barrier.value()),
      "r"(parity)
      : "memory");
#else
  __trap();
#endif
}

}  // namespace tile::ptx

#endif
