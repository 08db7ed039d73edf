// Whether TMA takes the tensors of a call of attention.
#pragma once

#include <tuple>

#include "tile/head_boxes.cuh"
#include "tile/host/attention_launch.hpp"

namespace tile {

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
    TILE_TRY(check_tensor_map(name, Boxes::boxed(type, x->data, p.batch, heads, rows, x->stride)));
  }
  return {};
}

}  // namespace tile
