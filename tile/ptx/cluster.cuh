// Clusters: up to 16 blocks that run at the same time, on neighbouring multiprocessors. Their
// threads meet at a barrier of their own, and each can read and write the shared memory of all.
// Compute capability 9.0 and up; tile/host/launch.hpp launches them.
// https://docs.nvidia.com/cuda/cuda-c-programming-guide/#thread-block-clusters
//
// A kernel that touches another block's shared memory needs cluster_sync() twice: before the first
// such access, or that block may not have begun; and after the last one, or that block may have
// ended, and its shared memory with it. A kernel launched without a cluster is a cluster of one.
#pragma once

#include <cuda_runtime.h>

namespace tile {
/// With cudaFuncAttributeNonPortableClusterSizeAllowed; 8 without.
inline constexpr int kMaxBlocksOfCluster = 16;

}  // namespace tile

#ifdef CPU_DEVICE

#include "cpu_device/cluster.h"

namespace tile::ptx {
using cpu_device::cluster_arrive;
using cpu_device::cluster_arrive_relaxed;
using cpu_device::cluster_arrive_shared;
using cpu_device::cluster_rank;
using cpu_device::cluster_size;
using cpu_device::cluster_sync;
using cpu_device::cluster_wait;
using cpu_device::in_block_of_cluster;
}  // namespace tile::ptx

#else

namespace tile::ptx {

/// The number of this block in its cluster, 0 to cluster_size() - 1.
///     mov.u32 d, %cluster_ctarank;
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#special-registers-cluster-ctarank
__device__ __forceinline__ unsigned cluster_rank() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#else
  __trap();
  return 0;
#endif
}

/// How many blocks the cluster has.
///     mov.u32 d, %cluster_nctarank;
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#special-registers-cluster-nctarank
__device__ __forceinline__ unsigned cluster_size() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  unsigned size;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
#else
  __trap();
  return 1;
#endif
}

/// The address in the block of this rank that corresponds to `shared` in this one: the same
/// declaration, the same index. Loads, stores and atomics take the pointer like any other. Without
/// a state space mapa takes and gives generic addresses, as pointers of C++ are (with
/// .shared::cluster both would be addresses within shared memory); and a load from a pointer that
/// an asm gave is a generic one.
///     mapa.u64 d, a, rank;
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-mapa
template <class T>
__device__ __forceinline__ T* in_block_of_cluster(T* shared, unsigned rank) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  T* there;
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(shared), "r"(rank));
  return there;
#else
  __trap();
  return shared;
#endif
}

/// The barrier in two halves: a thread that has arrived may do other work until it waits. What it
/// did before it arrived is known to all who have waited; what it does between the two is not. Each
/// thread arrives once and waits once in turn, and all lanes of a warp at the same place
/// (.aligned). Threads that have returned are not waited for.
///     barrier.cluster.arrive.release.aligned;
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-barrier-cluster
__device__ __forceinline__ void cluster_arrive() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#else
  __trap();
#endif
}

/// The same arrival, but what the thread has written stays unknown, in its own block as well. The
/// mbarriers that it has initialised are known to all who have waited: mbarrier_init() has a fence
/// of its own for them. So it is for the barrier after that initialisation, where cluster_arrive()
/// would wait until all that the thread has written is visible to the whole GPU.
///     barrier.cluster.arrive.relaxed.aligned;
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-barrier-cluster
__device__ __forceinline__ void cluster_arrive_relaxed() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#else
  __trap();
#endif
}

/// The same arrival, after which the others know what the thread has done in the shared memory of
/// its own block. So it is for a barrier after which blocks read what each has written into its own
/// shared memory. Stores into another block's, as by in_block_of_cluster(), and stores to global
/// memory stay unknown: the thread does not wait until they are there, as cluster_arrive() does
/// (MEMBAR.ALL.GPU in SASS; here it is MEMBAR.ALL.CTA). The fence is of PTX ISA 8.6; the oldest
/// toolkit that we support, CUDA 12.8, has 8.7.
///     fence.release.sync_restrict::shared::cta.cluster;
///     barrier.cluster.arrive.relaxed.aligned;
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-barrier-cluster
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-membar
__device__ __forceinline__ void cluster_arrive_shared() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile(
      "fence.release.sync_restrict::shared::cta.cluster;\n"
      "barrier.cluster.arrive.relaxed.aligned;" ::
          : "memory");
#else
  __trap();
#endif
}

///     barrier.cluster.wait.acquire.aligned;
__device__ __forceinline__ void cluster_wait() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __trap();
#endif
}

/// Waits for all threads of the cluster, as __syncthreads() does for those of the block.
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

}  // namespace tile::ptx

#endif
