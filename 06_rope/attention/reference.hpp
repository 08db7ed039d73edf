// The references of attention of q and k that are rotated.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/attention.hpp"
#include "harness/attention_reference.hpp"

namespace rope {

/// Tensors without padding. `rows` below are numbers of tokens among batch * length.
struct AttentionInputs {
  std::span<const double> q;            // [rows][heads][head_dim]
  std::span<const double> k, v;         // [batch][length][kv_heads][head_dim]
  std::span<const double> frequencies;  // [rotary_dim / 2]
  std::vector<int> positions = {};      // [batch][length]; empty: they count
};

/// o and lse in double, and how far a correct kernel may be from them, which rounds rotated q and k
/// to the type, of these rows. Empty means all rows.
tile::AttentionExpected reference(const tile::AttentionForward& call, const AttentionInputs& inputs,
                                  std::span<const std::int64_t> rows = {});

struct AttentionBackwardInputs {
  std::span<const double> q;            // [batch][length][heads][head_dim]
  std::span<const double> k, v;         // [batch][length][kv_heads][head_dim]
  std::span<const double> o, lse;       // as q; [batch][length][heads]
  std::span<const double> dout;         // as q
  std::span<const double> frequencies;  // [rotary_dim / 2]
  std::vector<int> positions = {};
};

/// A kernel may also round dq and dk before it rotates them back.
tile::AttentionGradients reference(const tile::AttentionBackward& call,
                                   const AttentionBackwardInputs& inputs,
                                   std::span<const std::int64_t> query_rows = {},
                                   std::span<const std::int64_t> key_rows = {});

}  // namespace rope
