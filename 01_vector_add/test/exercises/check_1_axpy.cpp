// Checks exercise 01.1. Not part of the task.
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "exercises/exercises.hpp"
#include "harness/answer.hpp"
#include "harness/failure.hpp"
#include "harness/inputs.hpp"
#include "harness/mistakes.hpp"

using tile::DeviceBuffer;
using tile::DType;

namespace {

constexpr float kAlpha = 1.75f;
constexpr double alpha = kAlpha;
constexpr std::size_t kThreads = 256;  // of a block

// One rounding for the product, unless it is fused, and one for the sum.
double bound(double x, double y) {
  return 2 * tile::unit_roundoff(DType::fp32) * (std::abs(alpha * x) + 2 * std::abs(y)) *
         (alpha + 1);
}

/// What has happened if threads have shared elements: every y is y + k alpha x, with a k of its
/// own.
std::string explain_updates(const std::vector<double>& got, const std::vector<double>& x,
                            const std::vector<double>& y) {
  std::vector<double> updates;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double k = std::round((got[i] - y[i]) / (alpha * x[i]));
    const double off = std::abs(got[i] - (y[i] + k * alpha * x[i]));
    if (!(k >= 0 && off <= (k + 1) * bound(k * x[i], y[i]))) return {};
    updates.push_back(k);
  }
  const auto most = std::ranges::max_element(updates);
  const auto left = std::ranges::find(updates, 0.0);  // the first that no thread has updated
  const bool to_the_end = std::all_of(left, updates.end(), [](double k) { return k == 0; });
  const std::string begin = std::string(tile::kMistake) + std::to_string(static_cast<int>(*most)) +
                            " threads have updated y[" + std::to_string(most - updates.begin()) +
                            "]";
  if (*most > 1 && updates.size() <= kThreads) {
    return begin +
           (left == updates.end()
                ? " and all other elements. Each thread takes one i, its own, and needs no loop"
                : ": is threadIdx.x missing from i?");
  }
  if (to_the_end && left - updates.begin() == std::ptrdiff_t{kThreads}) {
    return std::string(tile::kMistake) +
           "every block has updated the first 256 elements, and none the others: is i made of "
           "threadIdx.x alone?";
  }
  return *most > 1 ? begin + ": which elements are a block's, and which the next block's?" : "";
}

}  // namespace

TEST_CASE("01.1 axpy") {
  std::vector<std::int64_t> sizes = tile::odd_sizes(256);
  // A single element does not tell whether a thread takes others as well.
  std::swap(*std::ranges::find(sizes, 1), *std::ranges::find(sizes, 2));
  for (const std::int64_t n : sizes) {
    CAPTURE(n);
    const auto x = tile::normal(n, DType::fp32, 1), y = tile::normal(n, DType::fp32, 2);
    const auto layout = tile::vector_layout(DType::fp32, n);
    DeviceBuffer device_x = DeviceBuffer::input("x", layout, x);
    DeviceBuffer device_y = DeviceBuffer::in_out("y", layout, y);
    tile::run_answer(
        [&] {
          return vector_add::axpy(kAlpha, static_cast<const float*>(device_x.raw()),
                                  static_cast<float*>(device_y.raw()), n);
        },
        std::array{&device_x, &device_y});

    auto expect = [&](auto formula) {
      tile::Expected expected{{n}, {}, {}};
      for (std::size_t i = 0; i < x.size(); ++i) {
        expected.value.push_back(formula(x[i], y[i]));
        expected.bound.push_back(bound(x[i], y[i]));
      }
      return expected;
    };
    const std::vector<double> got = device_y.download();
    const tile::Mistake mistakes[] = {
        {"y is as it was: the kernel has not written anything yet",
         expect([](double, double b) { return b; })},
        {"this is x + y: alpha is not used", expect([](double a, double b) { return a + b; })},
        {"this is alpha * (x + y): alpha belongs to x alone",
         expect([](double a, double b) { return alpha * (a + b); })},
        {"this is x + alpha * y: alpha is at the wrong vector",
         expect([](double a, double b) { return a + alpha * b; })},
        {"this is alpha * x: the old y is missing",
         expect([](double a, double) { return alpha * a; })},
    };
    const auto right = expect([](double a, double b) { return alpha * a + b; });
    tile::require_right("y", got, right, [&] {
      const std::string found = tile::explain_mistake(got, mistakes);
      return found.empty() ? explain_updates(got, x, y) : found;
    });
  }
}
