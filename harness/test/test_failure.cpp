#include "harness/failure.hpp"

#include <doctest/doctest.h>

#include "harness/buffer.hpp"
#include "harness/test/contains.hpp"

namespace tile {
namespace {

TEST_CASE("failure: what was said, where, with which inputs, and the last hint alone") {
  Failure failure{{"x = 1 2"}, {}, {}};
  for (const char* context :
       {"n := 97", "type := fp32", "y: 1 of 97 differs\n  first y[3]\nHint: a tail?", "Hint: k"}) {
    failure.add(context);
  }
  CHECK(in_words(failure) ==
        "y: 1 of 97 differs\n  first y[3]\n  where n = 97, type = fp32\n  with x = 1 2\nHint: k");
  failure.add("Mistake: m");
  CHECK(
      contains(in_words(failure), "[3]\n  where n = 97, type = fp32\n  with x = 1 2\nMistake: m"));
  CHECK(in_words({{}, {}, "no hint"}) == "no hint");
}

TEST_CASE("failure: of the inputs those with few values are shown, while they are there") {
  const std::size_t before = small_inputs().size();
  {
    const std::vector<double> few{1, 2.5, -3}, many(9, 1.0);
    const auto layout = vector_layout(DType::fp32, 3);
    const DeviceBuffer x = DeviceBuffer::input("x", layout, few);
    const DeviceBuffer y = DeviceBuffer::in_out("y", vector_layout(DType::fp32, 9), many);
    const DeviceBuffer z = DeviceBuffer::output("z", layout, Poison::unwritten_nan);
    REQUIRE(small_inputs().size() == before + 1);
    CHECK(small_inputs().back() == "x = 1 2.5 -3");
  }
  CHECK(small_inputs().size() == before);
}

}  // namespace
}  // namespace tile
