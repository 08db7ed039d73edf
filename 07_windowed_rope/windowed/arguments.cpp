// What a call is refused for and by which words, what several steps take, and how much memory they
// need.
#include <cmath>
#include <numbers>
#include <string>
#include <type_traits>

#include "tile/host/attention_argument.hpp"
#include "windowed/windowed_rope.hpp"

namespace windowed_rope {
namespace {

using tile::check_head_chunks, tile::check_tensors, tile::product, tile::TensorArgument;
using tile::key_rows, tile::lengths, tile::lse_of, tile::optional, tile::query_rows;

tile::Status check_numbers(const tile::Attention& p) {
  TILE_TRY(tile::check_attention_sizes(p));
  TILE_TRY(tile::check_causal_or_full(p));
  TILE_TRY(tile::check_no_rotary(p));
  if (!(p.distance_part >= 0 && p.distance_part <= 1)) {
    return tile::invalid_argument("distance_part",
                                  tile::number(p.distance_part) + " is not between 0 and 1");
  }
  if (p.distance_rate >= 0 && std::isfinite(p.distance_rate * std::numbers::log2e_v<float>)) {
    return {};
  }
  return tile::invalid_argument("distance_rate",
                                tile::number(p.distance_rate) + " is not 0 or more and finite");
}

template <class Call>
std::vector<TensorArgument> factors(const Call& p) {
  return {query_rows(p, "q", p.q), key_rows(p, "k", p.k), query_rows(p, "q_far", p.q_far),
          key_rows(p, "k_far", p.k_far), key_rows(p, "v", p.v)};
}
std::vector<TensorArgument> gradients(const AttentionBackward& p) {
  return {query_rows(p, "dq", p.dq), key_rows(p, "dk", p.dk), query_rows(p, "dq_far", p.dq_far),
          key_rows(p, "dk_far", p.dk_far), key_rows(p, "dv", p.dv)};
}

template <class Call>
tile::Status check_all(const Call& p) {
  TILE_TRY(tile::check_requirements(kTypes, {}, p.type));
  return validate_tensors(p);
}

/// `bytes` for each query, and for the rows that fill the last of the tiles of kRowsOfTerms.
std::int64_t bytes_of_rows(const AttentionBackward& p, std::int64_t bytes) {
  return product({bytes, p.batch, p.heads, (p.queries + 127) / 128 * 128});
}

}  // namespace

tile::Status validate(const AttentionForward& p) { return check_all(p); }
tile::Status validate(const AttentionBackward& p) { return check_all(p); }
tile::Status validate_sizes(const AttentionForward& p) { return check_numbers(p); }
tile::Status validate_sizes(const AttentionBackward& p) { return check_numbers(p); }

tile::Status validate_tensors(const AttentionForward& p) {
  TILE_TRY(validate_sizes(p));
  std::vector<TensorArgument> inputs = factors(p);
  inputs.push_back(optional(lengths(p, "query_lengths", p.query_lengths)));
  inputs.push_back(optional(lengths(p, "key_lengths", p.key_lengths)));
  return check_tensors(is_empty(p), inputs, {query_rows(p, "o", p.o), optional(lse_of(p, p.lse))},
                       {p.workspace, p.workspace_bytes});
}

tile::Status validate_tensors(const AttentionBackward& p) {
  TILE_TRY(validate_sizes(p));
  std::vector<TensorArgument> inputs = factors(p);
  inputs.push_back(query_rows(p, "o", p.o));
  inputs.push_back(lse_of(p, p.lse));
  inputs.push_back(query_rows(p, "dout", p.dout));
  inputs.push_back(optional(lengths(p, "query_lengths", p.query_lengths)));
  inputs.push_back(optional(lengths(p, "key_lengths", p.key_lengths)));
  return check_tensors(is_empty(p), inputs, gradients(p), {p.workspace, p.workspace_bytes});
}

std::int64_t scores_bytes(const AttentionForward& p) {
  return product({4, p.batch, p.heads, p.queries, p.keys});
}
std::int64_t scores_bytes(const AttentionBackward& p) {
  return product({8, p.batch, p.heads, p.queries, p.keys});
}
std::int64_t stats_bytes(const AttentionBackward& p) { return bytes_of_rows(p, 8); }
std::int64_t stats_and_sums_bytes(const AttentionBackward& p) {
  return bytes_of_rows(p, 16 + 8 * p.head_dim);
}

tile::Status check_no_distance_factor(const tile::Attention& p) {
  if (p.distance_part == 0) return {};
  return tile::unsupported("distance_part", "is not 0: only step tiles has a distance factor");
}

tile::Status check_chunks(const AttentionForward& p) {
  TILE_TRY(check_no_distance_factor(p));
  std::vector<TensorArgument> tensors = factors(p);
  tensors.push_back(query_rows(p, "o", p.o));
  return check_head_chunks(p.type, p.head_dim, tensors);
}
tile::Status check_chunks(const AttentionBackward& p) {
  TILE_TRY(check_no_distance_factor(p));
  std::vector<TensorArgument> tensors = factors(p);
  tensors.push_back(query_rows(p, "dout", p.dout));
  for (TensorArgument& each : gradients(p)) tensors.push_back(std::move(each));
  return check_head_chunks(p.type, p.head_dim, tensors);
}

}  // namespace windowed_rope
