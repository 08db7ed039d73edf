// Attention backward by wgmma with 64 or 128 columns: each consumer has keys of its own.
#pragma once

#include "tile/key_blocks.cuh"
#include "tile/ptx/ldmatrix.cuh"

namespace tile {

/// A block of 128 keys, and what a consumer does with its memory. A consumer has 64 keys: P^T and
/// dS^T of its keys lie in its registers as wgmma has left them, and are left factors from there.
/// dS^T of all keys lies in shared memory, too, for dQ, which sums over the keys. A thread has kDim
/// sums of dK and dV, and kQueries of scores and their gradients: 192 of 240 registers.
template <class T, int kDim, int kKeyTensors = 1>
struct KeyBlock : KeyBlockTiles<T, kDim, 128, kDim == 64 ? 128 : 64, kKeyTensors> {
  using Tiles = KeyBlockTiles<T, kDim, 128, kDim == 64 ? 128 : 64, kKeyTensors>;
  using Tiles::consumer, Tiles::douts, Tiles::keys, Tiles::memory, Tiles::kKeys, Tiles::kQueries,
      Tiles::kWarps;
  using Tiles::queries, Tiles::Tiles, Tiles::values, Tiles::warp;
  using typename Tiles::KeyBoxes, typename Tiles::QueryBoxes, typename Tiles::ScoreBoxes;
  static constexpr int kRows = kKeys / Tiles::kConsumers;
  static constexpr int kDqCols = 64, kRowParts = kQueries / kRows;  // parts of dQ are 64 x 64
  static_assert(kRowParts * (kDim / kDqCols) == Tiles::kConsumers);
  static constexpr int kWarpDqBytes = 16 * kDqCols * 4;
  // Then [2]{dS^T}, [kWarps]{dQ}.
  static constexpr int kScores = Tiles::kTileBytes, kDq = kScores + 2 * ScoreBoxes::kBytes;
  static constexpr int kBytes = kDq + kWarps * kWarpDqBytes;

  __device__ ptx::SharedAddress ds(int i) const {
    return memory + (kScores + i % 2 * ScoreBoxes::kBytes);
  }
  __device__ ptx::SharedAddress staging() const {
    return memory + (kDq + (consumer * 4 + warp) * kWarpDqBytes);
  }
  __device__ int warp_key() const { return consumer * kRows + warp * 16; }

  __device__ __forceinline__ void start_scores(Accumulator<16, kQueries>& scores, int i,
                                               const ColumnStats* stats, int tensor = 0) const {
    // By a number that is shuffled here: descriptors from before a loop would be spilled in it.
    const int first_key = (warpgroup_in_block() - 1) * kRows;
    Tiles::template start_product<kLse>(scores, keys(tensor), first_key, queries(i), 0, stats);
  }
  __device__ __forceinline__ void start_dweights(Accumulator<16, kQueries>& dweights, int i,
                                                 const ColumnStats* stats) const {
    Tiles::template start_product<kDelta>(dweights, values(), consumer * kRows, douts(i), 0, stats);
  }
  /// The same with the first 16 columns of the warp's values from registers, as load_values leaves
  /// them: shared memory need not give these. With 64 columns ptxas lacks the registers.
  __device__ __forceinline__ void start_dweights(Accumulator<16, kQueries>& dweights, int i,
                                                 const ColumnStats* stats,
                                                 const Fragment<16, 16>& first_values) const {
    if constexpr (kDim == 64) return start_dweights(dweights, i, stats);
    ptx::wgmma_fence();
    ptx::wgmma<T, kQueries>(registers_of(dweights), first_values.mma[0][0],
                            QueryBoxes::along_columns(douts(i), 0, 0), false);
    // Shuffled as above, and between the two: without a mask, where all blocks have one pace, this
    // pause gives 1.02, as the other consumer's products come between.
    const int first_key = (warpgroup_in_block() - 1) * kRows;
    Tiles::template start_product<kDelta, 16>(dweights, values(), first_key, douts(i), 0, stats);
  }
  __device__ void load_values(Fragment<16, 16>& first) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, row = warp_key() + lane % 16;
    ptx::ldmatrix_x4(first.mma[0][0],
                     values() + (row * KeyBoxes::kRowBytes + swizzle_128B(row, lane / 16) * 16));
  }
  /// dV += P^T dO and dK += dS^T Q.
  __device__ __forceinline__ void start_sums(Accumulator<16, kDim>& dv_sums,
                                             Accumulator<16, kDim>& dk_sums,
                                             const Fragment<16, kQueries>& weights,
                                             const Fragment<16, kQueries>& dscores, int i) const {
    ptx::wgmma_fence();
    start_product_with_columns<T, QueryBoxes>(dv_sums, weights, douts(i));
    start_product_with_columns<T, QueryBoxes>(dk_sums, dscores, queries(i));
    ptx::wgmma_commit();
  }
  /// The consumer's part of dQ = dS K: 64 of its rows, or of its columns.
  __device__ __forceinline__ void start_dq(Accumulator<16, kDqCols>& dq, int i,
                                           int tensor = 0) const {
    const int row_part = consumer % kRowParts, col_part = consumer / kRowParts;
    Tiles::start_dq_box(dq, ds(i) + row_part * ScoreBoxes::kBoxBytes, col_part, tensor);
  }
  // snippet-begin stage
  /// A warp's 16 rows of that part, which are added to the sums of the tile's rows: one lane sends
  /// what all have staged. The order has no bank conflicts, and is that of the sums.
  __device__ __forceinline__ void stage_dq(const Accumulator<16, kDqCols>& dq) const {
    __syncwarp();  // one lane has waited until the rows before have left
#pragma unroll
    for (int n = 0; n < kDqCols / 8; ++n) {
      const float(&sum)[4] = dq.mma[0][n];
      ptx::store_shared(staging() + (n * kWarp + static_cast<int>(threadIdx.x) % kWarp) * 16,
                        uint4{__float_as_uint(sum[0]), __float_as_uint(sum[1]),
                              __float_as_uint(sum[2]), __float_as_uint(sum[3])});
    }
    ptx::fence_async_proxy();  // the reduction sees what this lane has stored
    __syncwarp();              // and what the others have
  }
  __device__ float* warp_sums(float* sums, std::int64_t first_row) const {
    const int row_part = consumer % kRowParts, col_part = consumer / kRowParts;
    return sums + (first_row + row_part * kRows + warp * 16) * kDim + col_part * kDqCols * 16;
  }
  __device__ __forceinline__ void send_dq(float* to) const {
    ptx::bulk_reduce_add(to, staging(), kWarpDqBytes);
    ptx::bulk_commit();
  }
  // snippet-end stage
  __device__ __forceinline__ void store_ds(const Fragment<16, kQueries>& warp_ds, int i) const {
    ScoreBoxes::store_warp(warp_ds, ds(i), warp_key());
  }
};

}  // namespace tile
