// Shared by the C interfaces of chapters with heads: strides, tensors of doubles on the host, and
// the steps from a caller's struct to an attention.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "harness/attention_reference.hpp"
#include "harness/c/c_interface.hpp"
#include "tile/host/attention.hpp"
#include "tile/host/strides.hpp"

namespace tile::c {

/// Strides of a caller; all zero: those of [batch][length][heads][head_dim] without gaps.
inline Strides strides_of(const std::int64_t (&given)[3], std::int64_t length, std::int64_t heads,
                          std::int64_t head_dim) {
  if (given[0] == 0 && given[1] == 0 && given[2] == 0) {
    return packed_strides(length, heads, head_dim);
  }
  return {given[0], given[1], given[2]};
}

/// Packed strides are products, which must not overflow before validate() has seen the extents.
/// `together` names all of them.
inline Status check_countable(
    std::string_view together,
    std::initializer_list<std::pair<std::string_view, std::int64_t>> extents) {
  std::int64_t all = 1;
  for (const auto& [name, extent] : extents) {
    if (extent < 0) return invalid_argument(name, std::to_string(extent) + " is negative");
    if (__builtin_mul_overflow(all, extent > 0 ? extent : 1, &all)) {
      return unsupported(together, "their product overflows");
    }
  }
  return {};
}

/// [batch][length][heads][dim].
struct TensorShape {
  std::int64_t batch, length, heads, dim;
};

/// Calls `access` with each element of a tensor, in their order.
template <class Double, class Access>
void for_each_element(Double* data, const Strides& stride, const TensorShape& shape,
                      Access access) {
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t row = 0; row < shape.length; ++row) {
      for (std::int64_t head = 0; head < shape.heads; ++head) {
        Double* from = data + b * stride.batch + row * stride.row + head * stride.head;
        for (std::int64_t d = 0; d < shape.dim; ++d) access(from[d]);
      }
    }
  }
}

/// Copies a tensor without gaps, and back into the strided one.
inline std::vector<double> packed(const void* data, const Strides& stride,
                                  const TensorShape& shape) {
  std::vector<double> values;
  for_each_element(static_cast<const double*>(data), stride, shape,
                   [&](double x) { values.push_back(x); });
  return values;
}
inline void unpack(const std::vector<double>& from, const Strides& stride, const TensorShape& shape,
                   void* to) {
  auto next = from.begin();
  for_each_element(static_cast<double*>(to), stride, shape, [&](double& x) { x = *next++; });
}

// ---- Attention of queries and keys ----

/// A caller's tensor of queries' rows, or of keys'.
inline TensorView query_view(const Attention& p, const tile_tensor& given) {
  return {given.data, strides_of(given.strides, p.queries, p.heads, p.head_dim)};
}
inline TensorView key_view(const Attention& p, const tile_tensor& given) {
  return {given.data, strides_of(given.strides, p.keys, p.kv_heads, p.head_dim)};
}

/// Reads type, sizes and scale, with defaults filled in.
template <class Args>
Status read_attention_sizes(const Args& given, Attention* p) {
  TILE_TRY(read_type(given.type, &p->type));
  constexpr std::string_view kTogether = "queries, keys, heads, kv_heads and head_dim";
  TILE_TRY(check_countable(
      kTogether,
      {{"heads", given.heads}, {"queries", given.queries}, {"head_dim", given.head_dim}}));
  TILE_TRY(check_countable(kTogether, {{"kv_heads", given.kv_heads},
                                       {"heads", given.kv_heads == 0 ? given.heads : 0},
                                       {"keys", given.keys},
                                       {"head_dim", given.head_dim}}));
  p->batch = given.batch;
  p->heads = given.heads;
  p->queries = given.queries;
  p->keys = given.keys;
  p->head_dim = given.head_dim;
  p->kv_heads = given.kv_heads == 0 ? given.heads : given.kv_heads;
  p->scale = given.scale == 0 ? 1 / std::sqrt(static_cast<float>(p->head_dim)) : given.scale;
  return {};
}

/// Leaves rotary_dim 0, which is no rotation in the library, to the chapters that rotate.
inline Status read_rotation(const tile_rotation& given, Rotary* rotary) {
  bool interleaved = false;
  TILE_TRY(read_flag("interleaved", given.interleaved, &interleaved));
  rotary->cos = static_cast<const float*>(given.cos);
  rotary->sin = static_cast<const float*>(given.sin);
  rotary->positions = given.positions;
  rotary->rotary_dim = given.rotary_dim;
  rotary->table_positions = given.table_positions;
  rotary->first_position = given.first_position;
  rotary->layout = interleaved ? RotaryLayout::interleaved : RotaryLayout::half_split;
  if (given.attention_factor != 0) rotary->attention_factor = given.attention_factor;
  // The numbers of tile.h are those of the enumerators, and the chapters refuse others.
  rotary->far = static_cast<FarRotation>(given.far);
  if (given.far_factor != 0) rotary->far_factor = given.far_factor;
  return {};
}

/// For chapters that rotate nothing: what they do not read must not be given either.
inline Status check_no_rotation(const tile_rotation& given) {
  const bool has_pointers = given.cos || given.sin || given.frequencies || given.positions;
  const bool has_sizes =
      given.rotary_dim != 0 || given.table_positions != 0 || given.first_position != 0;
  const bool has_options = given.interleaved != 0 || given.attention_factor != 0 ||
                           given.far != TILE_FAR_NONE || given.far_factor != 0;
  if (!has_pointers && !has_sizes && !has_options) return {};
  return unsupported("rotation", "this attention rotates no q and k");
}

/// What the structs of both directions share. `window` is used if there is a second pair; without
/// one, a window that is not 0 reaches the chapter, which refuses it.
template <class Args, class Call>
Status read_both_directions(const Args& given, Call* p) {
  TILE_TRY(read_attention_sizes(given, p));
  bool causal = false, windowed = false;
  TILE_TRY(read_flag("causal", given.causal, &causal));
  TILE_TRY(read_flag("windowed", given.windowed, &windowed));
  if (windowed) p->left = given.left, p->right = given.right;
  if (causal && p->right > 0) p->right = 0;
  p->q = query_view(*p, given.q);
  p->k = key_view(*p, given.k);
  p->v = key_view(*p, given.v);
  p->o = query_view(*p, given.o);
  p->q_far = query_view(*p, given.q_far);
  p->k_far = key_view(*p, given.k_far);
  if (p->q_far.data || p->k_far.data || given.window != 0) p->window = given.window;
  p->query_lengths = given.query_lengths;
  p->key_lengths = given.key_lengths;
  p->workspace = given.workspace;
  p->workspace_bytes = given.workspace_bytes;
  return read_rotation(given.rotation, &p->rotary);
}

/// Reads a caller's struct, for chapters 05, 06 and 07.
inline Status read_attention(const tile_attention_args& given, AttentionForward* p) {
  TILE_TRY(read_both_directions(given, p));
  p->q_scale = given.q_scale, p->k_scale = given.k_scale, p->v_scale = given.v_scale;
  p->free_multiprocessors = given.free_multiprocessors;
  p->lse = static_cast<float*>(given.lse);
  return {};
}
inline Status read_attention(const tile_attention_backward_args& given, AttentionBackward* p) {
  TILE_TRY(read_both_directions(given, p));
  p->lse = static_cast<const float*>(given.lse);
  p->dout = query_view(*p, given.dout);
  p->dq = query_view(*p, given.dq);
  p->dk = key_view(*p, given.dk);
  p->dv = key_view(*p, given.dv);
  p->dq_far = query_view(*p, given.dq_far);
  p->dk_far = key_view(*p, given.dk_far);
  return {};
}

// ---- References: doubles of the host ----

/// The frequencies of a rotation, which a reference must have; before that is checked, null or not.
inline const double* frequencies_of(const tile_rotation& given) {
  return static_cast<const double*>(given.frequencies);
}
inline Status read_frequencies(const tile_rotation& given, const Rotary& rotary,
                               std::span<const double>* frequencies) {
  const double* data = frequencies_of(given);
  if (!data && rotary.rotary_dim > 0) return invalid_argument("frequencies", "is null");
  *frequencies = {data, static_cast<std::size_t>(rotary.rotary_dim / 2)};
  return {};
}

/// Copies a call's tensors without gaps, and results into its strided ones.
class AttentionTensors {
 public:
  explicit AttentionTensors(const Attention& p) : p_(p) {}

  std::vector<double> queries(const TensorView& x) const {
    return packed(x.data, x.stride, of_queries());
  }
  std::vector<double> keys(const TensorView& x) const {
    return packed(x.data, x.stride, of_keys());
  }
  std::vector<double> lse(const void* data) const { return packed(data, lse_strides(), of_lse()); }
  /// Of each batch entry; empty if there are none.
  std::vector<int> lengths(const int* n) const {
    return n ? std::vector<int>(n, n + p_.batch) : std::vector<int>{};
  }

  // What is not there is left out.
  void put_queries(const Expected& from, const TensorView& to) const {
    if (to.data) unpack(from.value, to.stride, of_queries(), to.data);
  }
  void put_keys(const Expected& from, const TensorView& to) const {
    if (to.data) unpack(from.value, to.stride, of_keys(), to.data);
  }
  void put_lse(const Expected& from, void* to) const {
    if (to) unpack(from.value, lse_strides(), of_lse(), to);
  }

 private:
  TensorShape of_queries() const { return {p_.batch, p_.queries, p_.heads, p_.head_dim}; }
  TensorShape of_keys() const { return {p_.batch, p_.keys, p_.kv_heads, p_.head_dim}; }
  // lse is a tensor whose rows are one element wide.
  TensorShape of_lse() const { return {p_.batch, p_.queries, p_.heads, 1}; }
  Strides lse_strides() const { return {p_.heads * p_.queries, p_.queries, 1}; }

  const Attention& p_;
};

/// Fills the outputs of a call.
inline void put(const AttentionForward& p, const AttentionExpected& from) {
  const AttentionTensors tensors(p);
  tensors.put_queries(from.o, p.o);
  tensors.put_lse(from.lse, p.lse);
}
inline void put(const AttentionBackward& p, const AttentionGradients& from) {
  const AttentionTensors tensors(p);
  tensors.put_queries(from.dq, p.dq);
  tensors.put_keys(from.dk, p.dk);
  tensors.put_keys(from.dv, p.dv);
  tensors.put_queries(from.far_dq, p.dq_far);
  tensors.put_keys(from.far_dk, p.dk_far);
}

// ---- From a caller's struct to an operation ----

/// Reads a caller's struct, whose size is right, into a call of the chapter.
template <class Call, class Args>
using Reader = std::type_identity_t<Status(const Args& given, Call* call)>;

template <class Call, class Args>
tile_status run_operation(const Ladder<Call>& ladder, Reader<Call, Args>* read, const Args* args) {
  return operation([&]() -> Status {
    Args given;
    Call call{};
    TILE_TRY(read_arguments(args, &given));
    TILE_TRY(read(given, &call));
    return launch_step(ladder, given.step, given.stream, call);
  });
}

/// Reports the workspace of the step that runs the call: of the one that is named or of an earlier
/// one, or of the best. Null pointers count as aligned.
template <class Call, class Args>
tile_status tell_workspace_bytes(const Ladder<Call>& ladder, Reader<Call, Args>* read,
                                 EnumSet<DType> types,
                                 std::type_identity_t<Status(const Call&)>* validate_sizes,
                                 const Args* args, std::int64_t* bytes) {
  return guarded([&]() -> Status {
    Args given;
    Call call{};
    if (!bytes) return invalid_argument("bytes", "is null");
    *bytes = 0;
    TILE_TRY(read_arguments(args, &given));
    TILE_TRY(read(given, &call));
    TILE_TRY(check_requirements(types, {}, call.type));
    TILE_TRY(validate_sizes(call));
    call.workspace = nullptr;
    call.workspace_bytes = INT64_MAX;
    return tell_workspace_bytes<Ladder<Call>, Call>(ladder, given.step, call, bytes);
  });
}

/// Checks the tensors, which are doubles of the host, and fills the outputs.
template <class Call, class Args>
using Reference = std::type_identity_t<Status(const Args& given, const Call& call)>;

template <class Call, class Args>
tile_status run_reference(const Ladder<Call>&, Reader<Call, Args>* read,
                          Reference<Call, Args>* compute, const Args* args) {
  return operation([&]() -> Status {
    Args given;
    Call call{};
    TILE_TRY(read_arguments(args, &given));
    TILE_TRY(read(given, &call));
    TILE_TRY(check_reference_type(call.type));
    return compute(given, call);
  });
}

}  // namespace tile::c
