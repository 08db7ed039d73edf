// Attention backward by wgmma with 256 columns: both consumers have the same keys.
#pragma once

#include "tile/key_blocks.cuh"
#include "tile/ptx/red.cuh"

namespace flash_attention {

using tile::Accumulator;

/// A block of 64 keys with 256 columns. What is a consumer's is half of a tile's queries in the
/// scores, and half of the columns in dK, dV and dQ. P^T and dS^T of all queries lie in shared
/// memory, since each consumer needs them for its columns.
template <class T>
struct WideKeyBlock : tile::KeyBlockTiles<T, 256, 64, 64> {
  using Tiles = tile::KeyBlockTiles<T, 256, 64, 64>;
  using Tiles::consumer, Tiles::douts, Tiles::keys, Tiles::memory, Tiles::queries, Tiles::Tiles,
      Tiles::values;
  using Tiles::warp;
  using typename Tiles::QueryBoxes, typename Tiles::ScoreBoxes;
  static constexpr int kHalfQueries = 32, kHalfCols = 128, kDqCols = 64;  // dQ in two parts
  // Then [2]{P^T, dS^T}.
  static constexpr int kScores = Tiles::kTileBytes, kBytes = kScores + 4 * ScoreBoxes::kBytes;

  __device__ tile::ptx::SharedAddress weights(int i) const {
    return memory + (kScores + i % 2 * 2 * ScoreBoxes::kBytes);
  }
  __device__ tile::ptx::SharedAddress ds(int i) const { return weights(i) + ScoreBoxes::kBytes; }
  __device__ int warp_key() const { return warp * 16; }
  __device__ int first_query() const { return consumer * kHalfQueries; }  // of a tile

  /// `stats` are those of the whole tile.
  __device__ __forceinline__ void start_scores(Accumulator<16, kHalfQueries>& scores, int i,
                                               const tile::ColumnStats* stats) const {
    Tiles::template start_product<tile::kLse>(scores, keys(0), 0, queries(i), first_query(),
                                              stats + first_query());
  }
  __device__ __forceinline__ void start_dweights(Accumulator<16, kHalfQueries>& dweights, int i,
                                                 const tile::ColumnStats* stats) const {
    Tiles::template start_product<tile::kDelta>(dweights, values(), 0, douts(i), first_query(),
                                                stats + first_query());
  }
  /// dV += P^T dO and dK += dS^T Q, in the consumer's columns.
  __device__ __forceinline__ void start_sums(Accumulator<16, kHalfCols>& dv_sums,
                                             Accumulator<16, kHalfCols>& dk_sums, int i) const {
    const int half = consumer * (kHalfCols / QueryBoxes::kBoxCols) * QueryBoxes::kBoxBytes;
    tile::ptx::wgmma_fence();
#pragma unroll
    for (int query = 0; query < Tiles::kQueries; query += 16) {
      tile::ptx::wgmma<T, kHalfCols, tile::ptx::Major::k, tile::ptx::Major::mn>(
          tile::registers_of(dv_sums), ScoreBoxes::along_columns(weights(i), 0, query),
          QueryBoxes::along_rows(douts(i) + half, query), true);
      tile::ptx::wgmma<T, kHalfCols, tile::ptx::Major::k, tile::ptx::Major::mn>(
          tile::registers_of(dk_sums), ScoreBoxes::along_columns(ds(i), 0, query),
          QueryBoxes::along_rows(queries(i) + half, query), true);
    }
    tile::ptx::wgmma_commit();
  }
  /// 64 of the consumer's columns of dQ = dS K: part 0 or 1.
  __device__ __forceinline__ void start_dq(Accumulator<16, kDqCols>& dq, int part, int i) const {
    Tiles::start_dq_box(dq, ds(i), consumer * 2 + part, 0);
  }
  /// Adds them to the sums of a tile that begins with row first_row of all heads.
  __device__ __forceinline__ void add_dq(float* sums, std::int64_t first_row,
                                         const Accumulator<16, kDqCols>& dq, int part) const {
    const std::int64_t octet = (first_row / 16 + warp) * (256 / 8) + (consumer * 2 + part) * 8;
    float4* const to =
        reinterpret_cast<float4*>(sums) + octet * tile::kWarp + threadIdx.x % tile::kWarp;
#pragma unroll
    for (int n = 0; n < kDqCols / 8; ++n) {
      const float(&sum)[4] = dq.mma[0][n];
      tile::ptx::red_add(to + n * tile::kWarp, {sum[0], sum[1], sum[2], sum[3]});
    }
  }
};

}  // namespace flash_attention
