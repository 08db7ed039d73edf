// TMA: copies of whole boxes of a tensor, or of runs of bytes, between global and shared memory,
// started by one thread. Compute capability 9.0 and up.
// PTX ISA, "Data Movement and Conversion Instructions: Bulk copy" and "Tensor copy":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-bulk-copy
//
// A load counts its bytes at an mbarrier, which expects them: all bytes of the box, also those
// outside of the tensor, which become zeros. A thread that has waited there sees them.
//
// A store is in a group, as copies of cp.async are. The thread that has started it commits the
// group and waits: until its shared memory has been read and may be written again, or until it is
// done. TMA sees what threads have stored to shared memory only after fence_async_proxy() and a
// barrier (async_proxy.cuh). What lies outside of the tensor is not written, except for the rest of
// 16 bytes after the last column of a row (seen on an H200).
//
// Shared memory is a multiple of 128 bytes; with a swizzle of 128 bytes a multiple of 1,024, where
// the pattern begins. Coordinates count elements of the tensor, the axis of neighbours first.
#pragma once

#include <cstdint>

#include "tile/host/tensor_map.hpp"
#include "tile/ptx/mbarrier.cuh"
#include "tile/ptx/shared_address.cuh"

namespace tile::ptx {

/// Coordinates of a box's first element; a constructor call for each rank. The first one is a
/// multiple of 16 bytes, and in a store none is negative: otherwise a card ends the kernel with
/// cudaErrorIllegalInstruction. Apart from that any may be negative or beyond the tensor.
template <int kRank>
struct BoxAt {
  static_assert(kRank >= 2 && kRank <= 4, "there are wrappers for tensors of 2 to 4 axes");
  std::int32_t at[kRank];
};
template <class... Coordinates>
BoxAt(Coordinates...) -> BoxAt<sizeof...(Coordinates)>;

}  // namespace tile::ptx

#ifdef CPU_DEVICE

#include "cpu_device/tma.h"

namespace tile::ptx {
using cpu_device::bulk_commit;
using cpu_device::bulk_load;
using cpu_device::bulk_reduce_add;
using cpu_device::bulk_store;
using cpu_device::bulk_wait;
using cpu_device::bulk_wait_read;
using cpu_device::prefetch_tensor_map;
using cpu_device::tma_load;
using cpu_device::tma_load_multicast;
using cpu_device::tma_reduce_add;
using cpu_device::tma_store;
}  // namespace tile::ptx

#else

namespace tile::ptx {

/// Fetches the map into the cache of TMA, so that the first copy need not wait.
///     prefetch.tensormap [map];
__device__ __forceinline__ void prefetch_tensor_map(const TensorMap& map) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
#else
  __trap();
#endif
}

/// Loads the box of the map at these coordinates to `shared`, and counts its bytes at `barrier`,
/// both in the thread's own block.
///     cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
///         [shared], [map, {x, y}], [barrier];
template <int kRank>
__device__ __forceinline__ void tma_load(SharedAddress shared, const TensorMap& map,
                                         BoxAt<kRank> box, Mbarrier* barrier) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  const SharedAddress counter(barrier);
#define TILE_TMA_LOAD(rank, coordinates, ...)                                                      \
  asm volatile("cp.async.bulk.tensor." rank                                                        \
               ".shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, " coordinates \
               "], [%2];" ::"r"(shared.value()),                                                   \
               "l"(&map), "r"(counter.value()), __VA_ARGS__                                        \
               : "memory")
  if constexpr (kRank == 2) {
    TILE_TMA_LOAD("2d", "{%3, %4}", "r"(box.at[0]), "r"(box.at[1]));
  } else if constexpr (kRank == 3) {
    TILE_TMA_LOAD("3d", "{%3, %4, %5}", "r"(box.at[0]), "r"(box.at[1]), "r"(box.at[2]));
  } else {
    TILE_TMA_LOAD("4d", "{%3, %4, %5, %6}", "r"(box.at[0]), "r"(box.at[1]), "r"(box.at[2]),
                  "r"(box.at[3]));
  }
#undef TILE_TMA_LOAD
#else
  __trap();
#endif
}

/// The same into every block of the cluster whose rank has its bit in `ranks`, at the same place in
/// each, and counted at the mbarrier in the same place of each. L2 is read once for all.
///     cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
///         .multicast::cluster [shared], [map, {x, y}], [barrier], ranks;
template <int kRank>
__device__ __forceinline__ void tma_load_multicast(SharedAddress shared, const TensorMap& map,
                                                   BoxAt<kRank> box, Mbarrier* barrier,
                                                   std::uint16_t ranks) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  const SharedAddress counter(barrier);
#define TILE_TMA_LOAD(rank, coordinates, ...)                                                 \
  asm volatile("cp.async.bulk.tensor." rank                                                   \
               ".shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster" \
               " [%0], [%1, " coordinates "], [%2], %3;" ::"r"(shared.value()),               \
               "l"(&map), "r"(counter.value()), "h"(ranks), __VA_ARGS__                       \
               : "memory")
  if constexpr (kRank == 2) {
    TILE_TMA_LOAD("2d", "{%4, %5}", "r"(box.at[0]), "r"(box.at[1]));
  } else if constexpr (kRank == 3) {
    TILE_TMA_LOAD("3d", "{%4, %5, %6}", "r"(box.at[0]), "r"(box.at[1]), "r"(box.at[2]));
  } else {
    TILE_TMA_LOAD("4d", "{%4, %5, %6, %7}", "r"(box.at[0]), "r"(box.at[1]), "r"(box.at[2]),
                  "r"(box.at[3]));
  }
#undef TILE_TMA_LOAD
#else
  __trap();
#endif
}

#define TILE_TMA_STORE(operation, rank, coordinates, ...)                             \
  asm volatile(operation "." rank ".global.shared::cta" TILE_TMA_STORE_KIND           \
                         ".tile.bulk_group [%0, " coordinates "], [%1];" ::"l"(&map), \
               "r"(shared.value()), __VA_ARGS__                                       \
               : "memory")

/// Stores the box at `shared` to these coordinates of the tensor, in the group that this thread
/// commits next.
///     cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [map, {x, y}], [shared];
template <int kRank>
__device__ __forceinline__ void tma_store(const TensorMap& map, BoxAt<kRank> box,
                                          SharedAddress shared) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define TILE_TMA_STORE_KIND ""
  if constexpr (kRank == 2) {
    TILE_TMA_STORE("cp.async.bulk.tensor", "2d", "{%2, %3}", "r"(box.at[0]), "r"(box.at[1]));
  } else if constexpr (kRank == 3) {
    TILE_TMA_STORE("cp.async.bulk.tensor", "3d", "{%2, %3, %4}", "r"(box.at[0]), "r"(box.at[1]),
                   "r"(box.at[2]));
  } else {
    TILE_TMA_STORE("cp.async.bulk.tensor", "4d", "{%2, %3, %4, %5}", "r"(box.at[0]), "r"(box.at[1]),
                   "r"(box.at[2]), "r"(box.at[3]));
  }
#undef TILE_TMA_STORE_KIND
#else
  __trap();
#endif
}

/// The same, added to what is there, each element at once and in any order.
///     cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [map, {x, y}],
///     [shared];
template <int kRank>
__device__ __forceinline__ void tma_reduce_add(const TensorMap& map, BoxAt<kRank> box,
                                               SharedAddress shared) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define TILE_TMA_STORE_KIND ".add"
  if constexpr (kRank == 2) {
    TILE_TMA_STORE("cp.reduce.async.bulk.tensor", "2d", "{%2, %3}", "r"(box.at[0]), "r"(box.at[1]));
  } else if constexpr (kRank == 3) {
    TILE_TMA_STORE("cp.reduce.async.bulk.tensor", "3d", "{%2, %3, %4}", "r"(box.at[0]),
                   "r"(box.at[1]), "r"(box.at[2]));
  } else {
    TILE_TMA_STORE("cp.reduce.async.bulk.tensor", "4d", "{%2, %3, %4, %5}", "r"(box.at[0]),
                   "r"(box.at[1]), "r"(box.at[2]), "r"(box.at[3]));
  }
#undef TILE_TMA_STORE_KIND
#else
  __trap();
#endif
}
#undef TILE_TMA_STORE

/// Loads `bytes`, a multiple of 16, from `global` to `shared`, both multiples of 16 bytes.
///     cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes
///         [shared], [global], bytes, [barrier];
__device__ __forceinline__ void bulk_load(SharedAddress shared, const void* global, unsigned bytes,
                                          Mbarrier* barrier) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared.value()),
      "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(SharedAddress(barrier).value())
      : "memory");
#else
  __trap();
#endif
}

///     cp.async.bulk.global.shared::cta.bulk_group [global], [shared], bytes;
__device__ __forceinline__ void bulk_store(void* global, SharedAddress shared, unsigned bytes) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                   __cvta_generic_to_global(global)),
               "r"(shared.value()), "r"(bytes)
               : "memory");
#else
  __trap();
#endif
}

/// Adds floats to those at `global`, each at once and in any order.
///     cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [global], [shared], bytes;
__device__ __forceinline__ void bulk_reduce_add(float* global, SharedAddress shared,
                                                unsigned bytes) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(
                   __cvta_generic_to_global(global)),
               "r"(shared.value()), "r"(bytes)
               : "memory");
#else
  __trap();
#endif
}

/// Makes a group of this thread's stores and reductions since the last one.
///     cp.async.bulk.commit_group;
__device__ __forceinline__ void bulk_commit() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#else
  __trap();
#endif
}

/// Waits until all but this thread's last kGroups groups have read their shared memory.
///     cp.async.bulk.wait_group.read groups;
template <int kGroups>
__device__ __forceinline__ void bulk_wait_read() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kGroups) : "memory");
#else
  __trap();
#endif
}

/// Waits until all but this thread's last kGroups groups are done: this thread sees what they have
/// written, and threads that see what it does afterwards see them, too.
///     cp.async.bulk.wait_group groups;
template <int kGroups>
__device__ __forceinline__ void bulk_wait() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kGroups) : "memory");
#else
  __trap();
#endif
}

}  // namespace tile::ptx

#endif
