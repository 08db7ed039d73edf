// The reference of every chapter with attention: o, lse and gradients in double, and how far a
// correct kernel may be from them. Of a call it reads the sizes, the mask, the scale, the window
// and the distance factor; if there is a second pair of q and k, its scores are those of far keys.
// With fp64 the bounds are those of fp32, with e4m3 o is bf16; inputs are as the scales leave them.
// Its derivation stands in attention_reference.cpp.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "harness/compare.hpp"
#include "tile/host/attention.hpp"

namespace tile {

struct AttentionSizes {
  std::int64_t batch, heads, kv_heads, queries, keys, head_dim;
};
/// A call of this size without tensors, with the usual scale and no mask.
template <class Call>
Call attention_call(DType type, const AttentionSizes& n) {
  Call p{{.type = type,
          .batch = n.batch,
          .heads = n.heads,
          .queries = n.queries,
          .keys = n.keys,
          .head_dim = n.head_dim,
          .kv_heads = n.kv_heads}};
  p.scale = 1 / std::sqrt(static_cast<float>(n.head_dim));
  return p;
}

/// The values of a call's inputs, without padding. o, lse ([batch][queries][heads]) and dout are of
/// the backward pass only, q_far and k_far of a second pair.
struct AttentionRows {
  std::vector<double> q = {}, k = {}, v = {}, q_far = {}, k_far = {}, o = {}, lse = {}, dout = {};
};

/// What queries of a batch entry see. Its lengths, if there are any, are cut as a kernel cuts them:
/// too long a one counts as the tensor's, a negative one as 0.
Mask mask_of_entry(const Attention& p, const std::vector<int>& query_lengths,
                   const std::vector<int>& key_lengths, std::int64_t entry);

/// A second q and k for the scores of far keys. Without them no key is far.
struct FarInputs {
  std::span<const double> q, k;
  std::span<const double> q_bound = {}, k_bound = {};
};

/// Tensors without padding. If q, k and v are results themselves, which a kernel rounds before it
/// multiplies them, their bounds say how far it may be from these values.
struct AttentionInputs {
  std::span<const double> q;                              // [rows][heads][head_dim]
  std::span<const double> k, v;                           // [batch][keys][kv_heads][head_dim]
  std::vector<int> query_lengths = {}, key_lengths = {};  // of each batch entry; empty: all whole
  std::span<const double> q_bound = {}, k_bound = {};     // as q and k; empty: they are exact
  FarInputs far = {};
  std::span<const double> v_bound = {};
  /// With e4m3: of so many keys tensor cores add up the products with values, and fp32 these sums.
  std::int64_t keys_of_sum = 128;
};
struct AttentionExpected {
  Expected o;    // [rows][heads][head_dim]
  Expected lse;  // [rows][heads]
};

/// For the rows with these numbers: row batch_entry * queries + query. Empty means all rows.
AttentionExpected attention_reference(const Attention& sizes, const AttentionInputs& inputs,
                                      std::span<const std::int64_t> rows = {});

struct AttentionGradientInputs {
  std::span<const double> q;       // [batch][queries][heads][head_dim]
  std::span<const double> k, v;    // [batch][keys][kv_heads][head_dim]
  std::span<const double> o, lse;  // as q; [batch][queries][heads]
  std::span<const double> dout;    // as q
  std::vector<int> query_lengths = {}, key_lengths = {};
  std::span<const double> q_bound = {}, k_bound = {};
  FarInputs far = {};
  std::span<const double> v_bound = {};
};
struct AttentionGradients {
  Expected dq;              // [rows][heads][head_dim]
  Expected dk, dv;          // [rows][kv_heads][head_dim]
  Expected far_dq, far_dk;  // of the second q and k, if there are any
};

/// dq of query_rows, dk and dv of key_rows; empty means all.
AttentionGradients attention_gradients(const Attention& sizes,
                                       const AttentionGradientInputs& inputs,
                                       std::span<const std::int64_t> query_rows = {},
                                       std::span<const std::int64_t> key_rows = {});

}  // namespace tile
