// The reference of the rotation on the CPU, with Eigen in double.
#include "rotary/reference.hpp"

#include <Eigen/Core>
#include <cmath>
#include <limits>

#include "harness/parallel.hpp"
#include "harness/rounding.hpp"

namespace rope {

tile::Expected reference(const RotaryProblem& p, std::span<const double> x, std::int64_t heads,
                         std::span<const double> frequencies, std::span<const int> positions,
                         Angles angles, std::span<const double> x_bound,
                         std::span<const double> places) {
  // For x c - y s, with u = 2^-24: each factor is off by u if it is rounded. If it is computed, it
  // is off by 2 u, the attention factor by u, and their product by u; then the angle is off by pi u
  // / 2, half a unit of the half turns, which are below 1. y s is rounded, and so is the sum.
  constexpr double kUnit = 0x1.00001p-24, kHalfPi = 1.5707963267948966;
  const double of_products = (angles == Angles::tables ? 3 : 6) * kUnit;
  const double of_angle = angles == Angles::tables ? 0 : kHalfPi * kUnit;
  const tile::Rounding rounding = tile::rounding_of(p.type);
  const std::int64_t pairs = p.rotary_dim / 2;
  const double sign = p.pass == Pass::forward ? 1 : -1, factor = p.attention_factor;

  tile::Expected expected;
  expected.shape = {p.batch, p.length, heads, p.head_dim};
  expected.value.assign(x.begin(), x.end());
  expected.bound.assign(x.size(), 0);  // elements that are not rotated are copied
  std::ranges::copy(x_bound, expected.bound.begin());
  using Array = Eigen::ArrayXd;
  using Strided = Eigen::Map<Array, 0, Eigen::InnerStride<>>;
  const Eigen::Map<const Array> f(frequencies.data(), pairs);
  tile::in_parts(
      static_cast<std::size_t>(p.batch * p.length), 64, [&](std::size_t begin, std::size_t end) {
        for (std::size_t token = begin; token < end; ++token) {
          const std::int64_t position =
              positions.empty() ? p.first_position + static_cast<std::int64_t>(token) % p.length
                                : positions[token];
          const bool is_known = !places.empty() || (position >= 0 && position < p.table_positions);
          const double place = places.empty() ? static_cast<double>(position) : places[token];
          const Array c = factor * (place * f).cos();
          const Array s = factor * sign * (place * f).sin();
          for (std::int64_t head = 0; head < heads; ++head) {
            const std::size_t row =
                (token * static_cast<std::size_t>(heads) + static_cast<std::size_t>(head)) *
                static_cast<std::size_t>(p.head_dim);
            if (!is_known) {
              std::fill_n(expected.value.begin() + static_cast<std::ptrdiff_t>(row), p.head_dim,
                          std::numeric_limits<double>::quiet_NaN());
              continue;
            }
            const bool half = p.layout == Layout::half_split;
            const Eigen::InnerStride<> step(half ? 1 : 2);
            const std::size_t other = row + static_cast<std::size_t>(half ? pairs : 1);
            Strided a(expected.value.data() + row, pairs, step);
            Strided b(expected.value.data() + other, pairs, step);
            Strided a_bound(expected.bound.data() + row, pairs, step);
            Strided b_bound(expected.bound.data() + other, pairs, step);
            const Array ax = a, bx = b, turned_a = ax * c - bx * s, turned_b = bx * c + ax * s;
            const Array a_off = a_bound, b_off = b_bound;  // 0 if x is exact
            const auto bound = [&](const Array& m, const Array& m_off, const Array& n,
                                   const Array& n_off, const Array& value) -> Array {
              const Array off = m_off * c.abs() + n_off * s.abs();
              const Array error = off + of_products * ((m * c).abs() + (n * s).abs() + off) +
                                  factor * of_angle * (m.abs() + m_off + n.abs() + n_off) +
                                  0x1p-149;
              return value.binaryExpr(error,
                                      [&](double v, double e) { return e + rounding.error(v, e); });
            };
            a_bound = bound(ax, a_off, bx, b_off, turned_a);
            b_bound = bound(bx, b_off, ax, a_off, turned_b);
            a = turned_a, b = turned_b;
          }
        }
      });
  return expected;
}

}  // namespace rope
