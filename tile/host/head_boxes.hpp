// The tensors of a call of attention as TMA sees them, and whether it takes them.
#pragma once

#include <tuple>
#include <utility>

#include "tile/head_boxes.cuh"
#include "tile/host/attention_launch.hpp"

namespace tile {

/// The rows of [batch][rows][heads][columns] elements, in boxes of HeadBoxes.
template <class Boxes>
BoxedTensor boxed_heads(DType type, const TensorView& x, std::int64_t batch, std::int64_t heads,
                        std::int64_t rows) {
  // The stride of an axis with one element is never used, but TMA checks it.
  const auto of = [](std::int64_t extent, std::int64_t stride) {
    return extent > 1 ? stride : Boxes::kBoxCols;
  };
  return {.type = type,
          .data = x.data,
          .rank = 4,
          .extents = {Boxes::kCols, rows, heads, batch},
          .strides = {of(rows, x.stride.row), of(heads, x.stride.head), of(batch, x.stride.batch)},
          .box = {Boxes::kBoxCols, Boxes::kRows, 1, 1},
          .swizzle_bytes = 128};
}
template <class Boxes>
Status make_map(const char* name, DType type, const TensorView& x, std::int64_t batch,
                std::int64_t heads, std::int64_t rows, TensorMap* map) {
  return make_tensor_map(name, boxed_heads<Boxes>(type, x, batch, heads, rows), map);
}

/// q or o in tiles of queries. A box has kRows / n rows of each of n heads: the first row of every
/// head, then the second ones. Heads come before rows in the map.
template <class Boxes>
Status make_query_map(const char* name, const AttentionForward& p, const TensorView& x,
                      int log2_pack, TensorMap* map) {
  BoxedTensor tensor = boxed_heads<Boxes>(p.type, x, p.batch, p.heads, p.queries);
  std::swap(tensor.extents[1], tensor.extents[2]);
  std::swap(tensor.strides[0], tensor.strides[1]);
  tensor.box[1] = 1 << log2_pack, tensor.box[2] = Boxes::kRows >> log2_pack;
  return make_tensor_map(name, tensor, map);
}

/// Whether TMA takes the rows of all that is read, with a second pair or without, and of o if it
/// stores them.
inline Status check_boxes(const AttentionForward& p, bool has_far, bool stores = true) {
  using Boxes = HeadBoxes<__half, 64, 64>;  // strides are asked for, whatever the extents
  for (const auto& [name, x, heads, rows] : {std::tuple{"q", &p.q, p.heads, p.queries},
                                             {"k", &p.k, p.kv_heads, p.keys},
                                             {"q_far", &p.q_far, p.heads, p.queries},
                                             {"k_far", &p.k_far, p.kv_heads, p.keys},
                                             {"v", &p.v, p.kv_heads, p.keys},
                                             {"o", &p.o, p.heads, p.queries}}) {
    const bool is_unused = (!has_far && (x == &p.q_far || x == &p.k_far)) || (!stores && x == &p.o);
    if (is_unused || rows == 0) continue;
    const DType type = x == &p.o ? output_type(p) : p.type;
    TILE_TRY(check_tensor_map(name, boxed_heads<Boxes>(type, *x, p.batch, heads, rows)));
  }
  return {};
}

}  // namespace tile
