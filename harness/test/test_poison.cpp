#include "harness/poison.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "harness/buffer.hpp"
#include "harness/compare.hpp"
#include "harness/convert.hpp"

namespace tile {
namespace {

TEST_CASE("poison: each is known in every type, and not taken for another") {
  const Poison all[] = {Poison::unwritten_nan, Poison::unwritten_finite, Poison::outside,
                        Poison::uninitialised};
  for (const DType dtype : kDTypes) {
    if (dtype == DType::e4m3) continue;  // no result has it
    CAPTURE(name(dtype));
    for (const Poison poison : all) {
      for (const Poison other : all) {
        CHECK(is_poison(poison_value(poison, dtype), other) == (poison == other));
      }
      CHECK(std::isnan(poison_value(poison, dtype)) == (poison != Poison::unwritten_finite));
      // No zero byte: a stray memset to 0 shows in a canary.
      for (const std::byte byte : poison_bytes(poison, dtype)) CHECK(byte != std::byte{0});
      CHECK(poison_bytes(poison, dtype).size() == size_bytes(dtype));
    }
    CHECK(poison_value(Poison::unwritten_finite, dtype) < -5e4);
  }
}

TEST_CASE("poison: where a NaN is expected a test runs with a finite one as well") {
  const Expected finite{{2}, {1, -2}, {0, 0}}, nan{{1}, {std::nan("")}, {0}};
  CHECK(poisons_for({&finite}) == std::vector{Poison::unwritten_nan});
  CHECK(poisons_for({&finite, &nan}) ==
        std::vector{Poison::unwritten_nan, Poison::unwritten_finite});
}

TEST_CASE("poison: the uninitialised one is what all-ones memory reads as") {
  for (const DType dtype : kDTypes) {
    if (dtype == DType::e4m3) continue;
    const std::vector<std::byte> ones(size_bytes(dtype), std::byte{0xFF});
    CHECK(is_poison(to_double(ones.data(), dtype, 1).front(), Poison::uninitialised));
  }
}

TEST_CASE("poison: ordinary values are none, NaN from arithmetic included") {
  volatile double zero = 0;  // so that the division happens at run time
  for (const double value : {0.0, 1.0, -5e4, HUGE_VAL, std::nan(""), zero / zero}) {
    CHECK_FALSE(is_poison(value, Poison::unwritten_nan));
    CHECK_FALSE(is_poison(value, Poison::unwritten_finite));
    CHECK_FALSE(is_poison(value, Poison::outside));
    CHECK_FALSE(is_poison(value, Poison::uninitialised));
  }
}

TEST_CASE("poison: an output buffer is full of it, and unwritten elements are reported") {
  for (const Poison poison : kOutputPoisons) {
    for (const DType dtype : kDTypes) {
      if (dtype == DType::e4m3) continue;
      const auto buffer = DeviceBuffer::output("c", vector_layout(dtype, 3), poison);
      CHECK(buffer.check().ok());
      CHECK(buffer.check_unchanged().ok());
      for (const double value : buffer.download()) CHECK(is_poison(value, poison));
      const Comparison c = compare("c", buffer.download(), {{3}, {1, 2, 3}, {0, 0, 0}});
      CHECK(c.mismatches == 3);
      CHECK(c.message.find("never written") != std::string::npos);
    }
  }
}

TEST_CASE("poison: an element that was not written cannot pass with both poisons") {
  const double values[] = {std::nan(""), poison_value(Poison::unwritten_finite, DType::fp32)};
  for (const double value : values) {  // the two that an unwritten element could pass for
    int passed = 0;
    for (const Poison poison : kOutputPoisons) {
      const auto buffer = DeviceBuffer::output("c", vector_layout(DType::fp32, 1), poison);
      passed += compare("c", buffer.download(), {{1}, {value}, {1.0}}).ok();
    }
    CHECK(passed == 1);
  }
}

}  // namespace
}  // namespace tile
