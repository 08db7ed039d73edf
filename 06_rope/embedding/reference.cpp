// The references of the position embeddings, with Eigen in double, and the sinusoidal
// table.
#include "embedding/reference.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>

#include "harness/rounding.hpp"

namespace rope {
namespace {

using Array = Eigen::ArrayXd;
constexpr double kUnit = tile::unit_roundoff(tile::DType::fp32);

/// A token's row of the table, or -1.
std::int64_t position_of(const EmbeddingProblem& p, std::span<const int> ids, std::int64_t token) {
  const std::int64_t position =
      ids.empty() ? p.first_position + token % p.length : ids[static_cast<std::size_t>(token)];
  return position < p.table_positions ? std::max<std::int64_t>(position, -1) : -1;
}

/// Stores values and bounds for results of a kernel in fp32, which are within `error` of the exact
/// ones.
void store(tile::DType type, const Array& value, const Array& error, std::int64_t at,
           tile::Expected* to) {
  const tile::Rounding rounding = tile::rounding_of(type);
  for (Eigen::Index i = 0; i < value.size(); ++i) {
    const auto element = static_cast<std::size_t>(at + i);
    const bool is_infinite = std::abs(value[i]) >= rounding.infinite;
    to->value[element] =
        is_infinite ? std::copysign(std::numeric_limits<double>::infinity(), value[i]) : value[i];
    const bool is_zero = value[i] == 0 && error[i] == 0;  // a value of every type
    to->bound[element] = is_zero ? 0 : error[i] + rounding.error(value[i], error[i]);
  }
}

tile::Expected empty_result(std::int64_t rows, std::int64_t dim) {
  const auto count = static_cast<std::size_t>(rows * dim);
  return {{rows, dim}, std::vector<double>(count), std::vector<double>(count)};
}

Eigen::Map<const Array> row_of(std::span<const double> rows, std::int64_t row, std::int64_t dim) {
  return {rows.data() + row * dim, dim};
}

}  // namespace

std::vector<double> sinusoids(std::int64_t positions, std::int64_t dim) {
  std::vector<double> table;
  for (std::int64_t p = 0; p < positions; ++p) {
    for (std::int64_t col = 0; col < dim; ++col) {
      const auto pair = static_cast<double>(col / 2 * 2);  // 2 i
      const double angle = static_cast<double>(p) * std::pow(1e4, -pair / static_cast<double>(dim));
      table.push_back(col % 2 == 0 ? std::sin(angle) : std::cos(angle));
    }
  }
  return table;
}

tile::Expected reference(const EmbeddingProblem& p, std::span<const double> x,
                         std::span<const double> table, std::span<const int> ids) {
  tile::Expected expected = empty_result(p.batch * p.length, p.dim);
  expected.shape = {p.batch, p.length, p.dim};
  for (std::int64_t token = 0; token < p.batch * p.length; ++token) {
    const std::int64_t position = position_of(p, ids, token);
    Array sum = Array::Constant(p.dim, std::numeric_limits<double>::quiet_NaN());
    if (position >= 0) sum = row_of(table, position, p.dim);
    if (x.empty()) {
      std::ranges::copy(sum, expected.value.begin() + token * p.dim);
      continue;
    }
    sum += row_of(x, token, p.dim);
    // The sum rounds once in fp32, also among denormals, and once more where it is stored.
    store(p.type, sum, kUnit * sum.abs(), token * p.dim, &expected);
  }
  return expected;
}

tile::Expected backward_reference(const EmbeddingProblem& p, std::span<const double> dy,
                                  std::span<const int> ids) {
  tile::Expected expected = empty_result(p.table_positions, p.dim);
  std::vector<std::vector<std::int64_t>> tokens_at(static_cast<std::size_t>(p.table_positions));
  for (std::int64_t token = 0; token < p.batch * p.length; ++token) {
    const std::int64_t position = position_of(p, ids, token);
    if (position >= 0) tokens_at[static_cast<std::size_t>(position)].push_back(token);
  }
  for (std::int64_t position = 0; position < p.table_positions; ++position) {
    const auto& here = tokens_at[static_cast<std::size_t>(position)];
    Array sum = Array::Zero(p.dim), magnitude = sum;
    for (const std::int64_t token : here) {
      sum += row_of(dy, token, p.dim);
      magnitude += row_of(dy, token, p.dim).abs();
    }
    // n numbers take n - 1 additions, in any order. Of many roundings some cancel: a surplus of 4
    // sqrt(n) in one direction is four standard deviations (Higham and Mary, "A new approach to
    // probabilistic rounding error analysis", 2019).
    const auto n = static_cast<double>(here.size());
    const double roundings = std::min(std::max(n - 1, 0.0), 4 * std::sqrt(n));
    const double relative = roundings * kUnit / (1 - roundings * kUnit);
    // atomicAdd in global memory takes a subnormal number for 0, and gives 0 for one (PTX ISA,
    // "red"): of each addition a term and a result.
    const double flushed = 2 * n * 0x1p-126;
    store(p.type, sum, relative * magnitude + flushed, position * p.dim, &expected);
  }
  return expected;
}

}  // namespace rope
