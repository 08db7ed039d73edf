// The references, and the checks of the arguments.
#include <algorithm>
#include <string>

#include "flash_attention.hpp"
#include "tile/host/attention_argument.hpp"

namespace flash_attention {
namespace {

using tile::check_head_chunks, tile::check_tensors, tile::product;
using tile::key_rows, tile::lengths, tile::lse_of, tile::optional, tile::query_rows;

// ---- Arguments ----

template <class Problem>
tile::Status check_extents(const Problem& p) {
  for (const auto& [name, extent] : {std::pair{"left", p.left}, {"right", p.right}}) {
    if (extent < 0) return tile::invalid_argument(name, std::to_string(extent) + " is negative");
  }
  return tile::check_attention_sizes(p);
}

template <class Problem>
tile::Attention sizes_of(const Problem& p) {
  return {p.type,
          p.batch,
          p.heads,
          p.queries,
          p.keys,
          p.head_dim,
          p.kv_heads,
          std::min(p.left, kUnlimited),
          std::min(p.right, kUnlimited),
          p.scale};
}

}  // namespace

std::int64_t key_splits(const ForwardProblem& p) {
  constexpr std::int64_t kBlocks = 264;
  const std::int64_t rows = p.queries * (p.heads / p.kv_heads), tile_rows = rows <= 16 ? 16 : 64;
  const std::int64_t blocks = p.batch * p.kv_heads * ((rows + tile_rows - 1) / tile_rows);
  const std::int64_t two_tiles = 2 * std::max<std::int64_t>(1, kSplitTileElements / p.head_dim);
  return std::max<std::int64_t>(1,
                                std::min(kBlocks / blocks, (p.keys + two_tiles - 1) / two_tiles));
}

std::int64_t workspace_bytes(const ForwardProblem& p, std::string_view step) {
  if (step == "scores") return product({4, p.batch, p.heads, p.queries, p.keys});
  if (step != "split_keys" || is_empty(p) || p.queries > kMostSplitQueries) return 0;
  return product({4, p.batch, p.heads, p.queries, key_splits(p), p.head_dim + 1});
}

std::int64_t workspace_bytes(const BackwardProblem& p, std::string_view step) {
  if (step == "scores") return product({8, p.batch, p.heads, p.queries, p.keys});
  // Two floats for each query, and head_dim more if dq is summed up in memory.
  const std::int64_t rows = (p.queries + 127) / 128 * 128;
  return product({step == "one_pass" ? 8 + 4 * p.head_dim : 8, p.batch, p.heads, rows});
}

tile::Status check_workspace(const ForwardProblem& p, const ForwardBuffers& buffers,
                             std::string_view step) {
  return tile::check_workspace(workspace_bytes(p, step), buffers.workspace_bytes);
}

tile::Status check_workspace(const BackwardProblem& p, const BackwardBuffers& buffers,
                             std::string_view step) {
  return tile::check_workspace(workspace_bytes(p, step), buffers.workspace_bytes);
}

tile::Status validate_sizes(const ForwardProblem& p) { return check_extents(p); }
tile::Status validate_sizes(const BackwardProblem& p) { return check_extents(p); }

tile::Status validate_tensors(const ForwardProblem& p, const ForwardBuffers& b) {
  if (tile::Status s = validate_sizes(p); !s.ok()) return s;
  return check_tensors(
      is_empty(p),
      {query_rows(p, "q", b.q, p.q), key_rows(p, "k", b.k, p.k), key_rows(p, "v", b.v, p.v),
       optional(lengths(p, "query_lengths", b.query_lengths)),
       optional(lengths(p, "key_lengths", b.key_lengths))},
      {query_rows(p, "o", b.o, p.o), optional(lse_of(p, b.lse))}, {b.workspace, b.workspace_bytes});
}

tile::Status validate_tensors(const BackwardProblem& p, const BackwardBuffers& b) {
  if (tile::Status s = validate_sizes(p); !s.ok()) return s;
  return check_tensors(
      is_empty(p),
      {query_rows(p, "q", b.q, p.q), key_rows(p, "k", b.k, p.k), key_rows(p, "v", b.v, p.v),
       query_rows(p, "o", b.o, p.o), lse_of(p, b.lse), query_rows(p, "dout", b.dout, p.dout),
       optional(lengths(p, "query_lengths", b.query_lengths)),
       optional(lengths(p, "key_lengths", b.key_lengths))},
      {query_rows(p, "dq", b.dq, p.dq), key_rows(p, "dk", b.dk, p.dk),
       key_rows(p, "dv", b.dv, p.dv)},
      {b.workspace, b.workspace_bytes});
}

tile::Status validate(const ForwardProblem& p, const ForwardBuffers& buffers) {
  if (tile::Status s = tile::check_requirements(kTypes, {}, p.type); !s.ok()) return s;
  return validate_tensors(p, buffers);
}

tile::Status validate(const BackwardProblem& p, const BackwardBuffers& buffers) {
  if (tile::Status s = tile::check_requirements(kTypes, {}, p.type); !s.ok()) return s;
  return validate_tensors(p, buffers);
}

tile::Status check_chunks(const ForwardProblem& p, const ForwardBuffers& b) {
  return check_head_chunks(p.type, p.head_dim,
                           {query_rows(p, "q", b.q, p.q), key_rows(p, "k", b.k, p.k),
                            key_rows(p, "v", b.v, p.v), query_rows(p, "o", b.o, p.o)});
}

tile::Status check_chunks(const BackwardProblem& p, const BackwardBuffers& b) {
  return check_head_chunks(
      p.type, p.head_dim,
      {query_rows(p, "q", b.q, p.q), key_rows(p, "k", b.k, p.k), key_rows(p, "v", b.v, p.v),
       query_rows(p, "dout", b.dout, p.dout), query_rows(p, "dq", b.dq, p.dq),
       key_rows(p, "dk", b.dk, p.dk), key_rows(p, "dv", b.dv, p.dv)});
}

ForwardExpected reference(const ForwardProblem& p, const ForwardInputs& in,
                          std::span<const std::int64_t> rows) {
  return tile::attention_reference(sizes_of(p), in, rows);
}

BackwardExpected reference(const BackwardProblem& p, const BackwardInputs& in,
                           std::span<const std::int64_t> query_rows,
                           std::span<const std::int64_t> key_rows) {
  return tile::attention_gradients(sizes_of(p), in, query_rows, key_rows);
}

}  // namespace flash_attention
