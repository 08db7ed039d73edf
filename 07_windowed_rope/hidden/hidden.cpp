// Attention from hidden states: the tables, the curves of scores by distance, the checks of the
// arguments, and the references.
#include "hidden/hidden.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "02_matmul/reference.hpp"
#include "embedding/reference.hpp"
#include "harness/rounding.hpp"
#include "rotary/frequencies.hpp"
#include "rotary/reference.hpp"
#include "tile/host/attention_argument.hpp"

namespace windowed_rope {
namespace {

using tile::Expected, tile::TensorArgument;
using Values = std::span<const double>;
using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// ---- Arguments ----

/// A tensor without gaps, [batch][length][heads][dim]; tensors that the encoding does not read may
/// be null.
TensorArgument tensor(const char* name, const void* data, std::int64_t batch, std::int64_t length,
                      std::int64_t heads, std::int64_t dim, std::int64_t element_bytes,
                      bool is_needed = true) {
  const bool is_there = is_needed && batch > 0 && heads > 0;
  return {name,
          data,
          tile::packed_strides(length, heads, dim),
          is_there ? batch : 0,
          length,
          heads,
          dim,
          element_bytes};
}

template <class Buffers>
std::vector<TensorArgument> inputs_of(const HiddenProblem& p, const Buffers& b) {
  const std::int64_t size = tile::element_bytes(p.type), pairs = p.head_dim / 2;
  const Encoding e = p.encoding;
  const std::int64_t tables = e == Encoding::windowed ? 3 : 1;
  std::vector<TensorArgument> all{
      tensor("x", b.x, p.batch, p.length, 1, p.model_dim, size),
      tensor("table", b.table, 1, p.length, 1, p.model_dim, size, adds_table(e)),
      tensor("cos", b.cos, tables, p.length, 1, pairs, 4, !adds_table(e)),
      tensor("sin", b.sin, tables, p.length, 1, pairs, 4, !adds_table(e)),
      tensor("gain", b.gain, 1, p.length, 1, p.head_dim, 4, has_gain(e))};
  for (const auto& [name, data] : {std::pair{"wq", b.wq}, {"wk", b.wk}, {"wv", b.wv}}) {
    all.push_back(tensor(name, data, 1, p.model_dim, p.heads, p.head_dim, size));
  }
  return all;
}
TensorArgument output_of(const HiddenProblem& p, const char* name, const void* data) {
  return tensor(name, data, p.batch, p.length, p.heads, p.head_dim, tile::element_bytes(p.type));
}
TensorArgument lse_of(const HiddenProblem& p, const float* lse) {
  return tensor("lse", lse, p.batch, p.heads, 1, p.length, 4);
}

// ---- References ----

/// The rows of a factor or of a sum, as a matrix of Eigen.
Matrix matrix_of(Values values, std::int64_t rows, std::int64_t cols, bool transpose) {
  if (values.empty()) return Matrix::Zero(transpose ? cols : rows, transpose ? rows : cols);
  const Eigen::Map<const Matrix> stored(values.data(), rows, cols);
  if (transpose) return stored.transpose();
  return stored;
}

/// As chapter 02's reference, for factors that are results themselves and have bounds; with beta =
/// 1, C has one, too.
Expected product(const matmul::Problem& p, const Expected& a, const Expected& b,
                 const Expected& c = {}) {
  Expected expected = matmul::reference(p, a.value, b.value, c.value, false);
  const auto of_a = [&p](Values values) {
    return matrix_of(values, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.transpose_a);
  };
  const auto of_b = [&p](Values values) {
    return matrix_of(values, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.transpose_b);
  };
  const Matrix a_off = of_a(a.bound), b_off = of_b(b.bound);
  const Matrix off = a_off * (of_b(b.value).cwiseAbs() + b_off) + of_a(a.value).cwiseAbs() * b_off;
  // The errors are added up and rounded, too: that costs less than a hundredth in sums of up to
  // 100,000 products, and at most 2^-8 for the type.
  constexpr double kRounded = 1.02;
  for (std::size_t i = 0; i < expected.bound.size(); ++i) {
    const double of_c = c.bound.empty() ? 0 : c.bound[i];
    expected.bound[i] += kRounded * (off.data()[i] + of_c);
  }
  return expected;
}

std::vector<double> frequencies_of(const HiddenProblem& p) {
  return rope::frequencies({.rotary_dim = p.head_dim});
}
rope::Layout layout_of(Encoding e) {
  return has_gain(e) ? rope::Layout::interleaved : rope::Layout::half_split;
}
MethodRule rule_of(const HiddenProblem& p) { return {Method::rerope, p.window, 1}; }

/// The positions by which tokens are rotated: their own, or those of far queries or far keys.
enum class PositionTable { own, far_query, far_key };
double place_of(const HiddenProblem& p, PositionTable place, std::int64_t position) {
  switch (place) {
    case PositionTable::own: break;
    case PositionTable::far_query: return far_query_place(rule_of(p), position);
    case PositionTable::far_key: return far_key_place(rule_of(p), position);
  }
  return static_cast<double>(position);
}

/// Rows of q or k, or their gradients, times the gains.
Expected gained(const HiddenProblem& p, Expected x) {
  const tile::Rounding rounding = tile::rounding_of(p.type);
  constexpr double kUnit = 0x1p-24;
  for (std::size_t i = 0; i < x.value.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    const std::int64_t token = at / (p.heads * p.head_dim);
    const double gain = gain_of(token % p.length, at % p.head_dim, p.head_dim);
    const double off = gain * x.bound[i];
    x.value[i] *= gain;
    // The gain is rounded, and so is the product.
    x.bound[i] = off + 2.1 * kUnit * (std::abs(x.value[i]) + off) + 0x1p-149;
    x.bound[i] += rounding.error(x.value[i], x.bound[i]);
  }
  return x;
}

/// Rotated q or k, or a gradient rotated back (by the transpose).
Expected rotated(const HiddenProblem& p, Expected x, PositionTable place, rope::Pass pass) {
  if (adds_table(p.encoding)) return x;
  if (has_gain(p.encoding) && pass == rope::Pass::backward) x = gained(p, std::move(x));
  rope::RotaryProblem r{.type = p.type,
                        .batch = 1,
                        .length = p.batch * p.length,
                        .heads = p.heads,
                        .kv_heads = 0,
                        .head_dim = p.head_dim};
  r.layout = layout_of(p.encoding), r.pass = pass;
  std::vector<double> places;
  for (std::int64_t token = 0; token < r.length; ++token) {
    places.push_back(place_of(p, place, token % p.length));
  }
  Expected y = rope::reference(r, x.value, p.heads, frequencies_of(p), {}, rope::Angles::tables,
                               x.bound, places);
  if (has_gain(p.encoding) && pass == rope::Pass::forward) y = gained(p, std::move(y));
  return y;
}

/// The sum of both gradients, each rotated back.
Expected rotated_back(const HiddenProblem& p, const Expected& near, const Expected& far,
                      PositionTable far_place) {
  Expected sum = rotated(p, near, PositionTable::own, rope::Pass::backward);
  if (p.encoding != Encoding::windowed) return sum;
  const Expected more = rotated(p, far, far_place, rope::Pass::backward);
  const tile::Rounding rounding = tile::rounding_of(p.type);
  for (std::size_t i = 0; i < sum.value.size(); ++i) {
    sum.value[i] += more.value[i];
    sum.bound[i] += more.bound[i] + 0x1p-23 * std::abs(sum.value[i]);
    sum.bound[i] += rounding.error(sum.value[i], sum.bound[i]);
  }
  return sum;
}

/// The tensors between the hidden states and attention.
struct Projected {
  Expected x, h;          // h: x + table, or as x
  Expected wq, wk, wv;    // exact
  Expected q, k, v;       // as attention gets them
  Expected far_q, far_k;  // windowed
  const Expected& of_values(Encoding e) const { return e == Encoding::learned ? h : x; }
};

matmul::Problem projection_of(const HiddenProblem& p) {
  return {.type = p.type, .m = p.batch * p.length, .n = p.heads * p.head_dim, .k = p.model_dim};
}

Projected project(const HiddenProblem& p, const HiddenInputs& in) {
  const auto exact = [](Values values) {
    return Expected{{}, {values.begin(), values.end()}, std::vector<double>(values.size())};
  };
  Projected all{exact(in.x), exact(in.x), exact(in.wq), exact(in.wk), exact(in.wv),
                {},          {},          {},           {},           {}};
  if (adds_table(p.encoding)) {
    all.h = rope::reference(rope::EmbeddingProblem{.type = p.type,
                                                   .batch = p.batch,
                                                   .length = p.length,
                                                   .dim = p.model_dim,
                                                   .table_positions = p.length},
                            in.x, in.table);
  }
  const matmul::Problem by = projection_of(p);
  const Expected q = product(by, all.h, all.wq), k = product(by, all.h, all.wk);
  all.v = product(by, all.of_values(p.encoding), all.wv);
  all.q = rotated(p, q, PositionTable::own, rope::Pass::forward);
  all.k = rotated(p, k, PositionTable::own, rope::Pass::forward);
  if (p.encoding == Encoding::windowed) {
    all.far_q = rotated(p, q, PositionTable::far_query, rope::Pass::forward);
    all.far_k = rotated(p, k, PositionTable::far_key, rope::Pass::forward);
  }
  return all;
}

tile::Attention sizes_of(const HiddenProblem& p) {
  tile::Attention sizes{p.type,   p.batch,    p.heads,
                        p.length, p.length,   p.head_dim,
                        p.heads,  kUnlimited, p.causal ? 0 : kUnlimited,
                        p.scale};
  if (p.encoding == Encoding::windowed) sizes.window = p.window;
  if (p.encoding == Encoding::exposb) sizes.distance_factor = kExposb;
  return sizes;
}

}  // namespace

std::string_view name(Encoding encoding) {
  switch (encoding) {
    case Encoding::learned: return "learned";
    case Encoding::sinusoidal: return "sinusoidal";
    case Encoding::rotary: return "rotary";
    case Encoding::exposb: return "exposb";
    case Encoding::exposb_plain: return "exposb_plain";
    case Encoding::windowed: return "windowed";
  }
  return "?";
}

// snippet-begin gain
double gain_of(std::int64_t position, std::int64_t element, std::int64_t head_dim) {
  const auto from_quarter = static_cast<double>(element - head_dim / 4);
  const auto width = static_cast<double>(std::max<std::int64_t>(head_dim / 8, 1));
  const double b = 0.8 + 0.4 * std::exp(-from_quarter * from_quarter / (2 * width * width));
  return (1 + 0.2 * std::exp(-0.001 * static_cast<double>(position))) * b;
}
// snippet-end gain

HiddenTables hidden_tables(const HiddenProblem& p) {
  HiddenTables tables;
  if (p.encoding == Encoding::sinusoidal) {
    tables.sinusoids = rope::sinusoids(p.length, p.model_dim);
  }
  if (adds_table(p.encoding)) return tables;
  const std::vector<double> frequencies = frequencies_of(p);
  if (p.encoding == Encoding::windowed) {
    MethodTables of_method = method_tables(rule_of(p), frequencies, p.length);
    tables.cos = std::move(of_method.cos), tables.sin = std::move(of_method.sin);
  } else {
    rope::Tables of_rope = rope::make_tables(frequencies, p.length);
    tables.cos = std::move(of_rope.cos), tables.sin = std::move(of_rope.sin);
  }
  for (std::int64_t i = 0; has_gain(p.encoding) && i < p.length * p.head_dim; ++i) {
    tables.gain.push_back(static_cast<float>(gain_of(i / p.head_dim, i % p.head_dim, p.head_dim)));
  }
  return tables;
}

std::vector<double> score_by_distance(const HiddenProblem& p) {
  const HiddenTables tables = hidden_tables(p);
  const auto dim = static_cast<std::size_t>(adds_table(p.encoding) ? p.model_dim : p.head_dim);
  const auto query = static_cast<std::size_t>(p.length - 1);
  std::vector<double> rows = tables.sinusoids;
  if (p.encoding == Encoding::learned) {
    std::mt19937_64 random(1);
    for (std::size_t i = 0; i < query * dim + dim; ++i) {
      // uniform in [-1, 1], so that a row's length is 1 on average
      const double x = static_cast<double>(random() >> 11) * 0x1p-52 - 1;
      rows.push_back(x * std::sqrt(3 / static_cast<double>(dim)));
    }
  }
  // Over all directions u, the mean of (A u) (B u) is the trace of A^T B divided by their number,
  // and that of (u + t) (u + s) is 1 + t s.
  const auto score = [&](std::size_t key) {
    const auto distance = static_cast<std::int64_t>(query - key);
    double sum = 0;
    if (adds_table(p.encoding)) {
      for (std::size_t d = 0; d < dim; ++d) sum += rows[query * dim + d] * rows[key * dim + d];
      return 1 + sum;
    }
    const std::size_t pairs = dim / 2, positions = query + 1;
    const bool far = p.encoding == Encoding::windowed && distance >= p.window;
    const std::size_t of_query = (query + (far ? positions : 0)) * pairs;
    const std::size_t of_key = (key + (far ? 2 * positions : 0)) * pairs;
    for (std::size_t i = 0; i < pairs; ++i) {
      const double turn = static_cast<double>(tables.cos[of_query + i]) * tables.cos[of_key + i] +
                          static_cast<double>(tables.sin[of_query + i]) * tables.sin[of_key + i];
      double gains = 2;
      if (has_gain(p.encoding)) {  // interleaved: pair i is 2 i and 2 i + 1
        const float* q = &tables.gain[query * dim + 2 * i];
        const float* k = &tables.gain[key * dim + 2 * i];
        gains = static_cast<double>(q[0]) * k[0] + static_cast<double>(q[1]) * k[1];
      }
      sum += gains * turn;
    }
    const auto [part, rate] = kExposb;
    if (p.encoding != Encoding::exposb) return sum;
    return sum * (1 - part + part * std::exp(-rate * static_cast<double>(distance)));
  };
  std::vector<double> scores;
  for (std::size_t n = 0; n <= query; ++n) scores.push_back(score(query - n) / score(query));
  return scores;
}

tile::Status validate_sizes(const HiddenProblem& p) {
  if (name(p.encoding) == "?") return tile::invalid_argument("encoding", "is none");
  for (const auto& [name, extent] :
       {std::pair{"length", p.length}, {"model_dim", p.model_dim}, {"head_dim", p.head_dim}}) {
    if (extent < 0) return tile::invalid_argument(name, std::to_string(extent) + " is negative");
    if (extent > tile::kMaxLength) {
      return tile::unsupported(name, std::to_string(extent) + " is more than 2^29");
    }
  }
  if (p.heads == 0) return tile::invalid_argument("heads", "is 0");
  MethodProblem attention{.type = p.type,
                          .batch = p.batch,
                          .heads = p.heads,
                          .queries = p.length,
                          .keys = p.length,
                          .head_dim = p.head_dim};
  attention.scale = p.scale, attention.table_positions = p.length;
  if (p.encoding == Encoding::windowed) {
    attention.window = p.window, attention.causal = p.causal;
  }
  if (adds_table(p.encoding)) attention.rotary_dim = 0;
  if (tile::Status s = validate_sizes(attention); !s.ok()) {
    // Here whole rows are rotated, so rotary_dim is head_dim.
    if (s.message.rfind("rotary_dim: ", 0) == 0) s.message.replace(0, 6, "head");
    return s;
  }
  // So that a dozen of the largest tensor fit in 64 bits.
  const std::int64_t row = std::max(tile::product({p.heads, p.head_dim}), p.model_dim);
  const std::int64_t rows = std::max(tile::product({p.batch, p.length}), p.model_dim);
  if (tile::product({rows, row, 128}) < INT64_MAX) return {};
  return tile::unsupported("batch", "the tensors do not fit into 64 bits");
}

tile::Status validate(const HiddenProblem& p, const HiddenBuffers& b) {
  TILE_TRY(tile::check_requirements(kTypes, {}, p.type));
  TILE_TRY(validate_sizes(p));
  return check_tensors(is_empty(p), inputs_of(p, b),
                       {output_of(p, "o", b.o), tile::optional(lse_of(p, b.lse))},
                       {b.workspace, b.workspace_bytes});
}

tile::Status validate(const HiddenBackwardProblem& p, const HiddenBackwardBuffers& b) {
  TILE_TRY(tile::check_requirements(kTypes, {}, p.type));
  TILE_TRY(validate_sizes(p));
  std::vector<TensorArgument> inputs = inputs_of(p, b);
  inputs.push_back(output_of(p, "o", b.o));
  inputs.push_back(lse_of(p, b.lse));
  inputs.push_back(output_of(p, "dout", b.dout));
  const std::int64_t size = tile::element_bytes(p.type);
  std::vector<TensorArgument> outputs{tensor("dx", b.dx, p.batch, p.length, 1, p.model_dim, size),
                                      tensor("dtable", b.dtable, 1, p.length, 1, p.model_dim, size,
                                             p.encoding == Encoding::learned)};
  for (const auto& [name, data] : {std::pair{"dwq", b.dwq}, {"dwk", b.dwk}, {"dwv", b.dwv}}) {
    outputs.push_back(tensor(name, data, 1, p.model_dim, p.heads, p.head_dim, size));
  }
  return check_tensors(is_empty(p), inputs, outputs, {b.workspace, b.workspace_bytes});
}

tile::AttentionExpected reference(const HiddenProblem& p, const HiddenInputs& in) {
  const Projected all = project(p, in);
  return tile::attention_reference(
      sizes_of(p), {.q = all.q.value,
                    .k = all.k.value,
                    .v = all.v.value,
                    .q_bound = all.q.bound,
                    .k_bound = all.k.bound,
                    .far = {all.far_q.value, all.far_k.value, all.far_q.bound, all.far_k.bound},
                    .v_bound = all.v.bound});
}

HiddenGradients reference(const HiddenBackwardProblem& p, const HiddenInputs& in, Values o,
                          Values lse, Values dout) {
  const Projected all = project(p, in);
  const tile::AttentionGradients of_rows = tile::attention_gradients(
      sizes_of(p), {.q = all.q.value,
                    .k = all.k.value,
                    .v = all.v.value,
                    .o = o,
                    .lse = lse,
                    .dout = dout,
                    .q_bound = all.q.bound,
                    .k_bound = all.k.bound,
                    .far = {all.far_q.value, all.far_k.value, all.far_q.bound, all.far_k.bound},
                    .v_bound = all.v.bound});
  const Expected dq = rotated_back(p, of_rows.dq, of_rows.far_dq, PositionTable::far_query);
  const Expected dk = rotated_back(p, of_rows.dk, of_rows.far_dk, PositionTable::far_key);
  const Expected& dv = of_rows.dv;

  const matmul::Problem by = projection_of(p);
  const matmul::Problem of_weights{
      .type = p.type, .m = by.k, .n = by.n, .k = by.m, .transpose_a = true};
  HiddenGradients gradients;
  gradients.dwq = product(of_weights, all.h, dq);
  gradients.dwk = product(of_weights, all.h, dk);
  gradients.dwv = product(of_weights, all.of_values(p.encoding), dv);
  matmul::Problem back{.type = p.type, .m = by.m, .n = by.k, .k = by.n, .transpose_b = true};
  gradients.dx = product(back, dv, all.wv);
  back.beta = 1;
  gradients.dx = product(back, dk, all.wk, gradients.dx);
  gradients.dx = product(back, dq, all.wq, gradients.dx);
  if (p.encoding != Encoding::learned) return gradients;
  const rope::EmbeddingProblem embedding{.type = p.type,
                                         .batch = p.batch,
                                         .length = p.length,
                                         .dim = p.model_dim,
                                         .table_positions = p.length};
  gradients.dtable = rope::backward_reference(embedding, gradients.dx.value);
  for (std::size_t i = 0; i < gradients.dx.bound.size(); ++i) {  // the type rounds it once more
    gradients.dtable.bound[i % gradients.dtable.bound.size()] += 1.02 * gradients.dx.bound[i];
  }
  return gradients;
}

}  // namespace windowed_rope
