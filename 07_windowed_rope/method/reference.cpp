// The references of the methods: those of windowed attention, of rotated rows.
#include "method/reference.hpp"

#include <algorithm>
#include <cmath>

#include "harness/rounding.hpp"
#include "method/method.hpp"
#include "method/tables.hpp"
#include "rotary/reference.hpp"
#include "windowed/reference.hpp"

namespace windowed_rope::method {
namespace {

/// The positions of tokens for each of their rotations: of the queries with these numbers, or of
/// all, and of keys.
struct Places {
  std::vector<double> own, far;
};
template <class Inputs>
Places query_places(const tile::Attention& p, const Inputs& in,
                    std::span<const std::int64_t> rows) {
  Places places;
  const std::int64_t count = rows.empty() ? p.batch * p.queries : std::ssize(rows);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row = rows.empty() ? i : rows[static_cast<std::size_t>(i)];
    const tile::Mask mask =
        tile::mask_of_entry(p, in.query_lengths, in.key_lengths, row / p.queries);
    // A query before the first key sees none, and its rotation does not matter.
    const int position = std::max(0, mask.position(static_cast<int>(row % p.queries)));
    places.own.push_back(static_cast<double>(position));
    places.far.push_back(far_query_place(p.rotary, p.window, position));
  }
  return places;
}
Places key_places(const tile::Attention& p, std::span<const std::int64_t> rows) {
  Places places;
  const std::int64_t count = rows.empty() ? p.batch * p.keys : std::ssize(rows);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row = rows.empty() ? i : rows[static_cast<std::size_t>(i)];
    places.own.push_back(static_cast<double>(row % p.keys));
    places.far.push_back(far_key_place(p.rotary, row % p.keys));
  }
  return places;
}

tile::Expected rotated(const tile::Attention& p, rope::Pass pass, std::int64_t heads,
                       std::span<const double> x, std::span<const double> x_bound,
                       std::span<const double> frequencies, std::span<const double> places) {
  rope::RotaryProblem r{.type = p.type,
                        .batch = 1,
                        .length = std::ssize(places),
                        .heads = heads,
                        .kv_heads = 0,
                        .head_dim = p.head_dim,
                        .rotary_dim = p.rotary.rotary_dim};
  r.layout = p.rotary.layout;
  r.pass = pass;
  r.attention_factor = p.rotary.attention_factor;
  return rope::reference(r, x, heads, frequencies, {}, rope::Angles::tables, x_bound, places);
}

/// R(i)^T near + R(i')^T far, rounded.
tile::Expected rotated_back(const tile::Attention& p, std::int64_t heads,
                            const tile::Expected& near, const tile::Expected& far,
                            std::span<const double> frequencies, const Places& places) {
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

tile::AttentionExpected reference(const AttentionForward& p, const ForwardInputs& in,
                                  std::span<const std::int64_t> rows) {
  const Places of_q = query_places(p, in, rows), of_k = key_places(p, {});
  const auto turn = [&](std::int64_t heads, std::span<const double> x,
                        std::span<const double> places) {
    return rotated(p, rope::Pass::forward, heads, x, {}, in.frequencies, places);
  };
  const tile::Expected q1 = turn(p.heads, in.q, of_q.own), q2 = turn(p.heads, in.q, of_q.far);
  const tile::Expected k1 = turn(p.kv_heads, in.k, of_k.own);
  const tile::Expected k2 = turn(p.kv_heads, in.k, of_k.far);
  return windowed_rope::reference(attention_of(p),
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

tile::AttentionGradients reference(const AttentionBackward& p, const BackwardInputs& in,
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
  const tile::AttentionGradients of_rotated =
      windowed_rope::reference(attention_of(p),
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

}  // namespace windowed_rope::method
