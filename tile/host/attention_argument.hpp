// Checks of arguments that the chapters with attention share: sizes, and tensors as rows of heads.
#pragma once

#include <cmath>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "tile/host/attention.hpp"
#include "tile/host/tensor_argument.hpp"
#include "tile/host/text.hpp"
#include "tile/mask.hpp"

namespace tile {

/// Checks batch, heads, kv_heads, queries, keys, head_dim and scale, and that only e4m3 has scales
/// of its own.
template <class Problem>
Status check_attention_sizes(const Problem& p) {
  for (const auto& [name, extent] : {std::pair{"batch", p.batch},
                                     {"heads", p.heads},
                                     {"kv_heads", p.kv_heads},
                                     {"queries", p.queries},
                                     {"keys", p.keys},
                                     {"head_dim", p.head_dim},
                                     {"free_multiprocessors", p.free_multiprocessors}}) {
    if (extent < 0) return invalid_argument(name, std::to_string(extent) + " is negative");
  }
  for (const auto& [name, extent] : {std::pair{"queries", p.queries},
                                     {"keys", p.keys},
                                     {"head_dim", p.head_dim},
                                     {"heads", p.heads},
                                     {"batch", p.batch}}) {
    if (extent > kMaxLength) {
      return unsupported(name, std::to_string(extent) + " is more than 2^29");
    }
  }
  if (p.head_dim == 0) return invalid_argument("head_dim", "is 0");
  if (p.heads > 0 && (p.kv_heads == 0 || p.heads % p.kv_heads != 0)) {
    return invalid_argument("kv_heads", std::to_string(p.kv_heads) + " does not divide " +
                                            std::to_string(p.heads) + " heads");
  }
  if (!(p.scale > 0) || !std::isfinite(p.scale * std::numbers::log2e_v<float>)) {
    return invalid_argument("scale", number(p.scale) + " is not positive and finite");
  }
  for (const auto& [name, scales] :
       {std::pair{"q_scale", p.q_scale}, {"k_scale", p.k_scale}, {"v_scale", p.v_scale}}) {
    if (scales && p.type != DType::e4m3) return invalid_argument(name, "is for e4m3 alone");
  }
  return {};
}

inline std::int64_t element_bytes(DType type) {
  return static_cast<std::int64_t>(size_bytes(type));
}

template <class Problem>
TensorArgument query_rows(const Problem& p, const char* name, const void* data, Strides stride) {
  return {name, data, stride, p.batch, p.queries, p.heads, p.head_dim, element_bytes(p.type)};
}
template <class Problem>
TensorArgument key_rows(const Problem& p, const char* name, const void* data, Strides stride) {
  return {name, data, stride, p.batch, p.keys, p.kv_heads, p.head_dim, element_bytes(p.type)};
}
template <class Problem>
TensorArgument query_rows(const Problem& p, const char* name, const TensorView& x) {
  return query_rows(p, name, x.data, x.stride);
}
template <class Problem>
TensorArgument key_rows(const Problem& p, const char* name, const TensorView& x) {
  return key_rows(p, name, x.data, x.stride);
}
inline TensorArgument output_rows(const Attention& p, const char* name, const TensorView& x) {
  TensorArgument rows = query_rows(p, name, x);
  rows.element_bytes = element_bytes(output_type(p));
  return rows;
}
template <class Problem>
TensorArgument scales(const Problem& p, const char* name, const float* data) {
  return {name, data, {p.kv_heads, 1, 0}, p.batch, 1, p.kv_heads, 1, 4};
}
template <class Problem>
TensorArgument lse_of(const Problem& p, const float* lse) {  // with fp64, of doubles
  const Strides stride{p.heads * p.queries, p.queries, 1};
  return {"lse", lse, stride, p.batch, p.queries, p.heads, 1, p.type == DType::fp64 ? 8 : 4};
}
template <class Problem>
TensorArgument lengths(const Problem& p, const char* name, const int* data) {
  return {name, data, {1, 0, 0}, p.batch, 1, 1, 1, 4};
}
inline TensorArgument optional(TensorArgument x) {
  x.may_be_null = true;
  return x;
}

// What a chapter has no use for must not be given: it would be ignored in silence.

inline Status check_no_rotary(const Attention& p) {
  const Rotary& r = p.rotary;
  const bool is_far = r.far != FarRotation::none;
  if (!r.cos && !r.sin && !r.positions && r.rotary_dim == 0 && !is_far) return {};
  return unsupported("rotary", "this attention rotates no q and k");
}

/// Neither a second pair of tensors, nor a factor by distance.
template <class Call>
Status check_one_pair(const Call& p) {
  const auto check = [](const char* name, const TensorView& x) -> Status {
    if (!x.data) return {};
    return unsupported(name, "this attention has one pair of q and k");
  };
  TILE_TRY(check("q_far", p.q_far));
  TILE_TRY(check("k_far", p.k_far));
  if constexpr (requires { p.dq_far; }) {
    TILE_TRY(check("dq_far", p.dq_far));
    TILE_TRY(check("dk_far", p.dk_far));
  }
  if (p.distance_part != 0) return unsupported("distance_part", "is not 0");
  return {};
}

/// And no window that tells near keys from far ones.
template <class Call>
Status check_no_far_pair(const Call& p) {
  TILE_TRY(check_one_pair(p));
  if (p.window >= kUnlimited) return {};
  return unsupported("window", std::to_string(p.window) + ", but no key is far");
}

/// Whether a query sees all keys, or those up to where it stands.
inline Status check_causal_or_full(const Attention& p) {
  if (p.left < kUnlimited) return unsupported("left", "there is no such window in this chapter");
  if (p.right == 0 || p.right >= kUnlimited) return {};
  return unsupported("right", std::to_string(p.right) + " is neither 0 nor without an end");
}

/// Whether every row consists of aligned chunks of 16 bytes, and the tensor-core kernels have the
/// head dimension.
inline Status check_head_chunks(DType type, std::int64_t head_dim,
                                const std::vector<TensorArgument>& tensors) {
  if (Status s = check_row_chunks(type, tensors); !s.ok()) return s;
  for (const std::int64_t dim : {16, 32, 64, 128, 256}) {
    if (head_dim == dim) return {};
  }
  return unsupported("head_dim", std::to_string(head_dim) + " is not one of 16, 32, 64, 128, 256");
}

}  // namespace tile
