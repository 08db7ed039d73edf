// Exercise 05.5: the order of keys
//
// Tensor cores leave a product's sums in one order, and read operand A of 8 bits in another: a lane
// has two neighbouring columns of each 8, and in A four neighbouring places of each 16. Forward
// step 13 moves no weight to another lane. Each lane packs the weights that it has, and the values'
// rows come in the order in which the keys then stand in A: a sum may take its terms in any order.
// Say which key stands at a place. The values are small integers, so the output is exact.
// Check it with: ./tour exercise 05.5
#include <cuda_fp8.h>

#include "exercises/exercises.hpp"
#include "launch.hpp"
#include "tile/accumulator.cuh"
#include "tile/ptx/mma.cuh"

namespace flash_attention {
namespace {

using E4m3 = __nv_fp8_e4m3;
constexpr int kKeys = 32, kColumns = 8;

__device__ std::uint32_t pack_four(float a, float b, float c, float d) {
  return tile::ptx::pack<E4m3>(a, b) | tile::ptx::pack<E4m3>(c, d) << 16;
}

/// The key whose weight stands at this place, 0 to 31, of a row of operand A.
__device__ int key_at(int place) {
  // TODO: Which lane has this place, and which of its four? Which columns of the sums does that
  // lane have?
  return place;
}

/// A warp computes O = P V: 16 queries, 32 keys, 8 columns.
__global__ void order_of_keys_kernel(const float* p,  // [16][32]
                                     const float* v,  // [32][8]
                                     float* o) {      // [16][8]
  tile::Accumulator<16, kKeys> weights;               // as a product leaves the scores
  for (int r = 0; r < weights.kLaneRows; ++r) {
    for (int c = 0; c < weights.kLaneCols; ++c) {
      weights.at(r, c) = p[weights.row(r) * kKeys + weights.col(c)];
    }
  }
  // Each register has four neighbouring places of a row: a[0] and a[1] of places 0 to 15, for the
  // lane's first row and its second, a[2] and a[3] of places 16 to 31. Lane % 4 tells which four.
  std::uint32_t a[4], b[2];
  for (int i = 0; i < 4; ++i) {
    const int half = i / 2, r = i % 2;
    a[i] = pack_four(weights.at(r, half * 4), weights.at(r, half * 4 + 1),
                     weights.at(r, half * 4 + 2), weights.at(r, half * 4 + 3));
  }
  // So has B, of a column: its rows must come in the order of A's places.
  const int first_place = static_cast<int>(threadIdx.x) % 4 * 4;
  const int column = static_cast<int>(threadIdx.x) / 4;
  for (int half = 0; half < 2; ++half) {
    float value[4];
    for (int e = 0; e < 4; ++e) {
      value[e] = v[key_at(half * 16 + first_place + e) * kColumns + column];
    }
    b[half] = pack_four(value[0], value[1], value[2], value[3]);
  }
  tile::Accumulator<16, kColumns> out;
  tile::ptx::mma_m16n8k32<E4m3>(out.mma[0][0], a, b);
  for (int r = 0; r < out.kLaneRows; ++r) {
    for (int c = 0; c < out.kLaneCols; ++c) {
      o[out.row(r) * kColumns + out.col(c)] = out.at(r, c);
    }
  }
}

}  // namespace

tile::Status order_of_keys(const float* p, const float* v, float* o) {
  TILE_TRY(
      tile::check_requirements({tile::DType::e4m3}, {tile::Feature::fp8_mma}, tile::DType::e4m3));
  order_of_keys_kernel<<<1, 32>>>(p, v, o);
  return tile::launch_status("order_of_keys_kernel");
}

}  // namespace flash_attention
