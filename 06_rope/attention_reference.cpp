// The references of attention with rotated q and k, and the checks of their arguments.
#include <cmath>
#include <numbers>
#include <string>

#include "attention.hpp"
#include "tables.hpp"
#include "tile/host/text.hpp"

namespace rope {
namespace {

using tile::product, tile::TensorArgument;

template <class Problem>
tile::Status check_numbers(const Problem& p) {
  if (tile::Status s = validate_sizes(rotation_of(p)); !s.ok()) return s;
  if (p.heads > 0 && (p.kv_heads == 0 || p.heads % p.kv_heads != 0)) {
    return tile::invalid_argument("kv_heads", std::to_string(p.kv_heads) + " does not divide " +
                                                  std::to_string(p.heads) + " heads");
  }
  if (!(p.scale > 0) || !std::isfinite(p.scale * std::numbers::log2e_v<float>)) {
    return tile::invalid_argument("scale", tile::number(p.scale) + " is not positive and finite");
  }
  return {};
}

template <class Problem>
TensorArgument rows(const Problem& p, const char* name, const void* data, Strides stride,
                    std::int64_t heads) {
  const auto bytes = static_cast<std::int64_t>(tile::size_bytes(p.type));
  return {name, data, stride, p.batch, p.length, heads, p.head_dim, bytes};
}
template <class Problem>
TensorArgument lse_of(const Problem& p, const float* lse, bool may_be_null) {
  const Strides stride{p.heads * p.length, p.length, 1};
  const std::int64_t bytes = p.type == tile::DType::fp64 ? 8 : 4;  // with fp64, of doubles
  return {"lse", lse, stride, p.batch, p.length, p.heads, 1, bytes, may_be_null};
}

std::vector<TensorArgument> inputs_of(const AttentionProblem& p, const AttentionBuffers& b) {
  return {rows(p, "q", b.q, p.q, p.heads), rows(p, "k", b.k, p.k, p.kv_heads),
          rows(p, "v", b.v, p.v, p.kv_heads)};
}
std::vector<TensorArgument> outputs_of(const AttentionProblem& p, const AttentionBuffers& b) {
  return {rows(p, "o", b.o, p.o, p.heads)};
}
std::vector<TensorArgument> inputs_of(const AttentionBackwardProblem& p,
                                      const AttentionBackwardBuffers& b) {
  return {rows(p, "q", b.q, p.q, p.heads), rows(p, "k", b.k, p.k, p.kv_heads),
          rows(p, "v", b.v, p.v, p.kv_heads), rows(p, "o", b.o, p.o, p.heads),
          rows(p, "dout", b.dout, p.dout, p.heads)};
}
std::vector<TensorArgument> outputs_of(const AttentionBackwardProblem& p,
                                       const AttentionBackwardBuffers& b) {
  return {rows(p, "dq", b.dq, p.dq, p.heads), rows(p, "dk", b.dk, p.dk, p.kv_heads),
          rows(p, "dv", b.dv, p.dv, p.kv_heads)};
}

template <class Problem, class Buffers>
tile::Status check_all_tensors(const Problem& p, const Buffers& b, const double* frequencies) {
  if (tile::Status s = check_numbers(p); !s.ok()) return s;
  constexpr bool kIsForward = std::is_same_v<Problem, AttentionProblem>;
  std::vector<TensorArgument> inputs = inputs_of(p, b), outputs = outputs_of(p, b);
  const RotaryProblem rotation = rotation_of(p);
  const RotaryBuffers tables{
      .cos = b.cos, .sin = b.sin, .frequencies = frequencies, .positions = b.positions};
  for (const TensorArgument& table : tables_of(rotation, tables)) inputs.push_back(table);
  (kIsForward ? outputs : inputs).push_back(lse_of(p, b.lse, kIsForward));
  const tile::Workspace workspace{b.workspace, b.workspace_bytes};
  if (tile::Status s = tile::check_tensors(is_empty(p), inputs, outputs, workspace); !s.ok()) {
    return s;
  }
  if (is_empty(p)) return {};
  return check_tables(rotation, tables);
}

template <class Problem, class Buffers>
tile::Status validate_all(const Problem& p, const Buffers& b) {
  if (tile::Status s = tile::check_requirements(k16Bits, {}, p.type); !s.ok()) return s;
  return check_all_tensors(p, b, nullptr);
}

template <class Problem>
std::int64_t rotated_bytes(const Problem& p) {
  return product({2, p.batch, p.length, p.heads + p.kv_heads, p.head_dim});
}

template <class Problem, class Buffers>
tile::Status check_all(const Problem& p, const Buffers& b, std::string_view step) {
  std::vector<TensorArgument> tensors = inputs_of(p, b);
  for (const TensorArgument& output : outputs_of(p, b)) tensors.push_back(output);
  if (tile::Status s = tile::check_row_chunks(p.type, tensors); !s.ok()) return s;
  if (p.head_dim != 64 && p.head_dim != 128) {
    return tile::unsupported("head_dim", std::to_string(p.head_dim) + " is neither 64 nor 128");
  }
  for (const auto& [name, table] : {std::pair{"cos", b.cos}, {"sin", b.sin}}) {
    if (!table) return tile::unsupported(name, "is null");
    if (reinterpret_cast<std::uintptr_t>(table) % 16 != 0) {
      return tile::unsupported(name, "is not aligned to 16 bytes");
    }
  }
  const std::int64_t needed = workspace_bytes(p, step);
  if (b.workspace_bytes >= needed) return {};
  return tile::unsupported("workspace_bytes", tile::grouped(needed) + " are needed, not " +
                                                  tile::grouped(b.workspace_bytes));
}

/// Rotated rows of q or k, or of their gradients: those of the tokens with these numbers, or of
/// all.
template <class Problem>
tile::Expected rotated(const Problem& p, Pass pass, std::int64_t heads, std::span<const double> x,
                       std::span<const double> x_bound, std::span<const double> frequencies,
                       std::span<const int> positions, std::span<const std::int64_t> tokens) {
  RotaryProblem r = rotation_of(p);
  r.pass = pass;
  r.batch = 1;
  r.length = tokens.empty() ? p.batch * p.length : std::ssize(tokens);
  std::vector<int> of_rows;
  for (std::int64_t row = 0; row < r.length; ++row) {
    const std::int64_t token = tokens.empty() ? row : tokens[static_cast<std::size_t>(row)];
    of_rows.push_back(positions.empty() ? static_cast<int>(p.first_position + token % p.length)
                                        : positions[static_cast<std::size_t>(token)]);
  }
  return reference(r, x, heads, frequencies, of_rows, Angles::tables, x_bound);
}

template <class Problem>
tile::Attention sizes_of(const Problem& p) {
  return {p.type,     p.batch,          p.heads,
          p.length,   p.length,         p.head_dim,
          p.kv_heads, tile::kUnlimited, p.causal ? 0 : tile::kUnlimited,
          p.scale};
}

}  // namespace

tile::Status validate(const AttentionProblem& p, const AttentionBuffers& b) {
  return validate_all(p, b);
}
tile::Status validate(const AttentionBackwardProblem& p, const AttentionBackwardBuffers& b) {
  return validate_all(p, b);
}

tile::Status validate_sizes(const AttentionProblem& p) { return check_numbers(p); }
tile::Status validate_sizes(const AttentionBackwardProblem& p) { return check_numbers(p); }

tile::Status validate_tensors(const AttentionProblem& p, const AttentionBuffers& b,
                              const double* frequencies) {
  return check_all_tensors(p, b, frequencies);
}
tile::Status validate_tensors(const AttentionBackwardProblem& p, const AttentionBackwardBuffers& b,
                              const double* frequencies) {
  return check_all_tensors(p, b, frequencies);
}

std::int64_t workspace_bytes(const AttentionProblem& p, std::string_view step) {
  return step == "composed" ? rotated_bytes(p) : 0;
}
std::int64_t workspace_bytes(const AttentionBackwardProblem& p, std::string_view step) {
  const std::int64_t stats = product({8, p.batch, p.heads, (p.length + 127) / 128 * 128});
  std::int64_t all = 0;
  const std::int64_t rotated = step == "composed" ? rotated_bytes(p) : 0;
  return __builtin_add_overflow(stats, rotated, &all) ? INT64_MAX : all;
}

tile::Status check_attention(const AttentionProblem& p, const AttentionBuffers& b,
                             std::string_view step) {
  return check_all(p, b, step);
}
tile::Status check_attention(const AttentionBackwardProblem& p, const AttentionBackwardBuffers& b,
                             std::string_view step) {
  return check_all(p, b, step);
}

tile::AttentionExpected reference(const AttentionProblem& p, const AttentionInputs& in,
                                  std::span<const std::int64_t> rows) {
  const auto turn = [&](std::int64_t heads, std::span<const double> x,
                        std::span<const std::int64_t> tokens) {
    return rotated(p, Pass::forward, heads, x, {}, in.frequencies, in.positions, tokens);
  };
  const tile::Expected q = turn(p.heads, in.q, rows), k = turn(p.kv_heads, in.k, {});
  return tile::attention_reference(sizes_of(p), {q.value, k.value, in.v, {}, {}, q.bound, k.bound},
                                   rows);
}

tile::AttentionGradients reference(const AttentionBackwardProblem& p,
                                   const AttentionBackwardInputs& in,
                                   std::span<const std::int64_t> query_rows,
                                   std::span<const std::int64_t> key_rows) {
  const auto turn = [&](Pass pass, std::int64_t heads, std::span<const double> x,
                        std::span<const double> bound, std::span<const std::int64_t> tokens) {
    return rotated(p, pass, heads, x, bound, in.frequencies, in.positions, tokens);
  };
  const tile::Expected q = turn(Pass::forward, p.heads, in.q, {}, {});
  const tile::Expected k = turn(Pass::forward, p.kv_heads, in.k, {}, {});
  tile::AttentionGradients gradients = tile::attention_gradients(
      sizes_of(p), {q.value, k.value, in.v, in.o, in.lse, in.dout, {}, {}, q.bound, k.bound},
      query_rows, key_rows);
  const auto rotate_back = [&](tile::Expected* x, std::int64_t heads,
                               std::span<const std::int64_t> tokens) {
    const std::vector<std::int64_t> shape = x->shape;
    *x = turn(Pass::backward, heads, x->value, x->bound, tokens);
    x->shape = shape;
  };
  rotate_back(&gradients.dq, p.heads, query_rows);
  rotate_back(&gradients.dk, p.kv_heads, key_rows);
  return gradients;
}

}  // namespace rope
