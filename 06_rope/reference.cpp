// The reference on the CPU, with Eigen in double, and the checks of the arguments.
#include <Eigen/Core>
#include <cmath>
#include <limits>
#include <string>

#include "harness/parallel.hpp"
#include "harness/rounding.hpp"
#include "rotary.hpp"
#include "tables.hpp"
#include "tile/host/tensor_argument.hpp"
#include "tile/host/text.hpp"

namespace rope {
namespace {

using tile::TensorArgument;

constexpr std::int64_t kMaxExtent = std::int64_t{1} << 29;

}  // namespace

tile::Status validate_sizes(const RotaryProblem& p) {
  for (const auto& [name, extent] : {std::pair{"batch", p.batch},
                                     {"length", p.length},
                                     {"heads", p.heads},
                                     {"kv_heads", p.kv_heads},
                                     {"head_dim", p.head_dim},
                                     {"rotary_dim", p.rotary_dim},
                                     {"first_position", p.first_position},
                                     {"table_positions", p.table_positions}}) {
    if (extent < 0) return tile::invalid_argument(name, std::to_string(extent) + " is negative");
    if (extent > kMaxExtent) {
      return tile::unsupported(name, std::to_string(extent) + " is more than 2^29");
    }
  }
  if (p.head_dim == 0) return tile::invalid_argument("head_dim", "is 0");
  if (p.rotary_dim % 2 != 0) {
    return tile::invalid_argument("rotary_dim", std::to_string(p.rotary_dim) + " is odd");
  }
  if (p.rotary_dim > p.head_dim) {
    return tile::invalid_argument("rotary_dim", std::to_string(p.rotary_dim) +
                                                    " is more than head_dim, which is " +
                                                    std::to_string(p.head_dim));
  }
  if (p.layout != Layout::half_split && p.layout != Layout::interleaved) {
    return tile::invalid_argument("layout", "is neither half_split nor interleaved");
  }
  if (p.pass != Pass::forward && p.pass != Pass::backward) {
    return tile::invalid_argument("pass", "is neither forward nor backward");
  }
  if (!(p.attention_factor > 0) || !std::isfinite(p.attention_factor)) {
    return tile::invalid_argument("attention_factor",
                                  tile::number(p.attention_factor) + " is not positive and finite");
  }
  return {};
}

namespace {

TensorArgument rows(const RotaryProblem& p, const char* name, const void* data, Strides stride,
                    std::int64_t heads) {
  const auto bytes = static_cast<std::int64_t>(tile::size_bytes(p.type));
  return {name, data, stride, p.batch, p.length, heads, p.head_dim, bytes};
}
/// A row for each position, or one.
template <class T>
TensorArgument numbers(const RotaryProblem& p, const char* name, const T* data,
                       std::int64_t positions) {
  return {.name = name,
          .data = data,
          .stride = {0, 0, p.rotary_dim / 2},
          .batch = 1,
          .length = positions,
          .heads = 1,
          .dim = p.rotary_dim / 2,
          .element_bytes = sizeof(T),
          .may_be_null = true};
}

std::vector<TensorArgument> all_rows(const RotaryProblem& p, const RotaryBuffers& b) {
  return {rows(p, "q", b.q, p.q, p.heads), rows(p, "k", b.k, p.k, p.kv_heads),
          rows(p, "q_out", b.q_out, p.q_out, p.heads),
          rows(p, "k_out", b.k_out, p.k_out, p.kv_heads)};
}

}  // namespace

tile::Status validate_tensors(const RotaryProblem& p, const RotaryBuffers& b) {
  if (tile::Status s = validate_sizes(p); !s.ok()) return s;
  TensorArgument q_out = rows(p, "q_out", b.q_out, p.q_out, p.heads);
  TensorArgument k_out = rows(p, "k_out", b.k_out, p.k_out, p.kv_heads);
  q_out.may_be = "q", k_out.may_be = "k";
  std::vector<TensorArgument> inputs = tables_of(p, b);
  inputs.push_back(rows(p, "q", b.q, p.q, p.heads));
  inputs.push_back(rows(p, "k", b.k, p.k, p.kv_heads));
  if (tile::Status s = tile::check_tensors(is_empty(p), inputs, {q_out, k_out}, {}); !s.ok()) {
    return s;
  }
  return check_tables(p, b);
}

std::vector<TensorArgument> tables_of(const RotaryProblem& p, const RotaryBuffers& b) {
  return {numbers(p, "cos", b.cos, p.table_positions),
          numbers(p, "sin", b.sin, p.table_positions),
          numbers(p, "frequencies", b.frequencies, 1),
          {"positions", b.positions, {p.length, 0, 1}, p.batch, p.length, 1, 1, 4, true}};
}

tile::Status check_tables(const RotaryProblem& p, const RotaryBuffers& b) {
  if (is_empty(p) || p.rotary_dim == 0) return {};
  if (!b.cos != !b.sin) return tile::invalid_argument(b.cos ? "sin" : "cos", "is null");
  if (!b.cos && !b.frequencies) return tile::invalid_argument("cos", "is null");
  if (!b.positions && p.first_position + p.length > p.table_positions) {
    return tile::invalid_argument("table_positions",
                                  std::to_string(p.table_positions) +
                                      " do not reach the last token's position, " +
                                      std::to_string(p.first_position + p.length - 1));
  }
  return {};
}

tile::Status validate(const RotaryProblem& p, const RotaryBuffers& b) {
  if (tile::Status s = tile::check_requirements(kTypes, {}, p.type); !s.ok()) return s;
  return validate_tensors(p, b);
}

tile::Status check_chunks(const RotaryProblem& p, const RotaryBuffers& b) {
  if (tile::Status s = tile::check_row_chunks(p.type, all_rows(p, b)); !s.ok()) return s;
  for (const auto& [name, data] : {std::pair{"cos", b.cos}, {"sin", b.sin}}) {
    if (reinterpret_cast<std::uintptr_t>(data) % 16 != 0) {
      return tile::unsupported(name, "is not aligned to 16 bytes");
    }
  }
  return {};
}

tile::Expected reference(const RotaryProblem& p, std::span<const double> x, std::int64_t heads,
                         std::span<const double> frequencies, std::span<const int> positions,
                         Angles angles, std::span<const double> x_bound,
                         std::span<const double> places) {
  // For x c - y s, with u = 2^-24: each factor is off by u if it is rounded, and by 2 u and a
  // product with the attention factor more if it is computed; then the angle is off by pi u / 2,
  // half a unit of the half turns, which are below 1. y s is rounded, and so is the sum.
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
