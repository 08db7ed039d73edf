// Clusters: who is in one, the shared memory of its blocks, and its barrier.
#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "cluster_kernels.hpp"
#include "harness/test_main.hpp"
#include "memory.hpp"
#include "tile/basics.cuh"
#include "tile/host/attention.hpp"

using namespace ptx_test;

namespace {

using Ints = std::vector<int>;

bool has_clusters() { return tile::device().capability >= 90; }

// 16 is more than every card with clusters takes; an H100 does.
std::vector<Clusters> launches() {
  std::vector<Clusters> all{{5, 1}, {4, 2}, {3, 3}, {3, 4}, {1, 8}, {2, 8}};
  if (tile::device().capability == 90) all.push_back({2, 16});
  return all;
}

unsigned blocks_of(Clusters clusters) { return clusters.count * clusters.size; }
std::size_t threads_of(Clusters clusters) {
  return std::size_t{blocks_of(clusters)} * kClusterThreads;
}

// out[(b * size + r) * threads + t]: the number of thread t in block r of the cluster of b.
Ints numbers_of_all(Clusters clusters) {
  Ints numbers;
  for (unsigned b = 0; b < blocks_of(clusters); ++b) {
    for (unsigned r = 0; r < clusters.size; ++r) {
      const unsigned block = b / clusters.size * clusters.size + r;
      for (int t = 0; t < kClusterThreads; ++t) numbers.push_back(number_of(block, t));
    }
  }
  return numbers;
}

template <class Check>
void for_each_launch(Check check) {
  if (!has_clusters()) return tile::skip("clusters need compute capability 9.0");
  for (const Clusters clusters : launches()) {
    CAPTURE(clusters.count);
    CAPTURE(clusters.size);
    check(clusters);
  }
}

}  // namespace

TEST_SUITE("cluster") {
  TEST_CASE("each block knows its rank and the size of its cluster") {
    for_each_launch([](Clusters clusters) {
      const DeviceVector<int> out("out", Ints(2 * blocks_of(clusters), -1));
      require(ranks_and_sizes(clusters, out.data()));
      const Ints got = out.download();
      for (unsigned b = 0; b < blocks_of(clusters); ++b) {
        CHECK(got[2 * b] == static_cast<int>(b % clusters.size));
        CHECK(got[2 * b + 1] == static_cast<int>(clusters.size));
      }
    });
  }

  TEST_CASE("each block reads the shared memory of all") {
    for_each_launch([](Clusters clusters) {
      for (const bool shared : {false, true}) {
        CAPTURE(shared);
        const DeviceVector<int> out("out", Ints(threads_of(clusters) * clusters.size, -1));
        require(read_all_blocks(clusters, shared, out.data()));
        CHECK(out.download() == numbers_of_all(clusters));
      }
    });
  }

  TEST_CASE("each block writes to the shared memory of all, and may work while it waits") {
    for_each_launch([](Clusters clusters) {
      for (const bool split : {false, true}) {
        CAPTURE(split);
        Ints expected = numbers_of_all(clusters);
        const std::size_t written = expected.size();
        for (unsigned b = 0; b < blocks_of(clusters); ++b) {
          for (int t = 0; t < kClusterThreads; ++t) expected.push_back(split ? t * t : -1);
        }
        const DeviceVector<int> out("out", Ints(expected.size(), -1));
        require(write_to_all_blocks(clusters, split, out.data()));
        CHECK(out.download() == expected);
        CHECK(written == threads_of(clusters) * clusters.size);
      }
    });
  }

  TEST_CASE("numbers go round, in static limits of shared memory and beyond") {
    for_each_launch([](Clusters clusters) {
      for (const std::size_t bytes : {std::size_t{4096}, std::size_t{100} << 10}) {
        for (const int rounds : {0, 1, 7}) {
          CAPTURE(bytes);
          CAPTURE(rounds);
          const DeviceVector<int> out("out", Ints(threads_of(clusters), -1));
          require(hand_on(clusters, rounds, bytes, out.data()));
          Ints expected;
          for (unsigned b = 0; b < blocks_of(clusters); ++b) {
            const unsigned first = b / clusters.size * clusters.size;
            const unsigned steps = static_cast<unsigned>(rounds) % clusters.size;
            const unsigned from = first + (b - first + clusters.size - steps) % clusters.size;
            for (int t = 0; t < kClusterThreads; ++t) expected.push_back(number_of(from, t));
          }
          CHECK(out.download() == expected);
        }
      }
    });
  }

  TEST_CASE("atomics reach another block, and no thread waits for a warp that has returned") {
    for_each_launch([](Clusters clusters) {
      const DeviceVector<int> out("out", Ints(clusters.count, -1));
      require(count_in_first_block(clusters, out.data()));
      const int threads = static_cast<int>(clusters.size) * (kClusterThreads - 32);
      CHECK(out.download() == Ints(clusters.count, threads));
    });
  }

  TEST_CASE("a card holds as many clusters as its multiprocessors hold blocks, and at least one") {
    int multiprocessors = 0;
    require(tile::count_multiprocessors(&multiprocessors));
    CHECK(multiprocessors == tile::device().multiprocessors);
    for_each_launch([&](Clusters clusters) {
      // Two such blocks fit on a multiprocessor, by their threads or by their shared memory.
      struct Block {
        int threads;
        std::size_t shared_bytes;
      };
      for (const Block block : {Block{1024, 0}, Block{32, 100 << 10}}) {
        int count = 0;
        require(count_clusters(clusters.size, block.threads, block.shared_bytes, &count));
        CAPTURE(block.threads);
        CHECK(count >= 1);
        const int size = static_cast<int>(clusters.size);
        CHECK(count * size <= std::max(2 * multiprocessors, size));
      }
    });
  }

  TEST_CASE("persistent blocks leave multiprocessors free, but are one at least") {
    const auto all = static_cast<unsigned>(tile::device().multiprocessors);
    tile::Attention p{};
    CHECK(tile::persistent_blocks(p) == all);
    p.free_multiprocessors = 1;
    CHECK(tile::persistent_blocks(p) == all - 1);
    p.free_multiprocessors = std::numeric_limits<int>::max();
    CHECK(tile::persistent_blocks(p) == 1);
  }

  TEST_CASE("a launch of clusters says what is wrong with it") {
    const tile::Status none = launch_nothing(4, 0, 32, 0);
    CHECK(none.code == tile::Code::invalid_argument);
    const tile::Status rest = launch_nothing(6, 4, 32, 0);
    CHECK(rest.code == tile::Code::invalid_argument);
    CHECK(rest.message ==
          "launch of nothing_kernel: a grid of 6 blocks along x cannot be cut into clusters of 4");
    CHECK(launch_nothing(6, 1, 32, 0).ok());
    const tile::Status threads = launch_nothing(6, 1, 2000, 0);
    CHECK(threads.code == tile::Code::device_error);
    CHECK(launch_nothing(6, 1, 32, std::size_t{1} << 20).code == tile::Code::device_error);
    require(launch_nothing(6, 1, 32, 0));  // nothing of it is left
    if (!has_clusters()) {
      CHECK(launch_nothing(6, 2, 32, 0).message ==
            "launch of nothing_kernel: clusters need compute capability 9.0");
      CHECK(launch_nothing(6, 2, 32, 0).code == tile::Code::unsupported);
      return;
    }
    require(launch_nothing(6, 2, 32, 0));
    const tile::Status large = launch_nothing(34, 17, 32, 0);
    CHECK(large.code == tile::Code::device_error);
    CHECK(large.message.find("cudaErrorInvalidClusterSize") != std::string::npos);
    require(launch_nothing(6, 2, 32, 0));
    require(tile::synchronize_status(nullptr));
  }

  TEST_CASE("a launch refuses a number that its kernel's parameter cannot hold") {
    const DeviceVector<int> out("out", {5});
    require(write_number(-7, out.data()));
    CHECK(out.download() == Ints{-7});
    for (const std::int64_t value : {std::int64_t{1} << 31, -(std::int64_t{1} << 31) - 1}) {
      const tile::Status refused = write_number(value, out.data());
      CHECK(refused.code == tile::Code::unsupported);
      CHECK(refused.message ==
            "launch of number_kernel: the argument " + std::to_string(value) + " is too large");
    }
    CHECK(out.download() == Ints{-7});  // nothing was launched
  }

  TEST_CASE("a launch never lowers what a kernel may have of shared memory") {
    int allowed = 0;
    require(launch_with_shared_bytes(60 * 1024, &allowed));
    CHECK(allowed >= 60 * 1024);
    require(launch_with_shared_bytes(50 * 1024, &allowed));  // another thread may launch with more
    CHECK(allowed >= 60 * 1024);
    require(tile::synchronize_status(nullptr));
  }
}
