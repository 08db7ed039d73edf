// A wgmma that adds a number of fp32 to each column of its sums: ones times numbers of bf16 that
// sum up to it.
#pragma once

#include "tile/ptx/convert.cuh"
#include "tile/ptx/wgmma.cuh"

namespace tile::ptx {

/// A number as four of bf16: each is what rounding has left of it. Three hold the 24 bits of fp32,
/// the last is 0. What is not finite becomes NaN, and so does the other term of its column.
struct ColumnTerm {
  std::uint32_t pairs[2];

  static __device__ __forceinline__ ColumnTerm of(float number) {
    float part[4] = {};
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      part[i] = __bfloat162float(__float2bfloat16(number));
      number -= part[i];
    }
    return {{pack<__nv_bfloat16>(part[0], part[1]), pack<__nv_bfloat16>(part[2], part[3])}};
  }
  static constexpr int kParts = 3;
};

/// What a lane has of a left factor of 16 columns with ones for the parts of one of two terms.
template <int kTerm>
__device__ __forceinline__ std::uint32_t ones_for_parts() {
  static_assert(ColumnTerm::kParts == 3);
  constexpr std::uint32_t kOne = 0x3f80;  // of bf16
  const unsigned q = threadIdx.x % 4;     // has columns 2 q and 2 q + 1
  return q == 2 * kTerm ? kOne << 16 | kOne : q == 2 * kTerm + 1 ? kOne : 0;
}

/// D += the term of each column, or if not `accumulate`, D is that; to be fenced, committed and
/// waited for as any wgmma. `terms` are two ColumnTerms for each of kN columns, 16 bytes, of which
/// kTerm says which.
template <int kTerm, int kN>
__device__ __forceinline__ void wgmma_add(float (&d)[kN / 2], SharedAddress terms,
                                          bool accumulate) {
  struct Registers {
    std::uint32_t a[4];
  };
  const std::uint32_t pair = ones_for_parts<kTerm>();
  // Two terms are half of the k of an instruction: zeros are multiplied by the same half again.
  wgmma<__nv_bfloat16, kN>(d, Registers{{pair, pair}}.a,
                           WgmmaDescriptor::along_k_in_eights(terms, 0, 8 * 16), accumulate);
}

}  // namespace tile::ptx
