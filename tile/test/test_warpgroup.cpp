// Named barriers, and registers that warpgroups pass to one another.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "harness/test_main.hpp"
#include "memory.hpp"
#include "tile/host/device.hpp"
#include "warpgroup_kernels.hpp"

using namespace ptx_test;
using Ints = std::vector<int>;

TEST_SUITE("warpgroup") {
  TEST_CASE("a warp hands on to others by two named barriers") {
    for (const int items : {1, 2, 9}) {
      CAPTURE(items);
      Ints expected;
      for (int i = 0; i < items; ++i) {
        for (int t = 0; t < 64; ++t) expected.push_back(i * 1000 + t);
      }
      const DeviceVector<int> out("out", Ints(expected.size(), -1));
      require(pass_by_named_barriers(items, out.data()));
      CHECK(out.download() == expected);
    }
  }

  TEST_CASE("groups of a block meet as often as each of them likes") {
    const DeviceVector<int> out("out", Ints(128, -1));
    require(meet_in_groups(5, 12, out.data()));
    Ints expected;
    for (const int rounds : {5, 12}) {
      for (int t = 0; t < 64; ++t) expected.push_back(rounds * ((t + 1) % 64));
    }
    CHECK(out.download() == expected);
  }

  TEST_CASE("one lane of each warp is elected, the same one each time") {
    if (tile::device().capability < 90) {
      tile::skip("elect.sync needs compute capability 9.0");
      return;
    }
    for (const int threads : {32, 96, 256, 1024}) {
      CAPTURE(threads);
      const int blocks = 3;
      const DeviceVector<int> out("out", Ints(static_cast<std::size_t>(blocks) * threads, -1));
      require(elect_lanes(blocks, threads, out.data()));
      const Ints got = out.download();
      for (std::size_t first = 0; first < got.size(); first += 32) {
        CAPTURE(first);
        const Ints lanes(got.begin() + static_cast<std::ptrdiff_t>(first),
                         got.begin() + static_cast<std::ptrdiff_t>(first) + 32);
        const bool again = first % static_cast<std::size_t>(threads) / 32 % 2 == 1;
        CHECK(std::ranges::count(lanes, again ? 3 : 1) == 1);
        CHECK(std::ranges::count(lanes, 0) == 31);
      }
    }
  }

  TEST_CASE("one warpgroup gives up registers, and two take them") {
    if (tile::device().capability != 90) {
      tile::skip("setmaxnreg needs compute capability 9.0");
      return;
    }
    const DeviceVector<int> out("out", Ints(384, -1));
    require(move_registers(out.data()));
    Ints expected;
    for (int t = 0; t < 384; ++t) expected.push_back((t % 50) * (t % 50 + 1) / 2);
    CHECK(out.download() == expected);
  }
}
