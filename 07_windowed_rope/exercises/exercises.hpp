// What the exercises of chapter 07 are to define. All arrays are fp32 in device memory and have no
// gaps. Query i stands beside key i + keys - queries.
#pragma once

#include "windowed/window.hpp"
#include "windowed/windowed_rope.hpp"

namespace windowed_rope {

/// 07.1: attention of one head under a causal mask, with two scores. The first `sinks` keys are
/// near, and so are those that stand less than `window` before the query. A query that sees no key
/// has o = 0.
struct SinkHead {
  Mask mask;
  int window, sinks;  // at least 0
  int dim;            // at most 32
  float scale;
  const float* q1;  // [queries][dim]
  const float* k1;  // [keys][dim]
  const float* q2;  // [queries][dim]
  const float* k2;  // [keys][dim]
  const float* v;   // [keys][dim]
  float* o;         // [queries][dim]
  // [blocks][tiles], a block for each 8 queries, a tile for each 32 keys: what the block has loaded
  // of it. 0 nothing, 1 K1, 2 K2, 3 both.
  float* loaded;
};
tile::Status sink_keys(const SinkHead& head);

/// 07.2: rows of one head of q and of k, turned for far keys as in Leaky ReRoPE. Row r stands at
/// position first + r. Pairs are half-split, and pair i has the frequency 10000^(-2 i / dim).
struct LeakyRows {
  int first, count;
  int dim;         // even
  int window;      // W, at least 0
  int factor;      // at least 1: how much more slowly the distance grows from W on
  const float* q;  // [count][dim]
  const float* k;  // [count][dim]
  float* cos;      // [2][count][dim / 2], of queries and of keys: made on the way
  float* sin;      // [2][count][dim / 2], as cos
  float* q2;       // [count][dim]
  float* k2;       // [count][dim]
};
tile::Status leaky_tables(const LeakyRows& rows);

/// 07.3: the gradients of one head's keys. A key that stands less than `window` from the query,
/// before or after it, is near: its score was scale q1 k1. All others are far: scale q2 k2.
struct FarGradient {
  int queries, keys, dim;
  int window;  // at least 0
  float scale;
  const float* weights;   // P, [queries][keys]
  const float* dweights;  // dP, [queries][keys]
  const float* delta;     // [queries]
  const float* q1;        // [queries][dim]
  const float* q2;        // [queries][dim]
  float* dk1;             // [keys][dim]
  float* dk2;             // [keys][dim]
};
tile::Status far_gradient(const FarGradient& gradient);

}  // namespace windowed_rope
