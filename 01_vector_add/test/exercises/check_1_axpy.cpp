// Checks exercise 01.1. Not part of the task.
#include <doctest/doctest.h>

#include <cmath>

#include "exercises/exercises.hpp"
#include "harness/buffer.hpp"
#include "harness/inputs.hpp"
#include "harness/mistakes.hpp"
#include "tile/host/cuda_check.hpp"

using tile::DeviceBuffer;
using tile::DType;

TEST_CASE("01.1 axpy") {
  constexpr float kAlpha = 1.75f;
  constexpr double alpha = 1.75;
  for (const std::int64_t n : tile::odd_sizes(256)) {
    CAPTURE(n);
    const auto x = tile::normal(n, DType::fp32, 1), y = tile::normal(n, DType::fp32, 2);
    const auto layout = tile::vector_layout(DType::fp32, n);
    DeviceBuffer device_x = DeviceBuffer::input("x", layout, x);
    DeviceBuffer device_y = DeviceBuffer::in_out("y", layout, y);
    const tile::Status launched = vector_add::axpy(
        kAlpha, static_cast<const float*>(device_x.raw()), static_cast<float*>(device_y.raw()), n);
    REQUIRE_MESSAGE(launched.ok(), launched.message);
    const tile::Status done = tile::synchronize_status(nullptr);
    REQUIRE_MESSAGE(done.ok(), done.message);

    // One rounding for the product, unless it is fused, and one for the sum.
    auto expect = [&](auto formula) {
      tile::Expected expected{{n}, {}, {}};
      for (std::size_t i = 0; i < x.size(); ++i) {
        expected.value.push_back(formula(x[i], y[i]));
        expected.bound.push_back(2 * tile::unit_roundoff(DType::fp32) *
                                 (std::abs(alpha * x[i]) + 2 * std::abs(y[i])) * (alpha + 1));
      }
      return expected;
    };
    const auto right = expect([](double a, double b) { return alpha * a + b; });
    const tile::Comparison result = tile::compare("y", device_y.download(), right);
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
    CHECK_MESSAGE(result.ok(), result.message,
                  tile::explain_mistake(device_y.download(), mistakes));
    for (const DeviceBuffer* buffer : {&device_x, &device_y}) {
      const tile::Status intact = buffer->check();
      CHECK_MESSAGE(intact.ok(), intact.message);
    }
  }
}
