// A thread's chunks of a row in shared memory.
#pragma once

#include "tile/ptx/cluster.cuh"
#include "tile/ptx/cp_async.cuh"
#include "tile/rows.cuh"

namespace tile {

/// The place of this thread in its block, and among those of its cluster.
template <int kWidth>
__device__ __forceinline__ ChunkColumns<kWidth> columns_in_block() {
  return {static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x)};
}
template <int kWidth>
__device__ __forceinline__ ChunkColumns<kWidth> columns_in_cluster() {
  const auto threads = static_cast<int>(blockDim.x);
  return {static_cast<int>(ptx::cluster_rank()) * threads + static_cast<int>(threadIdx.x),
          static_cast<int>(ptx::cluster_size()) * threads};
}

/// A thread's part of a row in shared memory: for rows too long for registers, and for kernels that
/// want more blocks at a time than registers allow. Each thread copies for itself and reads what it
/// has copied itself, so that it waits for its own copies and at no barrier.
template <class T, int kChunkCount>
class SharedSlice {
 public:
  static constexpr int kChunkWidth = 16 / sizeof(T), kChunks = kChunkCount;
  static constexpr int kUnroll = 4;
  using Chunk = tile::Chunk<T, kChunkWidth>;

  /// Shared memory that a block of `threads` threads needs.
  __host__ __device__ static constexpr std::size_t bytes(int threads) {
    return static_cast<std::size_t>(threads) * kChunks * 16;
  }

  SharedSlice() = default;

  /// Starts to copy the chunks that begin in the first `cols` columns; the others become full of
  /// `fill`. `row` is aligned to a chunk. `row_smem` holds [kChunks][in_smem.threads] chunks:
  /// neighbouring threads have neighbouring chunks, so that no two lanes of a phase meet in a bank.
  /// Nothing may be read before ptx::cp_async_wait_all().
  __device__ __forceinline__ SharedSlice(const T* row, int cols, ChunkColumns<kChunkWidth> place,
                                         float fill, ptx::SharedAddress row_smem,
                                         ChunkColumns<kChunkWidth> in_smem)
      : place_(place), mine_(row_smem + in_smem.thread * 16), apart_(in_smem.threads * 16) {
    row = ptx::address_once(row);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      if (fill == 0) {
        ptx::cp_async<16>(address(i), row + column(i), column(i) < cols ? 16 : 0);
      } else {
        copy(i, row, cols);
      }
    }
    if (fill == 0 || column(kChunks - 1) < cols) return;
    for (int i = 0; i < kChunks; ++i) {
      if (column(i) >= cols) ptx::store_shared(address(i), Chunk::filled(fill).words);
    }
  }
  /// The same where those who share the row also share the memory.
  __device__ __forceinline__ SharedSlice(const T* row, int cols, ChunkColumns<kChunkWidth> place,
                                         float fill, ptx::SharedAddress row_smem)
      : SharedSlice(row, cols, place, fill, row_smem, place) {}

  __device__ ChunkColumns<kChunkWidth> place() const { return place_; }
  __device__ int column(int i) const { return place_.column(i); }
  __device__ __forceinline__ Chunk chunk(int i) const { return {ptx::load_shared(address(i))}; }

  /// For another row in the place of the first, once chunk i is no longer needed: starts to copy it
  /// if it begins in the first `cols` columns.
  __device__ __forceinline__ void copy(int i, const T* row, int cols) const {
    if (column(i) < cols) ptx::cp_async<16>(address(i), row + column(i));
  }

 private:
  __device__ __forceinline__ ptx::SharedAddress address(int i) const { return mine_ + i * apart_; }

  ChunkColumns<kChunkWidth> place_;
  ptx::SharedAddress mine_;  // of [kChunks] chunks
  int apart_;                // bytes from one to the next
};

}  // namespace tile
