// A call of attention, from the C interface to the launcher: its tensors, its sizes and its
// options. Chapters 05, 06 and 07 have these structs; what a chapter has no use for stays at its
// default, which its arguments.cpp sees to.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tile/host/device.hpp"
#include "tile/host/dtype.hpp"
#include "tile/host/rotary.hpp"
#include "tile/host/strides.hpp"
#include "tile/mask.hpp"

namespace tile {

/// The size of a window without an end.
inline constexpr std::int64_t kUnlimited = kMaxLength;

/// A tensor of heads' rows on the device, [batch][length][heads][head_dim]. An input is only read.
/// Without data it is not there.
struct TensorView {
  void* data = nullptr;  // its first element, aligned to an element
  Strides stride{};
};

/// What both passes have. Query i stands beside key i + keys - queries, and sees `left` keys before
/// and `right` after it (tile/mask.hpp): right = 0 is causal. heads / kv_heads heads of q share one
/// of k and v. A batch entry may have lengths of its own: queries and keys beyond them do not
/// exist.
struct Attention {
  DType type;
  std::int64_t batch, heads, queries, keys, head_dim;
  std::int64_t kv_heads = heads;  // divides heads
  std::int64_t left = kUnlimited, right = kUnlimited;
  float scale = 1;  // positive and finite; 1 / sqrt(head_dim) is usual
  /// With a second q and k: a key less than this far from where the query stands is near, and its
  /// score is of the first pair. 0 or less: every key is far.
  std::int64_t window = kUnlimited;
  /// Scores are multiplied by 1 - part + part exp(-rate distance), of the distance of query and
  /// key.
  float distance_part = 0, distance_rate = 0;  // part from 0, which is no factor, to 1; rate from 0
  Rotary rotary = {};
  const int* query_lengths = nullptr;  // [batch], each at most queries; null: all are there
  const int* key_lengths = nullptr;    // [batch], each at most keys; null: all are there
  /// Of e4m3, [batch][kv_heads]: what q, k and v are multiplied with, positive; null: 1.
  const float *q_scale = nullptr, *k_scale = nullptr, *v_scale = nullptr;
  /// How many multiprocessors the persistent blocks of the forward pass leave to another kernel.
  /// Not negative; one block runs in any case.
  int free_multiprocessors = 0;
  void* workspace = nullptr;         // aligned to 16 bytes; holds nothing before or after
  std::int64_t workspace_bytes = 0;  // at least what the step's row says
};

/// Persistent blocks at most: one on each multiprocessor that is not left free.
inline unsigned persistent_blocks(const Attention& p) {
  return static_cast<unsigned>(std::max(1, device().multiprocessors - p.free_multiprocessors));
}

/// Of o: e4m3 has bf16.
inline DType output_type(const Attention& p) {
  return p.type == DType::e4m3 ? DType::bf16 : p.type;
}

/// What is written overlaps nothing else.
struct AttentionForward : Attention {
  TensorView q{nullptr, packed_strides(queries, heads, head_dim)};
  TensorView k{nullptr, packed_strides(keys, kv_heads, head_dim)};
  TensorView v{nullptr, packed_strides(keys, kv_heads, head_dim)};
  TensorView o{nullptr, packed_strides(queries, heads, head_dim)};
  float* lse = nullptr;  // [batch][heads][queries]; null if not needed
  // A second pair, for far keys.
  TensorView q_far{nullptr, packed_strides(queries, heads, head_dim)};
  TensorView k_far{nullptr, packed_strides(keys, kv_heads, head_dim)};
};

/// What is written overlaps nothing else; but gradients may be interleaved, as in one tensor of
/// [batch][length][heads].
struct AttentionBackward : Attention {
  TensorView q{nullptr, packed_strides(queries, heads, head_dim)};
  TensorView k{nullptr, packed_strides(keys, kv_heads, head_dim)};
  TensorView v{nullptr, packed_strides(keys, kv_heads, head_dim)};
  TensorView o{nullptr, packed_strides(queries, heads, head_dim)};  // from the forward pass
  const float* lse = nullptr;  // [batch][heads][queries], from the forward pass too
  TensorView dout{nullptr, packed_strides(queries, heads, head_dim)};
  TensorView dq{nullptr, packed_strides(queries, heads, head_dim)};
  TensorView dk{nullptr, packed_strides(keys, kv_heads, head_dim)};
  TensorView dv{nullptr, packed_strides(keys, kv_heads, head_dim)};
  // Of the second pair.
  TensorView q_far{nullptr, packed_strides(queries, heads, head_dim)};
  TensorView k_far{nullptr, packed_strides(keys, kv_heads, head_dim)};
  TensorView dq_far{nullptr, packed_strides(queries, heads, head_dim)};
  TensorView dk_far{nullptr, packed_strides(keys, kv_heads, head_dim)};
};

}  // namespace tile
