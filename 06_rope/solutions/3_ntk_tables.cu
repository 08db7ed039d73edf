// Exercise 06.3: a base for longer texts
//
// A model was trained with texts of some length, and is to read texts `factor` times as long. If
// all frequencies were divided by the factor, its fastest pairs, which tell neighbours apart, would
// be off by as much as the slowest. NTK scaling takes another base b' instead, with
//
//     f_i = b'^(-2 i / d)        so that  f_0 = 1  stays, and  f_last = b^(-2 last / d) / factor.
//
// d is rotary_dim and last = d / 2 - 1. Solve for b'. The tables have a row for each position and a
// column for each pair, and are to be exact at position 131,071 as well: at an angle of as many
// radians fp32 has seven bits left after the point.
// Write the kernel's body. A thread has an entry of both tables.
// Check it with: ./tour exercise 06.3
#include "exercises/exercises.hpp"
#include "tile/basics.cuh"

namespace rope {
namespace {

constexpr int kThreads = 256;

__global__ void ntk_tables_kernel(NtkTables tables,
                                  float* cos_table,    // [count][rotary_dim / 2]
                                  float* sin_table) {  // [count][rotary_dim / 2]
  const std::int64_t at = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t pairs = tables.rotary_dim / 2;
  if (at >= tables.count * pairs) return;
  const auto position = static_cast<double>(tables.first + at / pairs);
  const auto i = static_cast<double>(at % pairs), d = static_cast<double>(tables.rotary_dim);
  // (b' / b)^(-2 last / d) = 1 / factor, and 2 last = d - 2.
  const double base = tables.base * pow(tables.factor, d / (d - 2));
  const double angle = position * pow(base, -2 * i / d);
  cos_table[at] = static_cast<float>(cos(angle));
  sin_table[at] = static_cast<float>(sin(angle));
}

}  // namespace

tile::Status ntk_tables(const NtkTables& tables, float* cos, float* sin) {
  unsigned blocks = 0;
  if (tile::Status s =
          tile::blocks_for("count", tables.count * tables.rotary_dim / 2, kThreads, &blocks);
      !s.ok())
    return s;
  if (blocks == 0) return {};
  ntk_tables_kernel<<<blocks, kThreads>>>(tables, cos, sin);
  return tile::launch_status("ntk_tables_kernel");
}

}  // namespace rope
