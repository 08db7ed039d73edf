// What the launchers for Hopper share: the maps of the matrices, the choice of a tile, and the
// number of blocks.
#pragma once

#include <algorithm>
#include <iterator>

#include "hopper_output.cuh"
#include "matmul_launch.hpp"

namespace matmul {

// snippet-begin map
/// The map of a matrix for tiles of this kind, with `extent` of m or n and k of k, `ld` elements
/// from row to row.
template <class Boxes>
tile::Status map_of_operand(const char* name, tile::DType type, const void* data,
                            std::int64_t extent, std::int64_t k, std::int64_t ld,
                            tile::TensorMap* map) {
  constexpr bool kAlongK = Boxes::kMajor == tile::ptx::Major::k;
  const tile::BoxedTensor boxed{
      .type = type,
      .data = data,
      .rank = 2,
      .extents = {kAlongK ? k : extent, kAlongK ? extent : k},
      .strides = {ld},
      .box = {kBoxElements * 2 / static_cast<int>(tile::size_bytes(type)), Boxes::kCopied},
      .swizzle_bytes = 128};
  return tile::make_tensor_map(name, boxed, map);
}
// snippet-end map

/// The maps of op(A) and op(B) for tiles of these kinds.
template <class ATile, class BTile>
tile::Status make_maps(const Problem& p, const Buffers& buffers, tile::TensorMap* a_map,
                       tile::TensorMap* b_map) {
  TILE_TRY(map_of_operand<ATile>("a", p.type, buffers.a, p.m, p.k, p.lda, a_map));
  return map_of_operand<BTile>("b", p.type, buffers.b, p.n, p.k, p.ldb, b_map);
}

/// The map of C for stores of OutputBox. TMA stores 16 bytes at a time, and at the end of a row an
/// H200 writes beyond the last column. So the map ends with the last whole 16 bytes.
inline tile::Status map_of_output(const Problem& p, const Buffers& buffers, tile::TensorMap* map) {
  const tile::BoxedTensor boxed{
      .type = type_of_c(p),
      .data = buffers.c,
      .rank = 2,
      // The map is unused below that width.
      .extents = {std::max<std::int64_t>(kTogether, p.n - p.n % kTogether), p.m},
      .strides = {p.ldc},
      .box = {kBoxElements, OutputBox::kRows},
      .swizzle_bytes = 128};
  return tile::make_tensor_map("c", boxed, map);
}

// snippet-begin fastest
/// Calls `launch` with the tile whose rounds take the least time, a TileOf.
template <std::size_t kShape = 0, class Launch>
tile::Status with_fastest_tile(const Problem& p, unsigned most, Launch launch) {
  if constexpr (kShape + 1 < std::size(kTileShapes)) {
    if (fastest_tile(p, most) != kShape) return with_fastest_tile<kShape + 1>(p, most, launch);
  }
  return launch(TileOf<kTileShapes[kShape].rows / 64, kTileShapes[kShape].cols>{});
}
// snippet-end fastest

// snippet-begin idlers
/// The smallest number of blocks that needs no more rounds for `tiles` tiles than `most` blocks do:
/// another block would idle in the last round, and take power from the others until then.
inline unsigned blocks_without_idlers(unsigned tiles, unsigned most) {
  const unsigned rounds = (tiles + most - 1) / most;
  return (tiles + rounds - 1) / rounds;
}
// snippet-end idlers

/// How many clusters of so many blocks run at the same time, with one block on a multiprocessor.
inline tile::Status count_clusters(int blocks, unsigned* clusters) {
  int sms = 0;  // multiprocessors
  TILE_TRY(tile::count_multiprocessors(&sms));
  *clusters = static_cast<unsigned>(std::max(1, sms / blocks));
  return {};
}

}  // namespace matmul
