#include "harness/parallel.hpp"

#include <doctest/doctest.h>

#include <stdexcept>
#include <vector>

namespace tile {
namespace {

TEST_CASE("parts: every index once, whatever the count") {
  for (const std::size_t count : {0, 1, 9, 10, 11, 19, 20, 21, 1000, 1003}) {
    CAPTURE(count);
    std::vector<int> calls(count);
    in_parts(count, 10, [&](std::size_t begin, std::size_t end) {
      CHECK_MESSAGE((end - begin >= 10 || end - begin == count), "a part is too small");
      for (std::size_t i = begin; i < end; ++i) ++calls.at(i);
    });
    CHECK(calls == std::vector<int>(count, 1));
  }
}

TEST_CASE("parts: what one of them throws arrives") {
  for (const std::size_t bad : {0, 500, 999}) {
    const auto work = [bad](std::size_t begin, std::size_t end) {
      if (begin <= bad && bad < end) throw std::runtime_error("bad");
    };
    CHECK_THROWS_AS(in_parts(1000, 1, work), std::runtime_error);
  }
}

}  // namespace
}  // namespace tile
