// What attention with a rotation is refused for, by which words, and how much memory a step needs.
#include <string>
#include <type_traits>

#include "attention/attention.hpp"
#include "rotary/tables.hpp"
#include "tile/host/attention_argument.hpp"

namespace rope {
namespace {

using tile::key_rows, tile::product, tile::query_rows, tile::TensorArgument, tile::unsupported;

template <class Call>
RotaryProblem rotation(const Call& p) {
  RotaryProblem r{.type = p.type,
                  .batch = p.batch,
                  .length = p.queries,
                  .heads = p.heads,
                  .kv_heads = p.kv_heads,
                  .head_dim = p.head_dim,
                  .rotary_dim = p.rotary.rotary_dim};
  r.layout = p.rotary.layout;
  r.first_position = p.rotary.first_position;
  r.table_positions = p.rotary.table_positions;
  r.attention_factor = p.rotary.attention_factor;
  r.q = p.q.stride, r.k = p.k.stride;
  return r;
}

/// Refuses what an attention can have and this one has not.
template <class Call>
tile::Status check_absent(const Call& p) {
  if (p.keys != p.queries) {
    return unsupported("keys", std::to_string(p.keys) + " are not as many as the queries, " +
                                   std::to_string(p.queries));
  }
  TILE_TRY(tile::check_causal_or_full(p));
  if (p.query_lengths) return unsupported("query_lengths", "is not null");
  if (p.key_lengths) return unsupported("key_lengths", "is not null");
  if (p.rotary.far != tile::FarRotation::none) return unsupported("far", "no key is far");
  return tile::check_no_far_pair(p);
}

template <class Call>
tile::Status check_numbers(const Call& p) {
  TILE_TRY(tile::check_attention_sizes(p));
  TILE_TRY(check_absent(p));
  return validate_sizes(rotation(p));
}

std::vector<TensorArgument> inputs_of(const AttentionForward& p) {
  return {query_rows(p, "q", p.q.data, p.q.stride), key_rows(p, "k", p.k.data, p.k.stride),
          key_rows(p, "v", p.v.data, p.v.stride)};
}
std::vector<TensorArgument> outputs_of(const AttentionForward& p) {
  return {query_rows(p, "o", p.o.data, p.o.stride)};
}
std::vector<TensorArgument> inputs_of(const AttentionBackward& p) {
  return {query_rows(p, "q", p.q.data, p.q.stride), key_rows(p, "k", p.k.data, p.k.stride),
          key_rows(p, "v", p.v.data, p.v.stride), query_rows(p, "o", p.o.data, p.o.stride),
          query_rows(p, "dout", p.dout.data, p.dout.stride)};
}
std::vector<TensorArgument> outputs_of(const AttentionBackward& p) {
  return {query_rows(p, "dq", p.dq.data, p.dq.stride), key_rows(p, "dk", p.dk.data, p.dk.stride),
          key_rows(p, "dv", p.dv.data, p.dv.stride)};
}

template <class Call>
tile::Status check_all_tensors(const Call& p, const double* frequencies) {
  TILE_TRY(check_numbers(p));
  constexpr bool kIsForward = std::is_same_v<Call, AttentionForward>;
  std::vector<TensorArgument> inputs = inputs_of(p), outputs = outputs_of(p);
  const RotaryBuffers tables{.cos = p.rotary.cos,
                             .sin = p.rotary.sin,
                             .frequencies = frequencies,
                             .positions = p.rotary.positions};
  for (const TensorArgument& table : tables_of(rotation(p), tables)) inputs.push_back(table);
  TensorArgument lse = tile::lse_of(p, p.lse);
  lse.may_be_null = kIsForward;
  (kIsForward ? outputs : inputs).push_back(lse);
  TILE_TRY(tile::check_tensors(is_empty(p), inputs, outputs, {p.workspace, p.workspace_bytes}));
  return is_empty(p) ? tile::Status{} : check_tables(rotation(p), tables);
}

template <class Call>
tile::Status validate_all(const Call& p) {
  TILE_TRY(tile::check_requirements(k16Bits, {}, p.type));
  return check_all_tensors(p, nullptr);
}

template <class Call>
tile::Status check_kernels(const Call& p, std::int64_t workspace_bytes) {
  std::vector<TensorArgument> tensors = inputs_of(p);
  for (const TensorArgument& output : outputs_of(p)) tensors.push_back(output);
  TILE_TRY(tile::check_row_chunks(p.type, tensors));
  if (p.head_dim != 64 && p.head_dim != 128) {
    return unsupported("head_dim", std::to_string(p.head_dim) + " is neither 64 nor 128");
  }
  if (!p.rotary.cos) return unsupported("cos", "is null");
  if (!p.rotary.sin) return unsupported("sin", "is null");
  TILE_TRY(check_tables_aligned(p.rotary.cos, p.rotary.sin));
  return tile::check_workspace(workspace_bytes, p.workspace_bytes);
}

std::int64_t bytes_of_copies(const tile::Attention& p) {
  return product({2, p.batch, p.queries, p.heads + p.kv_heads, p.head_dim});
}

}  // namespace

RotaryProblem rotation_of(const AttentionForward& p) { return rotation(p); }
RotaryProblem rotation_of(const AttentionBackward& p) { return rotation(p); }

tile::Status validate(const AttentionForward& p) { return validate_all(p); }
tile::Status validate(const AttentionBackward& p) { return validate_all(p); }

tile::Status validate_sizes(const AttentionForward& p) { return check_numbers(p); }
tile::Status validate_sizes(const AttentionBackward& p) { return check_numbers(p); }

tile::Status validate_tensors(const AttentionForward& p, const double* frequencies) {
  return check_all_tensors(p, frequencies);
}
tile::Status validate_tensors(const AttentionBackward& p, const double* frequencies) {
  return check_all_tensors(p, frequencies);
}

std::int64_t rotated_bytes(const AttentionForward& p) { return bytes_of_copies(p); }
std::int64_t stats_bytes(const AttentionBackward& p) {
  return product({8, p.batch, p.heads, (p.queries + 127) / 128 * 128});
}
std::int64_t composed_bytes(const AttentionBackward& p) {
  std::int64_t all = 0;
  return __builtin_add_overflow(stats_bytes(p), bytes_of_copies(p), &all) ? INT64_MAX : all;
}

tile::Status check_attention(const AttentionForward& p, std::int64_t workspace_bytes) {
  return check_kernels(p, workspace_bytes);
}
tile::Status check_attention(const AttentionBackward& p, std::int64_t workspace_bytes) {
  return check_kernels(p, workspace_bytes);
}

}  // namespace rope
