// Exercise 06.2: the gradient of keys that several heads share
//
// With grouped heads a key is rotated once, and each head of its group multiplies its queries with
// it. So as many gradients come back as the group has heads, and they belong to the rotated key.
// Wanted is the gradient with respect to the key before its rotation.
// Two linear maps lie between: one rotates, with the attention factor a in the tables; the other
// hands the same row to several heads. What is the transpose of each, and does it matter which one
// you take first? One way rotates a row for each head, the other a row for each group.
// Pairs are half-split. Elements that are not rotated have a gradient as well.
// Write the kernel's body. A thread has a unit of a row of dk: a pair, or one element after them.
// Check it with: ./tour exercise 06.2
#include "exercises/exercises.hpp"
#include "tile/basics.cuh"

namespace rope {
namespace {

constexpr int kThreads = 256;

__global__ void grouped_backward_kernel(Tokens tokens,  // see exercises.hpp for the shapes
                                        std::int64_t kv_heads,
                                        const float* dy,  // [count][heads][head_dim]
                                        float* dk) {      // [count][kv_heads][head_dim]
  const std::int64_t at = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t pairs = tokens.rotary_dim / 2, units = tokens.head_dim - pairs;
  if (at >= tokens.count * kv_heads * units) return;
  // TODO: Neighbours have the units of a row, then come those of the token's next head of k. The
  // first `pairs` units are pairs: elements `unit` and `unit + pairs`. The others are element
  // `unit + pairs` alone. Which heads are the group's, and which sign has the sine?
}

}  // namespace

tile::Status grouped_backward(const Tokens& tokens, std::int64_t kv_heads, const float* dy,
                              float* dk) {
  const std::int64_t units = tokens.head_dim - tokens.rotary_dim / 2;
  unsigned blocks = 0;
  if (tile::Status s =
          tile::blocks_for("tokens", tokens.count * kv_heads * units, kThreads, &blocks);
      !s.ok())
    return s;
  if (blocks == 0) return {};
  grouped_backward_kernel<<<blocks, kThreads>>>(tokens, kv_heads, dy, dk);
  return tile::launch_status("grouped_backward_kernel");
}

}  // namespace rope
