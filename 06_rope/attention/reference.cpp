// The references of attention with rotated q and k.
#include "attention/reference.hpp"

#include "rotary/reference.hpp"

namespace rope {
namespace {

/// Rotated rows of q or k, or of their gradients: those of the tokens with these numbers, or of
/// all.
template <class Call>
tile::Expected rotated(const Call& p, Pass pass, std::int64_t heads, std::span<const double> x,
                       std::span<const double> x_bound, std::span<const double> frequencies,
                       std::span<const int> positions, std::span<const std::int64_t> tokens) {
  RotaryProblem r = rotation_of(p);
  r.pass = pass;
  r.batch = 1;
  r.length = tokens.empty() ? p.batch * p.queries : std::ssize(tokens);
  std::vector<int> of_rows;
  for (std::int64_t row = 0; row < r.length; ++row) {
    const std::int64_t token = tokens.empty() ? row : tokens[static_cast<std::size_t>(row)];
    of_rows.push_back(positions.empty()
                          ? static_cast<int>(p.rotary.first_position + token % p.queries)
                          : positions[static_cast<std::size_t>(token)]);
  }
  return reference(r, x, heads, frequencies, of_rows, Angles::tables, x_bound);
}

}  // namespace

tile::AttentionExpected reference(const AttentionForward& p, const AttentionInputs& in,
                                  std::span<const std::int64_t> rows) {
  const auto turn = [&](std::int64_t heads, std::span<const double> x,
                        std::span<const std::int64_t> tokens) {
    return rotated(p, Pass::forward, heads, x, {}, in.frequencies, in.positions, tokens);
  };
  const tile::Expected q = turn(p.heads, in.q, rows), k = turn(p.kv_heads, in.k, {});
  return tile::attention_reference(p, {q.value, k.value, in.v, {}, {}, q.bound, k.bound}, rows);
}

tile::AttentionGradients reference(const AttentionBackward& p, const AttentionBackwardInputs& in,
                                   std::span<const std::int64_t> query_rows,
                                   std::span<const std::int64_t> key_rows) {
  const auto turn = [&](Pass pass, std::int64_t heads, std::span<const double> x,
                        std::span<const double> bound, std::span<const std::int64_t> tokens) {
    return rotated(p, pass, heads, x, bound, in.frequencies, in.positions, tokens);
  };
  const tile::Expected q = turn(Pass::forward, p.heads, in.q, {}, {});
  const tile::Expected k = turn(Pass::forward, p.kv_heads, in.k, {}, {});
  tile::AttentionGradients gradients = tile::attention_gradients(
      p, {q.value, k.value, in.v, in.o, in.lse, in.dout, {}, {}, q.bound, k.bound}, query_rows,
      key_rows);
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
