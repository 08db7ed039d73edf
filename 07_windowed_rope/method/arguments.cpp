// What a call is refused for and by which words, where rotated rows lie in the workspace, and how
// much memory the steps need.
#include <algorithm>
#include <string>
#include <type_traits>

#include "method/method.hpp"
#include "method/tables.hpp"
#include "rotary/rotary.hpp"
#include "tile/host/attention_argument.hpp"

namespace windowed_rope::method {
namespace {

using tile::key_rows, tile::lengths, tile::lse_of, tile::optional, tile::query_rows;
using tile::TensorArgument, tile::TensorView, tile::unsupported;

template <class Call>
constexpr bool kIsBackward = std::is_same_v<Call, AttentionBackward>;

std::vector<TensorArgument> inputs_of(const AttentionForward& p) {
  return {query_rows(p, "q", p.q), key_rows(p, "k", p.k), key_rows(p, "v", p.v)};
}
std::vector<TensorArgument> outputs_of(const AttentionForward& p) {
  return {query_rows(p, "o", p.o), optional(lse_of(p, p.lse))};
}
std::vector<TensorArgument> inputs_of(const AttentionBackward& p) {
  return {query_rows(p, "q", p.q), key_rows(p, "k", p.k),         key_rows(p, "v", p.v),
          query_rows(p, "o", p.o), query_rows(p, "dout", p.dout), lse_of(p, p.lse)};
}
std::vector<TensorArgument> outputs_of(const AttentionBackward& p) {
  return {query_rows(p, "dq", p.dq), key_rows(p, "dk", p.dk), key_rows(p, "dv", p.dv)};
}

/// Refuses what an attention can have and a method has not.
template <class Call>
tile::Status check_absent(const Call& p) {
  TILE_TRY(tile::check_causal_or_full(p));
  if (p.right != 0) {
    return unsupported("causal", "the methods have no rotation for keys after a query");
  }
  if (p.rotary.positions) return unsupported("positions", "is not null: they count from 0");
  if (p.rotary.first_position != 0) return unsupported("first_position", "is not 0");
  return tile::check_one_pair(p);
}

template <class Call>
tile::Status check_numbers(const Call& p) {
  TILE_TRY(tile::check_attention_sizes(p));
  TILE_TRY(validate(p.rotary, p.window));
  TILE_TRY(check_absent(p));
  rope::RotaryProblem r{.type = p.type,
                        .batch = p.batch,
                        .length = p.keys,
                        .heads = p.kv_heads,
                        .kv_heads = 0,
                        .head_dim = p.head_dim,
                        .rotary_dim = p.rotary.rotary_dim};
  r.table_positions = p.rotary.table_positions;
  r.attention_factor = p.rotary.attention_factor;
  r.layout = p.rotary.layout;
  return rope::validate_sizes(r);
}

template <class Call>
tile::Status check_all_tensors(const Call& p, const double* frequencies) {
  TILE_TRY(check_numbers(p));
  std::vector<TensorArgument> inputs = inputs_of(p);
  const tile::Rotary& r = p.rotary;
  const std::int64_t pairs = r.rotary_dim / 2;
  for (const auto& [name, table] : {std::pair{"cos", r.cos}, {"sin", r.sin}}) {
    const bool may_be_null = frequencies != nullptr;
    inputs.push_back(
        {name, table, {0, 0, pairs}, 1, 3 * r.table_positions, 1, pairs, 4, may_be_null});
  }
  inputs.push_back(optional(lengths(p, "query_lengths", p.query_lengths)));
  inputs.push_back(optional(lengths(p, "key_lengths", p.key_lengths)));
  const tile::Workspace workspace{p.workspace, p.workspace_bytes};
  TILE_TRY(check_tensors(is_empty(p), inputs, outputs_of(p), workspace));
  if (is_empty(p) || p.keys <= r.table_positions) return {};
  return tile::invalid_argument("table_positions", std::to_string(r.table_positions) +
                                                       " do not reach the last key's position, " +
                                                       std::to_string(p.keys - 1));
}

template <class Call>
tile::Status check_all(const Call& p) {
  TILE_TRY(tile::check_requirements(kTypes, {}, p.type));
  return check_all_tensors(p, nullptr);
}

tile::Status check_rows(const tile::Attention& p, const std::vector<TensorArgument>& tensors) {
  const tile::Rotary& r = p.rotary;
  if (r.layout != tile::RotaryLayout::half_split) return unsupported("layout", "is interleaved");
  if (r.rotary_dim != p.head_dim) return unsupported("rotary_dim", "is not the head dimension");
  if (p.head_dim % 16 != 0) return unsupported("head_dim", "is no multiple of 16");
  for (const auto& [name, table] : {std::pair{"cos", r.cos}, {"sin", r.sin}}) {
    if (reinterpret_cast<std::uintptr_t>(table) % 16 != 0) {
      return unsupported(name, "is not aligned to 16 bytes");
    }
  }
  return tile::check_head_chunks(p.type, p.head_dim, tensors);
}

// ---- The workspace ----

/// Calls `place` with the address of each tensor that lies in the workspace and its bytes, in their
/// order.
template <class Call, class Place>
void place_rotated(const Call& p, Call* inner, int** positions, Place place) {
  const auto size = static_cast<std::int64_t>(tile::size_bytes(p.type));
  const std::int64_t of_q = tile::product({size, p.batch, p.queries, p.heads, p.head_dim});
  const std::int64_t of_k = tile::product({size, p.batch, p.keys, p.kv_heads, p.head_dim});
  place(inner->q.data, of_q), place(inner->k.data, of_k);
  place(inner->q_far.data, of_q), place(inner->k_far.data, of_k);
  if constexpr (kIsBackward<Call>) {
    place(inner->dq.data, of_q), place(inner->dk.data, of_k);
    place(inner->dq_far.data, of_q), place(inner->dk_far.data, of_k);
  }
  place(*positions, tile::product({4, p.batch, p.queries}));
}

template <class Call>
std::int64_t bytes_of_rotated(const Call& p) {
  Call inner = p;
  int* positions = nullptr;
  std::int64_t all = 0;
  bool overflows = false;
  place_rotated(p, &inner, &positions, [&](auto*&, std::int64_t bytes) {
    overflows = overflows || bytes > INT64_MAX / 16;
    if (!overflows) all += (bytes + 255) / 256 * 256;
  });
  return overflows ? INT64_MAX : all;
}

template <class Call>
Call inner_attention(const Call& p, int** positions) {
  const tile::Attention sizes = p;
  Call inner{sizes};  // tensors without gaps
  inner.rotary = {};
  inner.v = p.v, inner.o = p.o, inner.lse = p.lse;
  if constexpr (kIsBackward<Call>) inner.dout = p.dout, inner.dv = p.dv;
  int* unused = nullptr;
  auto* next = static_cast<std::byte*>(p.workspace);
  place_rotated(p, &inner, positions ? positions : &unused, [&]<class T>(T*& to, std::int64_t n) {
    to = reinterpret_cast<T*>(next);
    if (next) next += (n + 255) / 256 * 256;  // each begins at a multiple of 256 bytes
  });
  inner.workspace = next;
  inner.workspace_bytes = p.workspace_bytes - bytes_of_rotated(p);
  return inner;
}

/// With the workspace of the fastest step for aligned rows; the steps that it falls back to need no
/// more.
template <class Call>
std::int64_t bytes_of_composed(const tile::Ladder<Call>& ladder, const Call& p) {
  if (is_empty(p)) return 0;
  Call inner{static_cast<const tile::Attention&>(p)};  // null pointers count as aligned
  inner.rotary = {};
  inner.v.stride = p.v.stride, inner.o.stride = p.o.stride;
  if constexpr (kIsBackward<Call>) {
    inner.dout.stride = p.dout.stride, inner.dv.stride = p.dv.stride;
  }
  std::int64_t all = bytes_of_rotated(p);
  const std::int64_t more = tile::bytes_of_last(ladder, inner);
  return __builtin_add_overflow(all, more, &all) ? INT64_MAX : all;
}

}  // namespace

tile::Status validate(const AttentionForward& p) { return check_all(p); }
tile::Status validate(const AttentionBackward& p) { return check_all(p); }
tile::Status validate_sizes(const AttentionForward& p) { return check_numbers(p); }
tile::Status validate_sizes(const AttentionBackward& p) { return check_numbers(p); }

tile::Status validate_tensors(const AttentionForward& p, const double* frequencies) {
  return check_all_tensors(p, frequencies);
}
tile::Status validate_tensors(const AttentionBackward& p, const double* frequencies) {
  return check_all_tensors(p, frequencies);
}

AttentionForward attention_of(const AttentionForward& p, int** positions) {
  return inner_attention(p, positions);
}
AttentionBackward attention_of(const AttentionBackward& p, int** positions) {
  return inner_attention(p, positions);
}

std::int64_t composed_bytes(const AttentionForward& p) {
  return bytes_of_composed(kForwardLadder, p);
}
std::int64_t composed_bytes(const AttentionBackward& p) {
  return bytes_of_composed(kBackwardLadder, p);
}
std::int64_t prologue_bytes(const AttentionForward& p) {
  return is_empty(p) ? 0 : tile::product({4, p.batch, p.keys, p.kv_heads, p.head_dim});
}

tile::Status check_turning(const AttentionForward& p) {
  std::vector<TensorArgument> tensors = inputs_of(p);
  tensors.push_back(query_rows(p, "o", p.o));
  return check_rows(p, tensors);
}
tile::Status check_turning(const AttentionBackward& p) {
  return check_rows(p, {query_rows(p, "q", p.q), key_rows(p, "k", p.k), query_rows(p, "dq", p.dq),
                        key_rows(p, "dk", p.dk)});
}

}  // namespace windowed_rope::method
