// The references, and the checks of the arguments.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "tile/host/attention_argument.hpp"
#include "windowed/windowed_rope.hpp"

namespace windowed_rope {
namespace {

using tile::check_head_chunks, tile::check_tensors, tile::product, tile::TensorArgument;
using tile::key_rows, tile::lengths, tile::lse_of, tile::optional, tile::query_rows;

template <class Problem>
tile::Attention sizes_of(const Problem& p) {
  return {p.type,
          p.batch,
          p.heads,
          p.queries,
          p.keys,
          p.head_dim,
          p.kv_heads,
          kUnlimited,
          p.causal ? 0 : kUnlimited,
          p.scale,
          std::clamp<std::int64_t>(p.window, 0, kUnlimited),
          p.distance_factor};
}

template <class Problem>
tile::Status check_numbers(const Problem& p) {
  TILE_TRY(tile::check_attention_sizes(p));
  const auto [part, rate] = p.distance_factor;
  if (!(part >= 0 && part <= 1)) {
    return tile::invalid_argument("distance_factor",
                                  "its part " + tile::number(part) + " is not between 0 and 1");
  }
  if (rate >= 0 && std::isfinite(rate * std::numbers::log2e_v<float>)) return {};
  return tile::invalid_argument("distance_factor",
                                "its rate " + tile::number(rate) + " is not 0 or more and finite");
}

template <class Problem, class Buffers>
std::vector<TensorArgument> factors(const Problem& p, const Buffers& b) {
  return {query_rows(p, "q1", b.q1, p.q1), key_rows(p, "k1", b.k1, p.k1),
          query_rows(p, "q2", b.q2, p.q2), key_rows(p, "k2", b.k2, p.k2),
          key_rows(p, "v", b.v, p.v)};
}
std::vector<TensorArgument> gradients(const BackwardProblem& p, const BackwardBuffers& b) {
  return {query_rows(p, "dq1", b.dq1, p.dq1), key_rows(p, "dk1", b.dk1, p.dk1),
          query_rows(p, "dq2", b.dq2, p.dq2), key_rows(p, "dk2", b.dk2, p.dk2),
          key_rows(p, "dv", b.dv, p.dv)};
}
template <class Problem, class Buffers>
void add_lengths(std::vector<TensorArgument>* inputs, const Problem& p, const Buffers& b) {
  inputs->push_back(optional(lengths(p, "query_lengths", b.query_lengths)));
  inputs->push_back(optional(lengths(p, "key_lengths", b.key_lengths)));
}

}  // namespace

std::int64_t workspace_bytes(const ForwardProblem& p, std::string_view step) {
  return step == "scores" ? product({4, p.batch, p.heads, p.queries, p.keys}) : 0;
}

std::int64_t workspace_bytes(const BackwardProblem& p, std::string_view step) {
  if (step == "scores") return product({8, p.batch, p.heads, p.queries, p.keys});
  // Two floats for each query, and 2 head_dim more if dq1 and dq2 are summed up in memory.
  const std::int64_t rows = (p.queries + 127) / 128 * 128;
  return product({step == "one_pass" ? 8 + 8 * p.head_dim : 8, p.batch, p.heads, rows});
}

tile::Status check_workspace(const ForwardProblem& p, const ForwardBuffers& buffers,
                             std::string_view step) {
  return tile::check_workspace(workspace_bytes(p, step), buffers.workspace_bytes);
}
tile::Status check_workspace(const BackwardProblem& p, const BackwardBuffers& buffers,
                             std::string_view step) {
  return tile::check_workspace(workspace_bytes(p, step), buffers.workspace_bytes);
}

tile::Status validate_sizes(const ForwardProblem& p) { return check_numbers(p); }
tile::Status validate_sizes(const BackwardProblem& p) { return check_numbers(p); }

tile::Status validate_tensors(const ForwardProblem& p, const ForwardBuffers& b) {
  TILE_TRY(validate_sizes(p));
  std::vector<TensorArgument> inputs = factors(p, b);
  add_lengths(&inputs, p, b);
  return check_tensors(is_empty(p), inputs,
                       {query_rows(p, "o", b.o, p.o), optional(lse_of(p, b.lse))},
                       {b.workspace, b.workspace_bytes});
}

tile::Status validate_tensors(const BackwardProblem& p, const BackwardBuffers& b) {
  TILE_TRY(validate_sizes(p));
  std::vector<TensorArgument> inputs = factors(p, b);
  inputs.push_back(query_rows(p, "o", b.o, p.o));
  inputs.push_back(lse_of(p, b.lse));
  inputs.push_back(query_rows(p, "dout", b.dout, p.dout));
  add_lengths(&inputs, p, b);
  return check_tensors(is_empty(p), inputs, gradients(p, b), {b.workspace, b.workspace_bytes});
}

tile::Status validate(const ForwardProblem& p, const ForwardBuffers& buffers) {
  TILE_TRY(tile::check_requirements(kTypes, {}, p.type));
  return validate_tensors(p, buffers);
}
tile::Status validate(const BackwardProblem& p, const BackwardBuffers& buffers) {
  TILE_TRY(tile::check_requirements(kTypes, {}, p.type));
  return validate_tensors(p, buffers);
}

tile::Status check_chunks(const ForwardProblem& p, const ForwardBuffers& b) {
  TILE_TRY(check_no_distance_factor(p));
  std::vector<TensorArgument> tensors = factors(p, b);
  tensors.push_back(query_rows(p, "o", b.o, p.o));
  return check_head_chunks(p.type, p.head_dim, tensors);
}
tile::Status check_chunks(const BackwardProblem& p, const BackwardBuffers& b) {
  TILE_TRY(check_no_distance_factor(p));
  std::vector<TensorArgument> tensors = factors(p, b);
  tensors.push_back(query_rows(p, "dout", b.dout, p.dout));
  for (TensorArgument& each : gradients(p, b)) tensors.push_back(std::move(each));
  return check_head_chunks(p.type, p.head_dim, tensors);
}

tile::AttentionExpected reference(const ForwardProblem& p, const tile::AttentionInputs& in,
                                  std::span<const std::int64_t> rows) {
  return tile::attention_reference(sizes_of(p), in, rows);
}

tile::AttentionGradients reference(const BackwardProblem& p,
                                   const tile::AttentionGradientInputs& in,
                                   std::span<const std::int64_t> query_rows,
                                   std::span<const std::int64_t> key_rows) {
  return tile::attention_gradients(sizes_of(p), in, query_rows, key_rows);
}

}  // namespace windowed_rope
