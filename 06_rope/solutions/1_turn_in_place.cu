// Exercise 06.1: neighbours, in place
//
// The kernel below rotates half-split pairs, and writes the rotated rows where the old ones were.
// Here a pair should be two neighbours, as in the paper and in GPT-J: elements 2i and 2i + 1 of a
// row. A thread has a pair. Elements that are not rotated stay as they are. The kernel has a second
// mistake, which half-split pairs have just as well. Which of a pair's two results needs an element
// that is not there any more? Check it with: ./tour exercise 06.1
#include "exercises/exercises.hpp"
#include "tile/basics.cuh"

namespace rope {
namespace {

constexpr int kThreads = 256;

__global__ void turn_in_place_kernel(Tokens tokens,  // see exercises.hpp for the shapes
                                     float* x) {     // [count][heads][head_dim]
  const std::int64_t at = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t pairs = tokens.rotary_dim / 2;
  if (at >= tokens.count * tokens.heads * pairs) return;
  const std::int64_t i = at % pairs, row = at / pairs, token = row / tokens.heads;
  float* of_row = x + row * tokens.head_dim;
  const std::int64_t entry = tokens.position[token] * pairs + i;
  const float c = tokens.cos[entry], s = tokens.sin[entry];
  float *first = of_row + 2 * i, *second = first + 1;
  const float before = *first, after = *second;
  *first = before * c - after * s;
  *second = after * c + before * s;
}

}  // namespace

tile::Status turn_in_place(const Tokens& tokens, float* x) {
  unsigned blocks = 0;
  if (tile::Status s = tile::blocks_for(
          "tokens", tokens.count * tokens.heads * tokens.rotary_dim / 2, kThreads, &blocks);
      !s.ok())
    return s;
  if (blocks == 0) return {};
  turn_in_place_kernel<<<blocks, kThreads>>>(tokens, x);
  return tile::launch_status("turn_in_place_kernel");
}

}  // namespace rope
