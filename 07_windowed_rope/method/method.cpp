// The methods' positions and tables, their references, and the checks of their arguments.
#include "method/method.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "harness/rounding.hpp"
#include "method/workspace.hpp"
#include "rotary/frequencies.hpp"
#include "rotary/reference.hpp"
#include "tile/host/attention_argument.hpp"
#include "tile/host/text.hpp"

namespace windowed_rope {
namespace {

using tile::key_rows, tile::lengths, tile::lse_of, tile::optional, tile::query_rows;
using tile::TensorArgument;

std::vector<TensorArgument> inputs_of(const MethodProblem& p, const MethodBuffers& b) {
  return {query_rows(p, "q", b.q, p.q), key_rows(p, "k", b.k, p.k), key_rows(p, "v", b.v, p.v)};
}
std::vector<TensorArgument> outputs_of(const MethodProblem& p, const MethodBuffers& b) {
  return {query_rows(p, "o", b.o, p.o), optional(lse_of(p, b.lse))};
}
std::vector<TensorArgument> inputs_of(const MethodBackwardProblem& p,
                                      const MethodBackwardBuffers& b) {
  return {query_rows(p, "q", b.q, p.q),
          key_rows(p, "k", b.k, p.k),
          key_rows(p, "v", b.v, p.v),
          query_rows(p, "o", b.o, p.o),
          query_rows(p, "dout", b.dout, p.dout),
          lse_of(p, b.lse)};
}
std::vector<TensorArgument> outputs_of(const MethodBackwardProblem& p,
                                       const MethodBackwardBuffers& b) {
  return {query_rows(p, "dq", b.dq, p.dq), key_rows(p, "dk", b.dk, p.dk),
          key_rows(p, "dv", b.dv, p.dv)};
}

template <class Problem>
tile::Status check_numbers(const Problem& p) {
  TILE_TRY(tile::check_attention_sizes(p));
  TILE_TRY(validate(MethodRule{p.method, p.window, p.factor}));
  if (!p.causal) {
    return tile::unsupported("causal", "the methods have no rotation for keys after a query");
  }
  rope::RotaryProblem r{.type = p.type,
                        .batch = p.batch,
                        .length = p.keys,
                        .heads = p.kv_heads,
                        .kv_heads = 0,
                        .head_dim = p.head_dim,
                        .rotary_dim = p.rotary_dim};
  r.table_positions = p.table_positions;
  r.attention_factor = p.attention_factor;
  r.layout = p.layout;
  return validate_sizes(r);
}

template <class Problem, class Buffers>
tile::Status check_all_tensors(const Problem& p, const Buffers& b, const double* frequencies) {
  TILE_TRY(check_numbers(p));
  std::vector<TensorArgument> inputs = inputs_of(p, b);
  const std::int64_t pairs = p.rotary_dim / 2;
  for (const auto& [name, table] : {std::pair{"cos", b.cos}, {"sin", b.sin}}) {
    inputs.push_back({name,
                      table,
                      {0, 0, pairs},
                      1,
                      3 * p.table_positions,
                      1,
                      pairs,
                      4,
                      frequencies != nullptr});
  }
  inputs.push_back(optional(lengths(p, "query_lengths", b.query_lengths)));
  inputs.push_back(optional(lengths(p, "key_lengths", b.key_lengths)));
  const tile::Workspace workspace{b.workspace, b.workspace_bytes};
  TILE_TRY(check_tensors(is_empty(p), inputs, outputs_of(p, b), workspace));
  if (is_empty(p) || p.keys <= p.table_positions) return {};
  return tile::invalid_argument("table_positions", std::to_string(p.table_positions) +
                                                       " do not reach the last key's position, " +
                                                       std::to_string(p.keys - 1));
}

template <class Problem, class Buffers>
tile::Status check_all_chunks(const Problem& p, const Buffers& b,
                              const std::vector<TensorArgument>& tensors) {
  for (const auto& [name, table] : {std::pair{"cos", b.cos}, {"sin", b.sin}}) {
    if (reinterpret_cast<std::uintptr_t>(table) % 16 != 0) {
      return tile::unsupported(name, "is not aligned to 16 bytes");
    }
  }
  return tile::check_head_chunks(p.type, p.head_dim, tensors);
}

template <class Problem>
RotatedRows rows_in(const Problem& p, void* workspace) {
  constexpr bool kIsBackward = requires { p.dq; };
  const auto size = static_cast<std::int64_t>(tile::size_bytes(p.type));
  const std::int64_t of_q = tile::product({size, p.batch, p.queries, p.heads, p.head_dim});
  const std::int64_t of_k = tile::product({size, p.batch, p.keys, p.kv_heads, p.head_dim});
  const std::int64_t of_positions = tile::product({4, p.batch, p.queries});
  RotatedRows rows;
  if (std::max({of_q, of_k, of_positions}) > INT64_MAX / 16) {
    rows.bytes = INT64_MAX;
    return rows;
  }
  const auto take = [&](std::int64_t bytes) -> void* {  // each begins at a multiple of 256 bytes
    void* piece = workspace ? static_cast<std::byte*>(workspace) + rows.bytes : nullptr;
    rows.bytes += (bytes + 255) / 256 * 256;
    return piece;
  };
  rows.q1 = take(of_q), rows.k1 = take(of_k), rows.q2 = take(of_q), rows.k2 = take(of_k);
  if (kIsBackward) {
    rows.dq1 = take(of_q), rows.dk1 = take(of_k), rows.dq2 = take(of_q), rows.dk2 = take(of_k);
  }
  rows.positions = static_cast<int*>(take(of_positions));
  rows.rest = take(0);
  return rows;
}

// ---- References ----

/// The positions of tokens for each of their rotations: of the queries with these numbers, or of
/// all, and of keys.
struct Places {
  std::vector<double> own, far;
};
template <class Problem, class Inputs>
Places query_places(const Problem& p, const Inputs& in, std::span<const std::int64_t> rows) {
  const MethodRule rule{p.method, p.window, p.factor};
  Places places;
  const std::int64_t count = rows.empty() ? p.batch * p.queries : std::ssize(rows);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row = rows.empty() ? i : rows[static_cast<std::size_t>(i)];
    const auto entry = static_cast<std::size_t>(row / p.queries);
    const std::int64_t queries = in.query_lengths.empty() ? p.queries : in.query_lengths[entry];
    const std::int64_t keys = in.key_lengths.empty() ? p.keys : in.key_lengths[entry];
    // A query before the first key sees none, and its rotation does not matter.
    const std::int64_t position = std::max<std::int64_t>(0, row % p.queries + keys - queries);
    places.own.push_back(static_cast<double>(position));
    places.far.push_back(far_query_place(rule, position));
  }
  return places;
}
template <class Problem>
Places key_places(const Problem& p, std::span<const std::int64_t> rows) {
  const MethodRule rule{p.method, p.window, p.factor};
  Places places;
  const std::int64_t count = rows.empty() ? p.batch * p.keys : std::ssize(rows);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row = rows.empty() ? i : rows[static_cast<std::size_t>(i)];
    places.own.push_back(static_cast<double>(row % p.keys));
    places.far.push_back(far_key_place(rule, row % p.keys));
  }
  return places;
}

template <class Problem>
tile::Expected rotated(const Problem& p, rope::Pass pass, std::int64_t heads,
                       std::span<const double> x, std::span<const double> x_bound,
                       std::span<const double> frequencies, std::span<const double> places) {
  rope::RotaryProblem r{.type = p.type,
                        .batch = 1,
                        .length = std::ssize(places),
                        .heads = heads,
                        .kv_heads = 0,
                        .head_dim = p.head_dim,
                        .rotary_dim = p.rotary_dim};
  r.layout = p.layout;
  r.pass = pass;
  r.attention_factor = p.attention_factor;
  return rope::reference(r, x, heads, frequencies, {}, rope::Angles::tables, x_bound, places);
}

/// R(i)^T near + R(i')^T far, rounded.
template <class Problem>
tile::Expected rotated_back(const Problem& p, std::int64_t heads, const tile::Expected& near,
                            const tile::Expected& far, std::span<const double> frequencies,
                            const Places& places) {
  const auto back = [&](const tile::Expected& x, std::span<const double> to) {
    return rotated(p, rope::Pass::backward, heads, x.value, x.bound, frequencies, to);
  };
  tile::Expected sum = back(near, places.own);
  const tile::Expected more = back(far, places.far);
  const tile::Rounding rounding = tile::rounding_of(p.type);
  constexpr double kUnit = 0x1p-24;
  for (std::size_t i = 0; i < sum.value.size(); ++i) {
    sum.value[i] += more.value[i];
    sum.bound[i] += more.bound[i] + 2 * kUnit * std::abs(sum.value[i]);
    sum.bound[i] += rounding.error(sum.value[i], sum.bound[i]);
  }
  sum.shape = near.shape;
  return sum;
}

}  // namespace

std::string_view name(Method method) {
  switch (method) {
    case Method::rerope: return "rerope";
    case Method::leaky_rerope: return "leaky_rerope";
    case Method::self_extend: return "self_extend";
  }
  return "?";
}

tile::Status validate(const MethodRule& rule) {
  if (name(rule.method) == "?") return tile::invalid_argument("method", "is none");
  if (rule.window < 0) {
    return tile::invalid_argument("window", std::to_string(rule.window) + " is negative");
  }
  if (rule.window > kUnlimited) {
    return tile::unsupported("window", std::to_string(rule.window) + " is more than 2^29");
  }
  if (rule.method == Method::rerope) return {};
  if (!(rule.factor >= 1) || !std::isfinite(rule.factor)) {
    return tile::invalid_argument("factor", tile::number(rule.factor) + " is not 1 or more");
  }
  if (rule.method == Method::self_extend && rule.factor != std::floor(rule.factor)) {
    return tile::invalid_argument("factor", tile::number(rule.factor) + " is not a whole number");
  }
  return {};
}

// snippet-begin places
double far_query_place(const MethodRule& rule, std::int64_t position) {
  const auto i = static_cast<double>(position), w = static_cast<double>(rule.window);
  switch (rule.method) {
    case Method::rerope: return w;
    case Method::leaky_rerope: return (i + w * (rule.factor - 1)) / rule.factor;
    case Method::self_extend: return std::floor(i / rule.factor) + w - std::floor(w / rule.factor);
  }
  return i;
}

double far_key_place(const MethodRule& rule, std::int64_t position) {
  const auto j = static_cast<double>(position);
  switch (rule.method) {
    case Method::rerope: return 0;
    case Method::leaky_rerope: return j / rule.factor;
    case Method::self_extend: return std::floor(j / rule.factor);
  }
  return j;
}
// snippet-end places

MethodTables method_tables(const MethodRule& rule, std::span<const double> frequencies,
                           std::int64_t positions, double attention_factor) {
  std::vector<double> places;
  for (std::int64_t p = 0; p < positions; ++p) places.push_back(static_cast<double>(p));
  for (std::int64_t p = 0; p < positions; ++p) places.push_back(far_query_place(rule, p));
  for (std::int64_t p = 0; p < positions; ++p) places.push_back(far_key_place(rule, p));
  rope::Tables tables = rope::make_tables(frequencies, places, attention_factor);
  return {std::move(tables.cos), std::move(tables.sin)};
}

RotatedRows rotated_rows(const MethodProblem& p, void* workspace) { return rows_in(p, workspace); }
RotatedRows rotated_rows(const MethodBackwardProblem& p, void* workspace) {
  return rows_in(p, workspace);
}

tile::Status validate_sizes(const MethodProblem& p) { return check_numbers(p); }
tile::Status validate_sizes(const MethodBackwardProblem& p) { return check_numbers(p); }

tile::Status validate_tensors(const MethodProblem& p, const MethodBuffers& b,
                              const double* frequencies) {
  return check_all_tensors(p, b, frequencies);
}
tile::Status validate_tensors(const MethodBackwardProblem& p, const MethodBackwardBuffers& b,
                              const double* frequencies) {
  return check_all_tensors(p, b, frequencies);
}

tile::Status validate(const MethodProblem& p, const MethodBuffers& b) {
  TILE_TRY(tile::check_requirements(kTypes, {}, p.type));
  return check_all_tensors(p, b, nullptr);
}
tile::Status validate(const MethodBackwardProblem& p, const MethodBackwardBuffers& b) {
  TILE_TRY(tile::check_requirements(kTypes, {}, p.type));
  return check_all_tensors(p, b, nullptr);
}

tile::Status check_chunks(const MethodProblem& p, const MethodBuffers& b) {
  std::vector<TensorArgument> tensors = inputs_of(p, b);
  tensors.push_back(query_rows(p, "o", b.o, p.o));
  return check_all_chunks(p, b, tensors);
}
tile::Status check_chunks(const MethodBackwardProblem& p, const MethodBackwardBuffers& b) {
  return check_all_chunks(p, b,
                          {query_rows(p, "q", b.q, p.q), key_rows(p, "k", b.k, p.k),
                           query_rows(p, "dq", b.dq, p.dq), key_rows(p, "dk", b.dk, p.dk)});
}

tile::AttentionExpected reference(const MethodProblem& p, const MethodInputs& in,
                                  std::span<const std::int64_t> rows) {
  const Places of_q = query_places(p, in, rows), of_k = key_places(p, {});
  const auto turn = [&](std::int64_t heads, std::span<const double> x,
                        std::span<const double> places) {
    return rotated(p, rope::Pass::forward, heads, x, {}, in.frequencies, places);
  };
  const tile::Expected q1 = turn(p.heads, in.q, of_q.own), q2 = turn(p.heads, in.q, of_q.far);
  const tile::Expected k1 = turn(p.kv_heads, in.k, of_k.own);
  const tile::Expected k2 = turn(p.kv_heads, in.k, of_k.far);
  return reference(attention_of(p),
                   {q1.value,
                    k1.value,
                    in.v,
                    in.query_lengths,
                    in.key_lengths,
                    q1.bound,
                    k1.bound,
                    {q2.value, k2.value, q2.bound, k2.bound}},
                   rows);
}

tile::AttentionGradients reference(const MethodBackwardProblem& p, const MethodBackwardInputs& in,
                                   std::span<const std::int64_t> query_rows,
                                   std::span<const std::int64_t> key_rows) {
  const Places of_q = query_places(p, in, {}), of_k = key_places(p, {});
  const auto turn = [&](std::int64_t heads, std::span<const double> x,
                        std::span<const double> places) {
    return rotated(p, rope::Pass::forward, heads, x, {}, in.frequencies, places);
  };
  const tile::Expected q1 = turn(p.heads, in.q, of_q.own), q2 = turn(p.heads, in.q, of_q.far);
  const tile::Expected k1 = turn(p.kv_heads, in.k, of_k.own);
  const tile::Expected k2 = turn(p.kv_heads, in.k, of_k.far);
  const tile::AttentionGradients of_rotated = reference(attention_of(p),
                                                        {q1.value,
                                                         k1.value,
                                                         in.v,
                                                         in.o,
                                                         in.lse,
                                                         in.dout,
                                                         in.query_lengths,
                                                         in.key_lengths,
                                                         q1.bound,
                                                         k1.bound,
                                                         {q2.value, k2.value, q2.bound, k2.bound}},
                                                        query_rows, key_rows);
  tile::AttentionGradients gradients;
  gradients.dq = rotated_back(p, p.heads, of_rotated.dq, of_rotated.far_dq, in.frequencies,
                              query_places(p, in, query_rows));
  gradients.dk = rotated_back(p, p.kv_heads, of_rotated.dk, of_rotated.far_dk, in.frequencies,
                              key_places(p, key_rows));
  gradients.dv = of_rotated.dv;
  return gradients;
}

}  // namespace windowed_rope
