// What a launcher of attention makes of a call for its kernels: heads, masks and blocks; and
// whether the card has the shared memory that they need.
#pragma once

#include "tile/heads.cuh"
#include "tile/host/attention.hpp"
#include "tile/host/device.hpp"
#include "tile/host/heads_together.hpp"
#include "tile/host/launch.hpp"
#include "tile/host/text.hpp"
#include "tile/mask.hpp"

namespace tile {

template <class T>
Heads<T> heads_of(const TensorView& x) {
  return {static_cast<T*>(x.data), x.stride};
}

/// How many tiles of `tile` rows there are.
inline int tiles_of(std::int64_t rows, int tile) {
  return static_cast<int>((rows + tile - 1) / tile);
}

/// Heads of q to one of k and v.
template <class Problem>
int group_of(const Problem& p) {
  return static_cast<int>(p.heads / p.kv_heads);
}

/// A block for each tile of `tile` rows of each head.
template <class Problem>
Status blocks_for_tiles(const Problem& p, std::int64_t heads, std::int64_t rows, int tile,
                        unsigned* blocks) {
  std::int64_t count = 0;
  if (__builtin_mul_overflow(p.batch * heads, tiles_of(rows, tile), &count)) count = INT64_MAX;
  return blocks_for("batch, heads and lengths", count, 1, blocks);
}

/// Whether a block of the card can have so much shared memory. It grows with the head dimension.
inline Status check_shared_bytes(const Attention& p, std::int64_t bytes, const Device& device) {
  if (bytes <= device.shared_bytes_of_block) return {};
  return unsupported("head_dim", std::to_string(p.head_dim) + " needs " + counted(bytes, "byte") +
                                     " of shared memory");
}

/// Windows are cut to what an int holds, which is more than any key is away.
inline BatchMasks masks_of(const Attention& p) {
  const auto window = [](std::int64_t width) {
    return static_cast<int>(width < kUnlimited ? width : kUnlimited);
  };
  return {static_cast<int>(p.queries),
          static_cast<int>(p.keys),
          window(p.left),
          window(p.right),
          p.query_lengths,
          p.key_lengths};
}

}  // namespace tile
