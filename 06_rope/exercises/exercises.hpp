// What the exercises of chapter 06 are to define. All arrays are in device memory.
#pragma once

#include "rotary/rotary.hpp"

namespace rope {

/// Tokens with some heads of rows each, without padding, and where they stand.
struct Tokens {
  std::int64_t count, heads, head_dim;
  std::int64_t rotary_dim;       // even: elements from here on do not turn
  const std::int32_t* position;  // [count], each below the number of positions in the tables
  const float* cos;              // a cos(p f_i), [positions][rotary_dim / 2]
  const float* sin;              // a sin(p f_i), [positions][rotary_dim / 2]
};

/// 06.1: turns the rows of x, [count][heads][head_dim], where they stand. Pairs are neighbours.
tile::Status turn_in_place(const Tokens& tokens, float* x);

/// 06.2: each row of k, [count][kv_heads][head_dim], was turned, with half-split pairs, and used by
/// heads / kv_heads heads of q that follow one another. dy, [count][heads][head_dim], is the
/// gradient with respect to what each of the heads used. Finds dk, [count][kv_heads][head_dim].
tile::Status grouped_backward(const Tokens& tokens, std::int64_t kv_heads, const float* dy,
                              float* dk);

/// 06.3: the cosines and sines of `count` positions from `first` on, [count][rotary_dim / 2], with
/// the frequencies of NTK scaling: those of a base stretched so that the slowest pair turns
/// `factor` times more slowly.
struct NtkTables {
  std::int64_t first, count, rotary_dim;  // rotary_dim is even, and more than 2
  double base, factor;
};
tile::Status ntk_tables(const NtkTables& tables, float* cos, float* sin);

}  // namespace rope
