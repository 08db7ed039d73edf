// A reduction over the threads of all blocks of a cluster.
#pragma once

#include "tile/ptx/cluster.cuh"
#include "tile/reduce.cuh"

namespace tile {

inline constexpr int kMostWarpsOfBlock = 32;
/// One value for each warp of a cluster.
inline constexpr int kMostWarpsOfCluster = kMostBlocksOfCluster * kMostWarpsOfBlock;

/// Every 32nd of `count` values, from `first` on, merged in this order.
template <class T, class Merge>
__device__ __forceinline__ T merge_some(const T* values, int first, int count, Merge merge) {
  T value = merge.identity();
  for (int i = first; i < count; i += kWarp) value = merge(value, values[i]);
  return value;
}

/// The reduction over all threads of a cluster, in every thread and to the same bits. All blocks
/// have as many whole warps, and have begun: the kernel has passed ptx::cluster_sync(). `partial`
/// is of shared memory, a value for each warp of the cluster, the same array in every block. Who
/// uses it again must have passed this function with another array in between: a slow warp may
/// still be reading.
///
/// Every warp writes its result into every block, so that one barrier serves for the block and for
/// the cluster, and after it each block reads only what is its own: none needs to outlive another.
// snippet-begin cluster
template <class T, class Merge>
__device__ __forceinline__ T reduce_cluster(T value, Merge merge,
                                            T* partial) {  // [warps of cluster]
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int blocks = static_cast<int>(ptx::cluster_size());
  value = reduce_lanes(value, merge);
  T* mine = partial + static_cast<int>(ptx::cluster_rank()) * warps + warp;
  if (lane < blocks) *ptx::in_block_of_cluster(mine, static_cast<unsigned>(lane)) = value;
  ptx::cluster_sync();  // all warps of all blocks have written
  // A warp has 32 lanes for up to 512 values. Each lane takes every 32nd, then they merge what
  // they have. The order is the same in all warps, and so are the bits.
  return reduce_lanes(merge_some(partial, lane, blocks * warps, merge), merge);
}
// snippet-end cluster

}  // namespace tile
