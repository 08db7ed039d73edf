// What attention in 8 bits needs besides: values transposed on their way to wgmma, weights as its
// operand A, and an output whose columns are permuted.
#pragma once

#include <cuda_fp8.h>

#include "tile/accumulator.cuh"
#include "tile/head_boxes.cuh"
#include "tile/ptx/ldmatrix.cuh"
#include "tile/row_softmax.cuh"

namespace flash_attention {

using E4m3 = __nv_fp8_e4m3;

// snippet-begin transpose
/// wgmma reads 8 bits along the sum only, here along keys: a tile of values, [keys][columns],
/// becomes [columns][keys]. Two warps do it, `warp` 0 and 1. Keys from `keys` on become zeros.
///
/// ldmatrix transposes pairs of bytes, so that a lane has two columns of two keys in a register.
/// Of two registers, with 8 keys each, byte_perm makes one of the even column and one of the odd
/// column. So in each 16 columns the even ones come first; and of each 16 keys, 2 i and 2 i + 1 of
/// the first 8 come before 2 i and 2 i + 1 of the others, as the weights do (as_e4m3).
template <class From, class To>
__device__ __forceinline__ void transpose_values(tile::ptx::SharedAddress from,
                                                 tile::ptx::SharedAddress to, int warp, int keys) {
  static_assert(From::kRows == 128 && From::kBoxes == 1 && To::kBoxes == 1);
  const int lane = static_cast<int>(threadIdx.x % 32), key = warp * 32 + lane;  // and 64 further
  const auto own_row = from + (key * From::kRowBytes + tile::swizzle_128B(lane, 0) * 16);
  const auto own_column =
      to + (lane % 16 * To::kRowBytes + tile::swizzle_128B(lane % 16, key / 16) * 16);
#pragma unroll 1
  for (int more = 0; keys < From::kRows && more < From::kRows; more += 64) {
    for (int col = 0; key + more >= keys && col < From::kCols; col += 16) {
      tile::ptx::store_shared((own_row + more * From::kRowBytes) ^ col, uint4{});
    }
    __syncwarp();
  }
#pragma unroll 1
  for (int part = 0; part < From::kCols / 64 * 2; ++part) {  // 32 keys and 64 columns of this warp
    const auto row = (own_row + part % 2 * 64 * From::kRowBytes) ^ part / 2 * 64;
    const auto column = (own_column ^ part % 2 * 64) + part / 2 * 64 * To::kRowBytes;
    std::uint32_t pairs[4][4];  // of two columns, and of 8 keys each
#pragma unroll
    for (int i = 0; i < 4; ++i) tile::ptx::ldmatrix_x4_trans(pairs[i], row ^ i * 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t(&pair)[4] = pairs[i];
      const std::uint32_t sorted[4] = {
          __byte_perm(pair[0], pair[1], 0x6420), __byte_perm(pair[0], pair[1], 0x7531),
          __byte_perm(pair[2], pair[3], 0x6420), __byte_perm(pair[2], pair[3], 0x7531)};
      tile::ptx::stmatrix_x4(column + i * 16 * To::kRowBytes, sorted);
    }
  }
}
// snippet-end transpose

// snippet-begin weights
/// A warp's weights as operand A of wgmmas 32 keys deep.
template <int kKeys>
struct WeightsE4m3 {
  std::uint32_t mma[kKeys / 32][4];
};

/// D gives a lane two neighbouring keys of each 8, and A takes four neighbours. So two keys of 8
/// and two of the next 8 become neighbours.
__device__ __forceinline__ std::uint32_t pack_weights(float a, float b, float next_a,
                                                      float next_b) {
  return tile::ptx::pack<E4m3>(a, b) | tile::ptx::pack<E4m3>(next_a, next_b) << 16;
}
// snippet-end weights

// snippet-begin softmax
/// The softmax of a warp whose weights are e4m3, up to 448. It makes the weights before it knows
/// whether they fit: to look at the greatest score first would take as many instructions as there
/// are scores, and to look at weights of 8 bits, four in a word, takes a quarter. If one does not
/// fit, the row's reference rises, so that its greatest weight is 2^kTop, and the weights are made
/// again.
class SoftmaxE4m3 : public tile::RowSoftmax<16> {
 public:
  using RowSoftmax::RowSoftmax;

  /// Makes the weights of keys 32 `part` to 32 `part` + 31 of a tile, those of part 0 first.
  template <int kKeys>
  __device__ __forceinline__ void weigh(const tile::Accumulator<16, kKeys>& scores, int part,
                                        WeightsE4m3<kKeys>& weights) {
    if (part == 0) above_ = 0, tile_sum_[0] = tile_sum_[1] = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = i % 2;
      const float(&left)[4] = scores.mma[0][part * 4 + i / 2 * 2];
      const float(&right)[4] = scores.mma[0][part * 4 + i / 2 * 2 + 1];
      const std::uint32_t four = pack_weights(weight(left[2 * r], r), weight(left[2 * r + 1], r),
                                              weight(right[2 * r], r), weight(right[2 * r + 1], r));
      above_ |= four + 0x04040404;  // 384 is 0x7c: from there on the highest bit is set
      weights.mma[part][i] = four;
    }
  }

  /// Takes the tile's weights, of which all parts were made; or if some do not fit, makes them
  /// again.
  template <int kKeys, int kDim>
  __device__ __forceinline__ void take(const tile::Accumulator<16, kKeys>& scores,
                                       WeightsE4m3<kKeys>& weights,
                                       tile::Accumulator<16, kDim>& out) {
    if (__any_sync(tile::kAllLanes, above_ & 0x80808080)) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float max = scores.at(r, 0);
#pragma unroll
        for (int c = 1; c < kKeys / 4; ++c) max = fmaxf(max, scores.at(r, c));
        max = scale_log2_ * tile::ptx::max_of_quad(max);
        // Each row depends on its own scores only, not on the warp's other rows.
        raise(r, max > reference_[r] + kMaxAbove ? max - kTop : -INFINITY, out);
      }
#pragma unroll
      for (int part = 0; part < kKeys / 32; ++part) weigh(scores, part, weights);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) sum_[r] += tile_sum_[r];
  }

 private:
  static constexpr int kTop = 5;
  static constexpr float kMaxAbove = 8.53f;  // 2^8.53 = 370, which is rounded to 384

  __device__ __forceinline__ float weight(float score, int r) {
    const float made = tile::ptx::exp2_approx(fmaf(scale_log2_, score, -reference_[r]));
    tile_sum_[r] += made;
    return made;
  }

  float tile_sum_[2];    // this lane's part of each row's
  std::uint32_t above_;  // of four weights each, in their highest bits
};
// snippet-end softmax

/// Starts sums = weights V, or if `accumulate` sums += weights V, with V as transpose_values leaves
/// it.
template <class Values>
__device__ __forceinline__ void start_product_with_values(
    tile::Accumulator<16, Values::kRows>& sums, const WeightsE4m3<Values::kCols>& weights,
    tile::ptx::SharedAddress values, bool accumulate) {
#pragma unroll
  for (int key = 0; key < Values::kCols; key += 32) {
    tile::ptx::wgmma<E4m3, Values::kRows>(tile::registers_of(sums), weights.mma[key / 32],
                                          Values::along_columns(values, 0, key),
                                          accumulate || key > 0);
  }
}

/// Rounds a warp's output to bf16 and stores it from row first_row on, as far as there are rows. In
/// each 16 columns of the sums the even ones of the output come first, so that a lane has four
/// neighbours.
template <int kDim>
__device__ __forceinline__ void store_permuted(const tile::Accumulator<16, kDim>& out,
                                               tile::Rows<__nv_bfloat16> to, int first_row,
                                               int rows) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = first_row + out.row(r);
    if (row >= rows) continue;
    __nv_bfloat16* const own = to[row] + threadIdx.x % 4 * 4;
#pragma unroll
    for (int c = 0; c < kDim / 4; c += 4) {
      *reinterpret_cast<uint2*>(own + c * 4) = {
          tile::ptx::pack<__nv_bfloat16>(out.at(r, c), out.at(r, c + 2)),
          tile::ptx::pack<__nv_bfloat16>(out.at(r, c + 1), out.at(r, c + 3))};
    }
  }
}

}  // namespace flash_attention
