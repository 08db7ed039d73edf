// Kernels that copy by TMA, for the test beside them.
#pragma once

#include <cstdint>

#include "tile/host/status.hpp"
#include "tile/host/tensor_map.hpp"

namespace ptx_test {

inline constexpr int kBoxWords = 4096;  // of shared memory, for a box
inline constexpr std::uint32_t kNotLoaded = 0xdeadbeef;

/// Where a box begins. As many coordinates count as the tensor has axes.
struct Corner {
  std::int32_t at[4];
};

/// Loads a box of `bytes` to shared memory full of kNotLoaded, and copies all of that to `out`.
tile::Status load_box(int rank, const tile::TensorMap& map, Corner corner, unsigned bytes,
                      std::uint32_t* out);

/// A cluster of two. Block r loads to both, as part r of two: the box at this corner moved by 8 r
/// along axis 1. out: kBoxWords of either block.
tile::Status load_for_both(const tile::TensorMap& map, Corner corner, unsigned bytes,
                           std::uint32_t* out);

/// Fills shared memory with `in`, kBoxWords, and stores the box that it is; adds it, in each of
/// `blocks` blocks, if that is not 0.
tile::Status store_box(int rank, const tile::TensorMap& map, Corner corner, const std::uint32_t* in,
                       unsigned blocks);

/// out[i] = in[i], for `words`, a multiple of 4 and at most kBoxWords, by way of shared memory.
tile::Status copy_bulk(const std::uint32_t* in, int words, std::uint32_t* out);
/// sums[i] += in[i], in each of so many blocks.
tile::Status add_bulk(const float* in, int words, unsigned blocks, float* sums);

/// Three buffers in turn, of which a thread stores one while the block fills the next. out[i]: i.
tile::Status store_in_turn(int rounds, std::uint32_t* out);

/// A warp loads boxes of 32 x 8 floats in turn, for two warps that double them and store the result
/// to the other tensor: rows 8 i to 8 i + 7 for each of `boxes`.
tile::Status double_in_ring(const tile::TensorMap& in, const tile::TensorMap& out, int boxes);

}  // namespace ptx_test
