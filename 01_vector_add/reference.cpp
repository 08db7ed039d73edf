// The reference on the CPU, with Eigen.
#include "reference.hpp"

#include <Eigen/Core>

#include "harness/convert.hpp"

namespace vector_add {

tile::Expected reference(tile::DType type, std::span<const double> a, std::span<const double> b) {
  using Vector = Eigen::Map<const Eigen::ArrayXd>;
  const auto n = static_cast<Eigen::Index>(a.size());
  // The double sum may be rounded itself, and rounding twice could differ from rounding once. It
  // does not: double has 53 bits of significand, at least 2p + 2 for every type of p <= 24 bits
  // (Figueroa, "When is double rounding innocuous?", 1995).
  const Eigen::ArrayXd sum = Vector(a.data(), n) + Vector(b.data(), n);
  tile::Expected expected;
  expected.shape = {n};
  expected.value = tile::rounded({sum.data(), a.size()}, type);
  expected.bound.assign(a.size(), 0.0);
  return expected;
}

}  // namespace vector_add
