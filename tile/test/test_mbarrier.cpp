// Mbarriers, and asynchronous stores to other blocks.
#include <doctest/doctest.h>

#include <vector>

#include "harness/test_main.hpp"
#include "mbarrier_kernels.hpp"
#include "memory.hpp"
#include "tile/host/device.hpp"

using namespace ptx_test;

namespace {

using Ints = std::vector<int>;

// 16 is more than every card with clusters takes; an H100 does.
std::vector<unsigned> cluster_sizes() {
  std::vector<unsigned> sizes{2, 4, 8};
  if (tile::device().capability == 90) sizes.push_back(16);
  return sizes;
}

bool lacks_st_async() {
  if (tile::device().capability >= 90) return false;
  tile::skip("st.async needs compute capability 9.0");
  return true;
}

}  // namespace

TEST_SUITE("mbarrier") {
  TEST_CASE("stores of 4, 8 and 16 bytes reach every block of the cluster, and are counted there") {
    if (lacks_st_async()) return;
    for (const unsigned cluster : cluster_sizes()) {
      for (const int words : {1, 2, 4}) {
        CAPTURE(cluster);
        CAPTURE(words);
        const unsigned blocks = 2 * cluster;
        Ints expected;
        for (unsigned b = 0; b < blocks; ++b) {
          for (unsigned r = 0; r < cluster; ++r) {
            for (int i = 0; i < kSenders * words; ++i) {
              expected.push_back(word_of(b / cluster * cluster + r, i / words, i % words));
            }
          }
        }
        const DeviceVector<int> out("out", Ints(expected.size(), -1));
        require(send_to_all(blocks, cluster, words, out.data()));
        CHECK(out.download() == expected);
      }
    }
  }

  TEST_CASE("phases follow one another, and their parity alternates") {
    if (lacks_st_async()) return;
    for (const unsigned cluster : cluster_sizes()) {
      for (const int rounds : {0, 1, 2, 5, 9}) {
        CAPTURE(cluster);
        CAPTURE(rounds);
        const unsigned blocks = 3 * cluster;
        const DeviceVector<int> out("out", Ints(std::size_t{blocks} * kSenders, -1));
        require(hand_on_async(blocks, cluster, rounds, out.data()));
        Ints expected;
        for (unsigned b = 0; b < blocks; ++b) {
          const unsigned first = b / cluster * cluster;
          const unsigned steps = static_cast<unsigned>(rounds) % cluster;
          const unsigned from = first + (b - first + cluster - steps) % cluster;
          for (int t = 0; t < kSenders; ++t) expected.push_back(word_of(from, t, 0));
        }
        CHECK(out.download() == expected);
      }
    }
  }

  TEST_CASE("arrivals from all blocks of a cluster tell one that it may go on") {
    if (lacks_st_async()) return;
    for (const unsigned cluster : cluster_sizes()) {
      for (const int items : {1, 2, 3, 8}) {
        CAPTURE(cluster);
        CAPTURE(items);
        Ints expected;
        for (unsigned b = 0; b < cluster; ++b) {
          for (int i = 0; i < items; ++i) {
            for (int t = 0; t < kSenders; ++t) expected.push_back(i * 100 + t);
          }
        }
        const DeviceVector<int> out("out", Ints(expected.size(), -1));
        require(free_by_arrivals(cluster, items, out.data()));
        CHECK(out.download() == expected);
      }
    }
  }
}
