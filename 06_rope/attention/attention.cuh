// Rotation of rows in shared memory, and what the launchers of attention share.
#pragma once

#include <type_traits>

#include "attention/attention.hpp"
#include "rotary/launch.hpp"
#include "rotary/rotary_unit.cuh"
#include "tile/host/attention_launch.hpp"
#include "tile/mask.hpp"
#include "tile/shared_tile.cuh"

namespace rope {

// snippet-begin units
/// Which units of a tile's rows are this thread's: unit() of the rows first(), first() + kStep, …
template <class T, Layout kLayout, int kThreads, int kDim>
struct UnitsOfThread {
  using Unit = rope::Unit<T, kLayout>;
  static constexpr int kPairs = kDim / 2, kUnits = kPairs / Unit::kPairs;  // of a row
  static constexpr int kStep = kThreads / kUnits;

  static __device__ int first() { return static_cast<int>(threadIdx.x) / kUnits; }
  static __device__ int unit() { return static_cast<int>(threadIdx.x) % kUnits; }
  /// Its chunks in the row. half_split: the partners lie half a row apart.
  static __device__ int chunk(int j) { return unit() + j * kUnits; }
};

/// Copies rows in the background, with all kThreads threads of the block. Rows from `rows_left` on
/// become zeros.
template <Layout kLayout, int kThreads, class T, int kRows, int kDim>
__device__ __forceinline__ void copy_units_async(const tile::SharedTile<T, kRows, kDim>& tile,
                                                 tile::Rows<const T> from, int rows_left) {
  using Units = UnitsOfThread<T, kLayout, kThreads, kDim>;
  static_assert(kRows % Units::kStep == 0, "no thread is without a row");
#pragma unroll
  for (int i = 0; i < kRows; i += Units::kStep) {
    const int row = Units::first() + i;
#pragma unroll
    for (int j = 0; j < Units::Unit::kChunks; ++j) {
      const int chunk = Units::chunk(j);
      tile::ptx::cp_async<16>(tile.at(row, chunk), from.data + row * from.ld + chunk * 8,
                              row < rows_left ? 16 : 0);
    }
  }
}

/// Rotates these rows in place. A thread rotates what it has copied itself: the caller waits for
/// its own copies before, and synchronises the block after. The tables begin at the first row's
/// position.
template <Layout kLayout, int kThreads, class T, int kRows, int kDim>
__device__ __forceinline__ void rotate_units(const tile::SharedTile<T, kRows, kDim>& tile,
                                             const float* cos,  // [rows][kDim / 2]
                                             const float* sin,  // as cos
                                             int rows_left) {
  using Units = UnitsOfThread<T, kLayout, kThreads, kDim>;
  using Unit = typename Units::Unit;
  using Numbers = rope::Numbers<Unit::kPairs>;
#pragma unroll
  for (int i = 0; i < kRows; i += Units::kStep) {
    const int row = Units::first() + i;
    if (row >= rows_left) break;  // a row of zeros, for which the tables may have no row
    const int entry = row * Units::kPairs + Units::unit() * Unit::kPairs;
    const auto c = *reinterpret_cast<const Numbers*>(cos + entry);
    const auto s = *reinterpret_cast<const Numbers*>(sin + entry);
    Unit of_row;
#pragma unroll
    for (int j = 0; j < Unit::kChunks; ++j) {
      of_row.chunk[j] = {tile::ptx::load_shared(tile.at(row, Units::chunk(j)))};
    }
    of_row.rotate(c, s);
#pragma unroll
    for (int j = 0; j < Unit::kChunks; ++j) {
      tile::ptx::store_shared(tile.at(row, Units::chunk(j)), of_row.chunk[j].words);
    }
  }
}
// snippet-end units

// snippet-begin rotate_back
/// Rotates a warp's sums back: they are gradients of rotated rows. A lane has both elements of each
/// of its pairs: side by side, or at the same place of both halves.
template <Layout kLayout, int kRows, int kDim>
__device__ __forceinline__ void rotate_back(tile::Accumulator<kRows, kDim>& sums,
                                            const float* cos,  // [rows][kDim / 2]
                                            const float* sin,  // as cos
                                            int rows_left) {
  constexpr bool kIsHalf = kLayout == Layout::half_split;
#pragma unroll
  for (int r = 0; r < kRows / 8; ++r) {
    if (sums.row(r) >= rows_left) continue;
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i) {
      float& x = sums.at(r, kIsHalf ? i : 2 * i);
      float& y = sums.at(r, kIsHalf ? i + kDim / 8 : 2 * i + 1);
      const int entry = sums.row(r) * (kDim / 2) + (kIsHalf ? sums.col(i) : sums.col(2 * i) / 2);
      const Pair rotated = rotate({x, y}, cos[entry], -sin[entry]);
      x = rotated.x, y = rotated.y;
    }
  }
}
// snippet-end rotate_back

/// Backward: fills in the stats, [batch][heads][rows of stats], at the beginning of the workspace.
tile::Status compute_stats(const AttentionBackward& p, void* stream);

/// As many keys as queries.
inline tile::Mask mask_of(const tile::Attention& p) {
  const int length = static_cast<int>(p.queries);
  return {length, length, tile::kMaxLength, p.right == 0 ? 0 : tile::kMaxLength};
}

/// Refuses what step `fused` does not rotate.
inline tile::Status check_rotates_on_load(const tile::Attention& p) {
  if (p.rotary.positions) return tile::unsupported("positions", "are not null");
  if (p.rotary.rotary_dim == p.head_dim) return {};
  return tile::unsupported("rotary_dim", std::to_string(p.rotary.rotary_dim) +
                                             " is not head_dim, " + std::to_string(p.head_dim));
}

/// The rows of a table from the first token's position on.
inline const float* from_first_position(const tile::Rotary& p, const float* table) {
  return table + p.first_position * (p.rotary_dim / 2);
}

/// Calls `launch` with a value of the element type, and with the head dimension as a constant.
template <class Launch>
tile::Status with_type_and_head_dim(const tile::Attention& p, Launch launch) {
  const auto with_dim = [&](auto element) {
    return p.head_dim == 64 ? launch(element, std::integral_constant<int, 64>{})
                            : launch(element, std::integral_constant<int, 128>{});
  };
  return p.type == tile::DType::fp16 ? with_dim(__half{}) : with_dim(__nv_bfloat16{});
}

/// The same, and with the layout as a constant.
template <class Launch>
tile::Status with_layout(const tile::Attention& p, Launch launch) {
  return with_type_and_head_dim(p, [&](auto element, auto dim) {
    using Half = std::integral_constant<Layout, Layout::half_split>;
    using Interleaved = std::integral_constant<Layout, Layout::interleaved>;
    return p.rotary.layout == Layout::half_split ? launch(element, dim, Half{})
                                                 : launch(element, dim, Interleaved{});
  });
}

/// A rotation in memory, as the steps `composed` have it, by the last step of its ladder.
struct Rotation {
  RotaryProblem problem;
  RotaryBuffers buffers;

  tile::Status check() const { return check_step(kRotaryLadder.steps.back(), problem, buffers); }
  tile::Status launch(void* stream) const {
    return kRotaryLadder.steps.back().launch(problem, buffers, stream);
  }
};
/// That of the call's q and k, one after the other into `memory`.
template <class Call>
Rotation rotation_into(void* memory, const Call& p) {
  auto* q = static_cast<unsigned char*>(memory);
  return {rotation_of(p),
          {.q = p.q.data,
           .k = p.k.data,
           .q_out = q,
           .k_out = q + 2 * p.batch * p.queries * p.heads * p.head_dim,
           .cos = p.rotary.cos,
           .sin = p.rotary.sin,
           .positions = p.rotary.positions}};
}

}  // namespace rope
