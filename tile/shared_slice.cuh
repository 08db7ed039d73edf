// Rows in the shared memory of a block or of a cluster of blocks: a thread's slice of a row, and
// a reduction over all threads of a cluster.
#pragma once

#include "tile/ptx/cluster.cuh"
#include "tile/ptx/cp_async.cuh"
#include "tile/reduce.cuh"
#include "tile/rows.cuh"

namespace tile {

/// A thread's slice of a row in shared memory: for rows too long for registers, and for kernels
/// that want more blocks at a time than registers allow. A thread reads only what it has copied
/// itself: it waits for its own copies and needs no barrier.
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
  /// The slice of a row that the threads of one block have copied to `row_smem`, or will.
  __device__ __forceinline__ SharedSlice(ChunkColumns<kChunkWidth> columns,
                                         ptx::SharedAddress row_smem)
      : columns_(columns), first_(row_smem + columns.thread * 16), apart_(columns.threads * 16) {}
  /// Starts to copy the chunks that begin in the first `cols` columns; the others are filled with
  /// `fill`. `row` is aligned to a chunk. `row_smem` holds [kChunks][in_smem.threads] chunks:
  /// neighbouring threads have neighbouring chunks, so that no two lanes of a phase use the same
  /// bank. Nothing may be read before ptx::cp_async_wait_all().
  __device__ __forceinline__ SharedSlice(const T* row, int cols, ChunkColumns<kChunkWidth> columns,
                                         float fill, ptx::SharedAddress row_smem,
                                         ChunkColumns<kChunkWidth> in_smem)
      : columns_(columns), first_(row_smem + in_smem.thread * 16), apart_(in_smem.threads * 16) {
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
  /// The same for the threads of one block.
  __device__ __forceinline__ SharedSlice(const T* row, int cols, ChunkColumns<kChunkWidth> columns,
                                         float fill, ptx::SharedAddress row_smem)
      : SharedSlice(row, cols, columns, fill, row_smem, columns) {}

  __device__ int thread() const { return columns_.thread; }
  __device__ int column(int i) const { return columns_.column(i); }
  __device__ __forceinline__ ptx::SharedAddress address(int i) const { return first_ + i * apart_; }
  __device__ __forceinline__ Chunk chunk(int i) const { return {ptx::load_shared(address(i))}; }

  /// Starts to copy chunk i of another row over this row's, if it begins in the first `cols`
  /// columns. The thread must have read this row's chunk.
  __device__ __forceinline__ void copy(int i, const T* row, int cols) const {
    if (column(i) < cols) ptx::cp_async<16>(address(i), row + column(i));
  }

 private:
  ChunkColumns<kChunkWidth> columns_;
  ptx::SharedAddress first_;  // of [kChunks] chunks
  int apart_;                 // bytes from one to the next
};

// snippet-begin ends
/// A row that begins anywhere: chunks from a multiple of 16 bytes on, and up to 2 (kWidth - 1)
/// elements beside them, one for each of the first threads. All rows have equally many of both.
/// Columns, and the row given to load() and store(), begin with the first chunk. kWhole: no ends.
template <bool kWhole, class T, int kWidth = 16 / sizeof(T)>
struct RowWithEnds {
  int begin, cols, mine;  // elements before the chunks; columns of all chunks; the thread's column

  __device__ __forceinline__ RowWithEnds(const T* row, int all, int thread)
      : begin(kWhole ? 0 : -static_cast<int>(std::uintptr_t(row) / sizeof(T)) & (kWidth - 1)),
        cols(kWhole ? all : (all - kWidth + 1) / kWidth * kWidth),
        mine((thread < begin ? thread : thread + cols) - begin) {}
  __device__ __forceinline__ float load(const T* row, int visible, float fill) const {
    return !kWhole && mine < visible ? static_cast<float>(row[mine]) : fill;
  }
  __device__ __forceinline__ void store(T* row, int all, float value) const {
    if (!kWhole && mine < all - begin) row[mine] = static_cast<T>(value);
  }
};
// snippet-end ends

/// One value for each warp of a cluster.
inline constexpr int kMaxWarpsOfCluster = kMaxBlocksOfCluster * 32;

/// Every 32nd of `count` values, from `first` on, merged in this order.
template <class T, class Merge>
__device__ __forceinline__ T merge_some(const T* values, int first, int count, Merge merge) {
  T value = merge.identity();
  for (int i = first; i < count; i += kWarp) value = merge(value, values[i]);
  return value;
}

// snippet-begin cluster
/// The reduction over all threads of a cluster, in every thread and to the same bits. All blocks
/// have as many whole warps, and have begun: the kernel has waited at a barrier of the cluster.
/// `partial` is the same array of shared memory in every block. A kernel that uses it again must
/// have reduced with another array in between: a slow warp may still be reading.
///
/// Every warp writes its result into every block, so that one barrier serves for the block and for
/// the cluster. After it each block reads only its own memory: none needs to outlive another.
template <class T, class Merge>
__device__ __forceinline__ T reduce_cluster(T value, Merge merge,
                                            T* partial) {  // [warps of the cluster]
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
