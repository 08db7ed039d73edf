// Mbarriers: phases, arrivals, bytes that other blocks send.
#include <doctest/doctest.h>

#include <vector>

#include "device_array.hpp"
#include "harness/test_main.hpp"
#include "mbarrier_kernels.hpp"
#include "tile/host/device.hpp"

using namespace device_test;

namespace {

bool has_mbarriers() {
  int capability = 0;
  require(cudaDeviceGetAttribute(&capability, cudaDevAttrComputeCapabilityMajor, 0));
  return capability >= 9;
}

void skip() { tile::skip("mbarriers that count bytes need compute capability 9.0"); }

}  // namespace

TEST_CASE("a phase is complete when all have arrived, and the next one begins") {
  if (!has_mbarriers()) return skip();
  for (const unsigned threads : {1u, 32u, 100u, 1024u}) {
    for (const int phases : {1, 2, 7}) {
      const unsigned count = static_cast<unsigned>(phases) * threads;
      const DeviceArray<int> out(count);
      meet_at_mbarrier(phases, threads, out.data());
      std::vector<int> expected;
      for (unsigned i = 0; i < count; ++i) {
        expected.push_back(static_cast<int>(i / threads * 1000 + (i % threads + 1) % threads));
      }
      CHECK(out.download() == expected);
    }
  }
}

TEST_CASE("a ring of slots, in a cluster of one block") {
  if (!has_mbarriers()) return skip();
  for (const int items : {1, 3, 4, 20}) {
    const DeviceArray<int> out(static_cast<unsigned>(items) * 64);
    require(pass_through_ring(items, out.data()));
    std::vector<int> expected;
    for (int i = 0; i < items * 64; ++i) expected.push_back(i / 64 * 100 + i % 32);
    CHECK(out.download() == expected);
  }
}

TEST_CASE("blocks send to one another in rounds") {
  if (!has_mbarriers()) return skip();
  for (const unsigned cluster : {1u, 2u, 3u, 8u}) {
    for (const int rounds : {1, 2, 3, 10}) {
      const unsigned blocks = 2 * cluster;
      const DeviceArray<int> out(blocks * 64);
      require(exchange(blocks, cluster, rounds, out.data()));
      std::vector<int> expected;
      for (unsigned b = 0; b < blocks; ++b) {
        for (unsigned t = 0; t < 64; ++t) {
          expected.push_back(sum_of_exchange(b, t, cluster, rounds));
        }
      }
      CHECK(out.download() == expected);
    }
  }
}

TEST_CASE("bytes are expected before they come or after, by one thread or by many") {
  if (!has_mbarriers()) return skip();
  for (const Expected when :
       {Expected::before, Expected::after, Expected::in_parts, Expected::by_none}) {
    const DeviceArray<int> out(128);
    require(expect_bytes(when, out.data()));
    std::vector<int> expected;
    for (int i = 0; i < 128; ++i) expected.push_back(i < 64 ? 1000 + i : i - 64);
    CHECK(out.download() == expected);
  }
}
