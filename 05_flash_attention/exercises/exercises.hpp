// What the exercises of chapter 05 are to define. All arrays are fp32 in device memory and have no
// gaps. A query that sees no key has o = 0 and lse = -infinity.
#pragma once

#include "flash_attention.hpp"

namespace flash_attention {

/// 05.1: attention of one head under a mask. visited[i] is the number of tiles of keys that block i
/// has gone through.
struct MaskedHead {
  Mask mask;
  int dim;  // at most 32
  float scale;
  const float* q;  // [queries][dim]
  const float* k;  // [keys][dim]
  const float* v;  // [keys][dim]
  float* o;        // [queries][dim]
  float* visited;  // [blocks], a block for each 8 queries
};
tile::Status visible_tiles(const MaskedHead& head);

/// 05.2: the keys were cut into parts, and each part was an attention of its own.
struct AttentionParts {
  std::int64_t parts, rows, dim;
  const float* o;    // [parts][rows][dim]
  const float* lse;  // [parts][rows], natural logarithms
};
/// o [rows][dim] and lse [rows] of all keys.
tile::Status merge_parts(const AttentionParts& parts, float* o, float* lse);

/// 05.3: causal attention with a bias: a score is scale q k - slope distance, and distance how many
/// keys before the query's own one a key stands. Query i stands beside key i + keys - queries. Head
/// h of `heads`, counted from 1, has the slope 2^(-8 h / heads).
struct BiasedHeads {
  int queries, keys, heads;
  int dim;  // at most 32
  float scale;
  const float* q;  // [queries][heads][dim]
  const float* k;  // [keys][heads][dim]
  const float* v;  // [keys][heads][dim]
  float* o;        // [queries][heads][dim]
  float* lse;      // [queries][heads]
};
tile::Status alibi(const BiasedHeads& heads);

/// 05.4: turns[i][j] is how many tiles of 32 keys after the j-th have a key that is seen by one of
/// the i-th 16 queries; and -1 if the j-th has none. At most 1,024 tiles of keys.
tile::Status whose_turn(const Mask& mask, float* turns);  // [tiles of queries][tiles of keys]

/// 05.5: o = p v, with products of e4m3. The key of each place in operand A is to be found.
tile::Status order_of_keys(const float* p,  // [16][32], weights
                           const float* v,  // [32][8]
                           float* o);       // [16][8]

/// 05.6: shares[i][s] are the first tile of 32 keys, and the one past the last, that the s-th of
/// `splits` blocks visits for the i-th 16 queries. There are queries, and at most 1,024 splits.
tile::Status shares_of_keys(const Mask& mask, int splits,
                            float* shares);  // [tiles of queries][splits][2]

}  // namespace flash_attention
