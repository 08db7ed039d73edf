// Shared by the C interfaces of chapters with heads: strides, tensors of doubles on the host, and
// the steps from a caller's struct to an attention.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "harness/c/c_interface.hpp"
#include "harness/compare.hpp"
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

/// Reads type, sizes and scale, with defaults filled in.
template <class Args, class Problem>
Status read_attention_sizes(const Args& given, Problem* p) {
  if (Status s = read_type(given.type, &p->type); !s.ok()) return s;
  constexpr std::string_view kTogether = "queries, keys, heads and head_dim";
  if (Status s = check_countable(
          kTogether,
          {{"heads", given.heads}, {"queries", given.queries}, {"head_dim", given.head_dim}});
      !s.ok()) {
    return s;
  }
  if (Status s = check_countable(kTogether, {{"kv_heads", given.kv_heads},
                                             {"heads", given.kv_heads == 0 ? given.heads : 0},
                                             {"keys", given.keys},
                                             {"head_dim", given.head_dim}});
      !s.ok()) {
    return s;
  }
  p->batch = given.batch;
  p->heads = given.heads;
  p->queries = given.queries;
  p->keys = given.keys;
  p->head_dim = given.head_dim;
  p->kv_heads = given.kv_heads == 0 ? given.heads : given.kv_heads;
  p->scale = given.scale == 0 ? 1 / std::sqrt(static_cast<float>(p->head_dim)) : given.scale;
  return {};
}

template <class Problem>
Strides query_strides(const Problem& p, const std::int64_t (&given)[3]) {
  return strides_of(given, p.queries, p.heads, p.head_dim);
}
template <class Problem>
Strides key_strides(const Problem& p, const std::int64_t (&given)[3]) {
  return strides_of(given, p.keys, p.kv_heads, p.head_dim);
}

/// A caller's tensor of queries' rows, or of keys'.
inline TensorView query_view(const Attention& p, const tile_tensor& given) {
  return {given.data, query_strides(p, given.strides)};
}
inline TensorView key_view(const Attention& p, const tile_tensor& given) {
  return {given.data, key_strides(p, given.strides)};
}

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
  return {};
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

/// Copies its tensors of doubles on the host without gaps, and back into the strided ones.
template <class Problem>
class AttentionTensors {
 public:
  explicit AttentionTensors(const Problem& p) : p_(p) {}

  std::vector<double> queries(const void* data, const Strides& stride) const {
    return packed(data, stride, of_queries());
  }
  std::vector<double> keys(const void* data, const Strides& stride) const {
    return packed(data, stride, of_keys());
  }
  std::vector<double> queries(const TensorView& x) const { return queries(x.data, x.stride); }
  std::vector<double> keys(const TensorView& x) const { return keys(x.data, x.stride); }
  void put_queries(const Expected& from, const TensorView& to) const {
    put_queries(from, to.stride, to.data);
  }
  void put_keys(const Expected& from, const TensorView& to) const {
    put_keys(from, to.stride, to.data);
  }
  std::vector<double> lse(const void* data) const { return packed(data, lse_strides(), of_lse()); }
  std::vector<int> lengths(const int* n) const {
    return n ? std::vector<int>(n, n + p_.batch) : std::vector<int>{};
  }
  void put_queries(const Expected& from, const Strides& stride, void* to) const {
    unpack(from.value, stride, of_queries(), to);
  }
  void put_keys(const Expected& from, const Strides& stride, void* to) const {
    unpack(from.value, stride, of_keys(), to);
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

  const Problem& p_;
};

// ---- From a caller's struct to an operation ----

/// Reads a caller's struct into `given`, and into the problem and buffers of the chapter.
template <class Ladder, class Args>
using Reader =
    std::type_identity_t<Status(const Args* args, Args* given, typename Ladder::Problem* problem,
                                typename Ladder::Buffers* buffers)>;

template <class Ladder, class Args>
tile_status run_operation(const Ladder& ladder, Reader<Ladder, Args>* read, const Args* args) {
  return operation([&]() -> Status {
    Args given;
    typename Ladder::Problem p{};
    typename Ladder::Buffers b{};
    if (Status s = read(args, &given, &p, &b); !s.ok()) return s;
    return launch_step(ladder, given.step, given.stream, p, b);
  });
}

/// Reads a caller's struct, whose size is right, into a call of the chapter.
template <class Call, class Args>
using CallReader = std::type_identity_t<Status(const Args& given, Call* call)>;

template <class Call, class Args>
tile_status run_operation(const Ladder<Call>& ladder, CallReader<Call, Args>* read,
                          const Args* args) {
  return operation([&]() -> Status {
    Args given;
    Call call{};
    TILE_TRY(read_arguments(args, &given));
    TILE_TRY(read(given, &call));
    return launch_step(ladder, given.step, given.stream, call);
  });
}

/// Whose workspace tell_workspace_bytes() reports for a named step.
enum class WorkspaceOf {
  step,   // the step's own, by the sizes only
  taker,  // that of the step that runs: it or a fallback; null pointers count as aligned
};

/// Reports the workspace of the named step, or of the last one.
template <class Ladder, class Args>
tile_status tell_workspace_bytes(const Ladder& ladder, Reader<Ladder, Args>* read,
                                 EnumSet<DType> types, WorkspaceOf whose, const Args* args,
                                 std::int64_t* bytes) {
  return guarded([&]() -> Status {
    Args given;
    typename Ladder::Problem p{};
    typename Ladder::Buffers b{};
    if (!bytes) return invalid_argument("bytes", "is null");
    *bytes = 0;
    if (Status s = read(args, &given, &p, &b); !s.ok()) return s;
    if (Status s = check_requirements(types, {}, p.type); !s.ok()) return s;
    if (Status s = validate_sizes(p); !s.ok()) return s;
    const char* step = given.step ? given.step : ladder.steps.back().name.data();
    Choice choice;
    if (Status s = find_step(ladder, step, &choice.step, p, b); !s.ok()) return s;
    if (whose == WorkspaceOf::taker) {
      if (is_empty(p)) return {};
      b.workspace = nullptr;
      b.workspace_bytes = INT64_MAX;
      if (Status s = choose_step(ladder, choice.step, p, b, &choice); !s.ok()) return s;
    }
    *bytes = workspace_bytes(p, ladder.steps[choice.step].name);
    return {};
  });
}

/// The same of a call; null pointers count as aligned.
template <class Call, class Args>
tile_status tell_workspace_bytes(const Ladder<Call>& ladder, CallReader<Call, Args>* read,
                                 std::type_identity_t<Status(const Call&)>* validate_sizes,
                                 WorkspaceOf whose, const Args* args, std::int64_t* bytes) {
  return guarded([&]() -> Status {
    Args given;
    Call call{};
    if (!bytes) return invalid_argument("bytes", "is null");
    *bytes = 0;
    TILE_TRY(read_arguments(args, &given));
    TILE_TRY(read(given, &call));
    TILE_TRY(validate_sizes(call));
    Choice choice;
    const char* step = given.step ? given.step : ladder.steps.back().name.data();
    TILE_TRY(find_step(ladder, step, &choice.step, call));
    if (whose == WorkspaceOf::taker) {
      if (ladder.is_empty(call)) return {};
      call.workspace = nullptr;
      call.workspace_bytes = INT64_MAX;
      TILE_TRY(choose_step(ladder, choice.step, call, &choice));
    }
    *bytes = workspace_bytes_of(ladder.steps[choice.step], call);
    return {};
  });
}

/// Checks the tensors, which are doubles of the host, and fills the outputs.
template <class Ladder, class Args>
using Reference =
    std::type_identity_t<Status(const Args& given, const typename Ladder::Problem& problem,
                                const typename Ladder::Buffers& buffers)>;

template <class Ladder, class Args>
tile_status run_reference(const Ladder&, Reader<Ladder, Args>* read,
                          Reference<Ladder, Args>* compute, const Args* args) {
  return operation([&]() -> Status {
    Args given;
    typename Ladder::Problem p{};
    typename Ladder::Buffers b{};
    if (Status s = read(args, &given, &p, &b); !s.ok()) return s;
    if (Status s = check_reference_type(p.type); !s.ok()) return s;
    return compute(given, p, b);
  });
}

/// The same of a call.
template <class Call, class Args>
tile_status run_reference(const Ladder<Call>&, CallReader<Call, Args>* read,
                          std::type_identity_t<Status(const Call&)>* compute, const Args* args) {
  return operation([&]() -> Status {
    Args given;
    Call call{};
    TILE_TRY(read_arguments(args, &given));
    TILE_TRY(read(given, &call));
    TILE_TRY(check_reference_type(call.type));
    return compute(call);
  });
}

}  // namespace tile::c
