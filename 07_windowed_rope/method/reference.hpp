// What a method's steps are compared with.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "harness/attention_reference.hpp"
#include "method/method.hpp"

namespace windowed_rope::method {

/// Tensors without padding. `rows` below are numbers of queries among batch * queries.
struct ForwardInputs {
  std::span<const double> q;            // [batch][queries][heads][head_dim]
  std::span<const double> k, v;         // [batch][keys][kv_heads][head_dim]
  std::span<const double> frequencies;  // [rotary_dim / 2]
  std::vector<int> query_lengths = {}, key_lengths = {};
};

/// o and lse in double, and how far a correct kernel may be from them, which rounds rotated q and k
/// to the type, of these rows. Empty means all rows.
tile::AttentionExpected reference(const AttentionForward& p, const ForwardInputs& inputs,
                                  std::span<const std::int64_t> rows = {});

struct BackwardInputs {
  std::span<const double> q;            // [batch][queries][heads][head_dim]
  std::span<const double> k, v;         // [batch][keys][kv_heads][head_dim]
  std::span<const double> o, lse;       // as q; [batch][queries][heads]
  std::span<const double> dout;         // as q
  std::span<const double> frequencies;  // [rotary_dim / 2]
  std::vector<int> query_lengths = {}, key_lengths = {};
};

/// dq, dk and dv. A kernel may also round the gradients of rotated rows before it turns them back.
tile::AttentionGradients reference(const AttentionBackward& p, const BackwardInputs& inputs,
                                   std::span<const std::int64_t> query_rows = {},
                                   std::span<const std::int64_t> key_rows = {});

}  // namespace windowed_rope::method
