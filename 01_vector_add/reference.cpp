// The reference on the CPU, with Eigen.
#include "reference.hpp"

#include <Eigen/Core>

#include "harness/convert.hpp"
#include "harness/parallel.hpp"

namespace vector_add {

tile::Expected reference(tile::DType type, std::span<const double> a, std::span<const double> b) {
  using Vector = Eigen::Map<const Eigen::ArrayXd>;
  const auto n = static_cast<Eigen::Index>(a.size());
  // The double sum may be rounded itself, and rounding twice could differ from rounding once. It
  // does not: double has 53 bits of significand, at least 2p + 2 for every type of p <= 24 bits
  // (Figueroa, "When is double rounding innocuous?", 1995).
  tile::Expected expected{{n}, std::vector<double>(a.size()), std::vector<double>(a.size())};
  tile::in_parts(a.size(), tile::kElementsForAThread, [&](std::size_t begin, std::size_t end) {
    const auto count = static_cast<Eigen::Index>(end - begin);
    Eigen::Map<Eigen::ArrayXd>(&expected.value[begin], count) =
        Vector(&a[begin], count) + Vector(&b[begin], count);
    tile::round_to(std::span(expected.value).subspan(begin, end - begin), type);
  });
  return expected;
}

}  // namespace vector_add
