// The references of attention from hidden states, made of those of its parts.
#include "hidden/reference.hpp"

#include <Eigen/Core>
#include <cmath>

#include "02_matmul/reference.hpp"
#include "embedding/reference.hpp"
#include "harness/parallel.hpp"
#include "harness/rounding.hpp"
#include "hidden/tables.hpp"
#include "method/tables.hpp"
#include "rotary/frequencies.hpp"
#include "rotary/reference.hpp"

namespace windowed_rope {
namespace {

using tile::Expected;
using Values = std::span<const double>;
using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// The rows of a factor or of a sum, as a matrix of Eigen.
Matrix matrix_of(Values values, std::int64_t rows, std::int64_t cols, bool transpose) {
  if (values.empty()) return Matrix::Zero(transpose ? cols : rows, transpose ? rows : cols);
  const Eigen::Map<const Matrix> stored(values.data(), rows, cols);
  if (transpose) return stored.transpose();
  return stored;
}

/// As chapter 02's reference, for factors that are results themselves and have bounds, unless they
/// are exact; with beta = 1, C has one, too.
Expected product(const matmul::Problem& p, const Expected& a, const Expected& b,
                 const Expected& c = {}) {
  Expected expected = matmul::reference(p, a.value, b.value, c.value, false);
  const auto of_a = [&p](Values values) {
    return matrix_of(values, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.transpose_a);
  };
  const auto of_b = [&p](Values values) {
    return matrix_of(values, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.transpose_b);
  };
  const Matrix a_off = of_a(a.bound), b_off = of_b(b.bound), a_most = of_a(a.value).cwiseAbs();
  const Matrix b_most = of_b(b.value).cwiseAbs() + b_off;
  Matrix off = Matrix::Zero(p.m, p.n);
  constexpr std::size_t kRowsForAThread = 64;
  tile::in_parts(static_cast<std::size_t>(p.m), kRowsForAThread,
                 [&](std::size_t begin, std::size_t end) {
                   const auto first = static_cast<Eigen::Index>(begin);
                   const auto count = static_cast<Eigen::Index>(end - begin);
                   auto rows = off.middleRows(first, count);
                   if (!a.bound.empty()) rows.noalias() += a_off.middleRows(first, count) * b_most;
                   if (!b.bound.empty()) rows.noalias() += a_most.middleRows(first, count) * b_off;
                 });
  // The errors are added up and rounded, too: that costs less than a hundredth in sums of up to
  // 100,000 products, and at most 2^-8 for the type.
  constexpr double kRounded = 1.02;
  for (std::size_t i = 0; i < expected.bound.size(); ++i) {
    const double of_c = c.bound.empty() ? 0 : c.bound[i];
    expected.bound[i] += kRounded * (off.data()[i] + of_c);
  }
  return expected;
}

std::vector<double> frequencies_of(const Hidden& p) {
  return rope::frequencies({.rotary_dim = p.head_dim});
}
rope::Layout layout_of(Encoding e) {
  return has_gain(e) ? rope::Layout::interleaved : rope::Layout::half_split;
}
constexpr tile::Rotary kRerope{.far = tile::FarRotation::rerope};

/// The positions by which tokens are rotated: their own, or those of far queries or far keys.
enum class PositionTable { own, far_query, far_key };
double place_of(const Hidden& p, PositionTable place, std::int64_t position) {
  switch (place) {
    case PositionTable::own: break;
    case PositionTable::far_query: return method::far_query_place(kRerope, p.window, position);
    case PositionTable::far_key: return method::far_key_place(kRerope, position);
  }
  return static_cast<double>(position);
}

/// Rows of q or k, or their gradients, times the gains.
Expected gained(const Hidden& p, Expected x) {
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
Expected rotated(const Hidden& p, Expected x, PositionTable place, rope::Pass pass) {
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
Expected rotated_back(const Hidden& p, const Expected& near, const Expected& far,
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

matmul::Problem projection_of(const Hidden& p) {
  return {.type = p.type, .m = p.batch * p.length, .n = p.heads * p.head_dim, .k = p.model_dim};
}

Projected project(const Hidden& p, const HiddenInputs& in) {
  const auto exact = [](Values values) { return Expected{{}, {values.begin(), values.end()}, {}}; };
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

tile::Attention sizes_of(const Hidden& p) {
  tile::Attention sizes{p.type,   p.batch,    p.heads,
                        p.length, p.length,   p.head_dim,
                        p.heads,  kUnlimited, p.causal ? 0 : kUnlimited,
                        p.scale};
  if (p.encoding == Encoding::windowed) sizes.window = p.window;
  if (p.encoding == Encoding::exposb) {
    sizes.distance_part = kExposbPart, sizes.distance_rate = kExposbRate;
  }
  return sizes;
}

}  // namespace

tile::AttentionExpected reference(const Hidden& p, const HiddenInputs& in) {
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

HiddenGradients backward_reference(const Hidden& p, const HiddenInputs& in, Values o, Values lse,
                                   Values dout) {
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
