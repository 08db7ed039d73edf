// Launches of clusters: which block is where in one, what is refused, and threads that just meet.
#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include "cluster_kernels.hpp"
#include "device_array.hpp"
#include "harness/test_main.hpp"

using namespace device_test;

namespace {

bool has_clusters() {
  int has = 0;
  require(cudaDeviceGetAttribute(&has, cudaDevAttrClusterLaunch, 0));
  return has != 0;
}

void skip() { tile::skip("clusters need compute capability 9.0"); }

unsigned volume(dim3 v) { return v.x * v.y * v.z; }

}  // namespace

TEST_CASE("a cluster is a box of blocks, numbered along x first") {
  if (!has_clusters()) return skip();
  const struct {
    dim3 grid, cluster;
  } launches[] = {{12, 1},
                  {12, 4},
                  {dim3(4, 6), dim3(2, 3)},
                  {dim3(3, 4, 2), dim3(1, 4, 2)},
                  {dim3(6, 2, 4), dim3(3, 1, 2)},
                  {dim3(6, 4, 4), dim3(2, 2, 2)}};
  for (const auto& [grid, cluster] : launches) {
    const DeviceArray<int> out(2 * volume(grid));
    require(number_blocks(out.data(), grid, dim3(16, 3), cluster, 100, false));
    const std::vector<int> got = out.download();
    for (unsigned z = 0; z < grid.z; ++z) {
      for (unsigned y = 0; y < grid.y; ++y) {
        for (unsigned x = 0; x < grid.x; ++x) {
          const unsigned b = (z * grid.y + y) * grid.x + x;
          const unsigned rank =
              (z % cluster.z * cluster.y + y % cluster.y) * cluster.x + x % cluster.x;
          CHECK(got[2 * b] == static_cast<int>(rank));
          CHECK(got[2 * b + 1] == static_cast<int>(volume(cluster)));
        }
      }
    }
  }
}

TEST_CASE("more than 8 blocks for kernels that ask for it") {
  int capability = 0;
  require(cudaDeviceGetAttribute(&capability, cudaDevAttrComputeCapabilityMajor, 0));
  if (capability != 9) return tile::skip("clusters of 16 blocks are known of 9.0 only");
  const DeviceArray<int> out(64);
  require(number_blocks(out.data(), 32, 64, 16, 0, true));
  CHECK(out.download()[2 * 31] == 15);
  CHECK(number_blocks(out.data(), 32, 64, 16, 0, false) != cudaSuccess);
  cudaGetLastError();
  require(number_blocks(out.data(), 32, 64, 8, 0, false));
}

TEST_CASE("cudaLaunchKernelEx launches what has no clusters, on any card") {
  for (const bool with_attributes : {false, true}) {
    const DeviceArray<int> out(1);
    require(launch_without_clusters(out.data(), with_attributes));
    CHECK(out.download()[0] == 7);
  }
}

TEST_CASE("clusters that are refused leave everything as it was") {
  const DeviceArray<int> out(std::vector<int>(64, -7));
  const auto launch = [&](dim3 grid, dim3 cluster, bool large = false) {
    return [=, to = out.data()] { return number_blocks(to, grid, 32, cluster, 0, large); };
  };
  struct Mistake {
    const char* what;
    cudaError_t error;
    std::function<cudaError_t()> make;
    bool harmless = true;
  };
  std::vector<Mistake> mistakes{
      {"no configuration", cudaErrorInvalidValue, launch_by_nothing, false},
      {"attributes at null", cudaErrorInvalidValue, launch_by_lost_attributes, false},
      {"neither allowed nor forbidden", cudaErrorInvalidValue,
       [] { return allow_large_clusters(2); }, false},
      {"a rest of a cluster", cudaErrorInvalidClusterSize, launch(4, 3)},
      {"a rest along y", cudaErrorInvalidClusterSize, launch(dim3(4, 3), dim3(2, 2))},
      {"a cluster larger than the grid", cudaErrorInvalidClusterSize, launch(4, 8)},
      {"no block along z", cudaErrorInvalidClusterSize, launch(4, dim3(2, 1, 0)), false},
      {"9 blocks without the attribute", cudaErrorInvalidClusterSize, launch(9, 9)},
      {"9 blocks in two extents", cudaErrorInvalidClusterSize, launch(dim3(3, 3), dim3(3, 3))},
      {"17 blocks", cudaErrorInvalidClusterSize, launch(17, 17, true)},
  };
  if (!has_clusters()) mistakes = {{"a card without", cudaErrorInvalidClusterSize, launch(4, 2)}};
  require_kernels_ran();
  for (const Mistake& mistake : mistakes) {
    if (!mistake.harmless && !tile::device_is_simulated()) continue;
    CAPTURE(std::string(mistake.what));
    const cudaError_t error = mistake.make();
    CHECK(std::string(cudaGetErrorName(error)) == cudaGetErrorName(mistake.error));
    CHECK(cudaGetLastError() == error);
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
  }
  CHECK(out.download() == std::vector<int>(64, -7));
  tile::device_report();
}

TEST_CASE("the card holds clusters by their threads and shared memory") {
  if (!has_clusters()) return skip();
  int few = 0, many = 0, large = 0;
  require(clusters_at_a_time(&few, 1024, 2, 0));
  require(clusters_at_a_time(&many, 64, 2, 0));
  require(clusters_at_a_time(&large, 64, 2, 40 * 1024));
  CHECK(few >= 1);
  CHECK(many > few);
  CHECK(large < many);
  if (tile::device_is_simulated()) {  // 4 multiprocessors of 2,048 threads, 32 blocks, 228 KiB
    CHECK(few == 4);
    CHECK(many == 64);
    CHECK(large == 10);
    int one = 0;
    require(clusters_at_a_time(&one, 1024, dim3(2, 4), 40 * 1024));
    CHECK(one == 1);
    require(allow_large_clusters(0));
    CHECK(clusters_at_a_time(nullptr, 64, 2, 0) == cudaErrorInvalidValue);
    CHECK(clusters_at_a_time(&one, 64, 9, 0) == cudaErrorInvalidClusterSize);
    cudaGetLastError();
  }
}

TEST_CASE("threads that have returned are not waited for, and who polls gets an answer") {
  if (!has_clusters()) return skip();
  constexpr unsigned kThreads = 96;
  for (const Meeting meeting : {Meeting::block_returned, Meeting::arrived_and_returned,
                                Meeting::poll, Meeting::poll_by_votes, Meeting::alone}) {
    CAPTURE(static_cast<int>(meeting));
    const DeviceArray<int> out(4 * kThreads + 1);
    meet(meeting, kThreads, out.data());
    std::vector<int> expected(4 * kThreads + 1, 1);
    expected.back() = 0;
    for (unsigned i = 0; i < 4 * kThreads; ++i) {
      const bool returned = (meeting == Meeting::block_returned && i / kThreads == 1) ||
                            (meeting == Meeting::arrived_and_returned && i / 32 % 3 == 1) ||
                            (meeting == Meeting::alone && i >= kThreads);
      if (returned) expected[i] = 0;
    }
    CHECK(out.download() == expected);
  }
}
