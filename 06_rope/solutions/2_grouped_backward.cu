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
  const std::int64_t unit = at % units, kv_head = at / units % kv_heads;
  const std::int64_t token = at / units / kv_heads;
  // The sum first: one row to turn in place of a group's.
  const std::int64_t group = tokens.heads / kv_heads;
  const float* rows = dy + (token * tokens.heads + kv_head * group) * tokens.head_dim;
  float x = 0, y = 0;
  for (std::int64_t head = 0; head < group; ++head, rows += tokens.head_dim) {
    if (unit < pairs) x += rows[unit];
    y += rows[unit + pairs];
  }
  float* of_row = dk + (token * kv_heads + kv_head) * tokens.head_dim;
  if (unit < pairs) {
    const std::int64_t entry = tokens.position[token] * pairs + unit;
    const float c = tokens.cos[entry], s = tokens.sin[entry];
    of_row[unit] = x * c + y * s;
    y = y * c - x * s;
  }
  of_row[unit + pairs] = y;
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
