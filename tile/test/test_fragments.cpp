// The maps of tile/ptx/fragments.hpp against the formulas that the PTX ISA gives for each shape
// ("Matrix Fragments for mma…", "ldmatrix"). Runs on the host.
#include <doctest/doctest.h>

#include "tile/ptx/fragments.hpp"

using tile::ptx::Element;
namespace layout = tile::ptx;

namespace {

using Map = Element (*)(int lane, int i);

/// The formulas speak of groupID, threadID_in_group and the element's number.
using Formula = int (*)(int group, int thread, int i);

void check(int count, Map map, Formula row, Formula col) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < count; ++i) {
      CAPTURE(lane);
      CAPTURE(i);
      CHECK(map(lane, i).row == row(lane / 4, lane % 4, i));
      CHECK(map(lane, i).col == col(lane / 4, lane % 4, i));
    }
  }
}

int group_of(int group, int, int) { return group; }

}  // namespace

TEST_SUITE("fragments") {
  TEST_CASE("m16n8k16 of 16 bits") {
    check(
        8, layout::element_of_a<16>,
        [](int g, int, int i) { return (i >= 0 && i < 2) || (i >= 4 && i < 6) ? g : g + 8; },
        [](int, int t, int i) { return i < 4 ? t * 2 + (i & 1) : t * 2 + (i & 1) + 8; });
    check(
        4, layout::element_of_b<16>,
        [](int, int t, int i) { return i < 2 ? t * 2 + (i & 1) : t * 2 + (i & 1) + 8; }, group_of);
  }

  TEST_CASE("m16n8k8 of 16 bits") {
    check(
        4, layout::element_of_a<16>, [](int g, int, int i) { return i < 2 ? g : g + 8; },
        [](int, int t, int i) { return t * 2 + (i & 1); });
    check(
        2, layout::element_of_b<16>, [](int, int t, int i) { return t * 2 + i; }, group_of);
  }

  TEST_CASE("m16n8k8 of tf32") {
    check(
        4, layout::element_of_a<32>, [](int g, int, int i) { return i == 0 || i == 2 ? g : g + 8; },
        [](int, int t, int i) { return i == 0 || i == 1 ? t : t + 4; });
    check(
        2, layout::element_of_b<32>, [](int, int t, int i) { return i == 0 ? t : t + 4; },
        group_of);
  }

  TEST_CASE("m16n8k32 of 8 bits") {
    check(
        16, layout::element_of_a<8>,
        [](int g, int, int i) { return (i >= 0 && i < 4) || (i >= 8 && i < 12) ? g : g + 8; },
        [](int, int t, int i) { return i < 8 ? t * 4 + (i & 3) : t * 4 + (i & 3) + 16; });
    check(
        8, layout::element_of_b<8>,
        [](int, int t, int i) { return i < 4 ? t * 4 + (i & 3) : t * 4 + (i & 3) + 16; }, group_of);
  }

  TEST_CASE("C and D") {
    check(
        4, layout::element_of_d, [](int g, int, int i) { return i < 2 ? g : g + 8; },
        [](int, int t, int i) { return t * 2 + (i & 1); });
  }

  TEST_CASE("ldmatrix") {
    check(2, layout::element_of_ldmatrix, group_of, [](int, int t, int i) { return t * 2 + i; });
    check(
        2, layout::element_of_ldmatrix_trans, [](int, int t, int i) { return t * 2 + i; },
        group_of);
  }
}
