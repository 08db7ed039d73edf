// Cooperative groups, cooperative launches, and what else programs from elsewhere rely on.
#include <doctest/doctest.h>

#include <cuda_runtime_api.h>

#include <cstring>
#include <vector>

#include "device_array.hpp"
#include "group_kernels.hpp"

using namespace device_test;

TEST_CASE("groups of threads") {
  const DeviceArray<Groups> device_out(64);
  ask_groups(device_out.data());
  const std::vector<Groups> out = device_out.download();
  for (int t = 0; t < 64; ++t) {
    CAPTURE(t);
    const Groups& g = out[static_cast<size_t>(t)];
    const int first = t / 16 * 16, in_tile = t % 16, warp = t / 32 * 32;
    CHECK(g.block_rank == static_cast<unsigned>(t));
    CHECK(g.block_size == 64);
    CHECK(g.tile_rank == static_cast<unsigned>(in_tile));
    CHECK(g.tile_size == 16);
    CHECK(g.tile_number == static_cast<unsigned>(t / 16));
    CHECK(g.tiles == 4);
    CHECK(g.tile_sum == 16 * first + 120);
    CHECK(g.from_next == (in_tile == 15 ? t : t + 1));
    CHECK(g.from_third == first + 3.5);
    CHECK(g.tile_scan == in_tile + 1);
    CHECK(g.before == in_tile);
    CHECK(g.odd_rank == static_cast<unsigned>(t % 32 / 2));
    CHECK(g.odd_size == 16);
    CHECK(g.odd_largest == warp + 30 + t % 2);
    CHECK(g.odd_ballot == (t % 2 == 0 ? 0x5555 : 0));
    CHECK(g.generic_size == 8);
    CHECK(g.nested_rank == static_cast<unsigned>(t % 32 / 4));
    CHECK(g.nested_groups == 8);
    CHECK(g.odd_number == static_cast<unsigned>(t % 2));
    CHECK(g.odd_groups == 2);
    CHECK(g.fours_rank == static_cast<unsigned>(t % 32 / 8));
    CHECK(g.fours_groups == 4);
    CHECK(g.fours_size == 4);
  }
}

TEST_CASE("the blocks of a cooperative launch meet") {
  int fit = 0;
  require(blocks_that_fit(&fit, 128));
  REQUIRE(fit >= 2);
  for (const int blocks : {1, 2, fit}) {
    CAPTURE(blocks);
    const DeviceArray<unsigned long long> total(std::vector<unsigned long long>{0, 0});
    require(meet_in_grid(blocks, 128, total.data()));
    const std::vector<unsigned long long> got = total.download();
    const auto threads = static_cast<unsigned long long>(blocks) * 128;
    CHECK(got[0] == threads);
    CHECK(got[1] == threads * threads);
  }
  CHECK(meet_in_grid(100'000, 128, nullptr) == cudaErrorCooperativeLaunchTooLarge);
  CHECK(cudaGetLastError() == cudaErrorCooperativeLaunchTooLarge);
}

TEST_CASE("a launch by the addresses of arguments") {
  const DeviceArray<float> out(32);
  require(launch_by_pointers(out.data(), 32, 2, 0.5));
  const std::vector<float> got = out.download();
  for (int i = 0; i < 32; ++i)
    CHECK(got[static_cast<size_t>(i)] == 2 * static_cast<float>(i) + 0.5f);
}

TEST_CASE("lanes that wait for all of their warp, and lanes that do not yet") {
  const DeviceArray<int> out(32);
  odd_lanes_first(out.data());
  for (const int sum : out.download()) CHECK(sum == 240);
}

TEST_CASE("atomics of other scopes") {
  const DeviceArray<int> counters(std::vector<int>{0, 0, 0});
  scopes(counters.data());
  CHECK(counters.download() == std::vector<int>{200, 300, 99});
}

TEST_CASE("managed memory, and memory of the host for kernels") {
  float* managed = nullptr;
  require(cudaMallocManaged(reinterpret_cast<void**>(&managed), 32 * sizeof(float)));
  require(launch_by_pointers(managed, 32, 1, 0));
  require(cudaDeviceSynchronize());
  CHECK(managed[31] == 31);
  cudaPointerAttributes attributes{};
  require(cudaPointerGetAttributes(&attributes, managed));
  CHECK(attributes.type == cudaMemoryTypeManaged);
  float first = -1;
  require(cudaMemcpy(&first, managed + 1, sizeof first, cudaMemcpyDefault));
  CHECK(first == 1);
  require(cudaFree(managed));

  void *host = nullptr, *on_device = nullptr;
  require(cudaHostAlloc(&host, 32 * sizeof(float), cudaHostAllocMapped));
  require(cudaHostGetDevicePointer(&on_device, host, 0));
  require(launch_by_pointers(static_cast<float*>(on_device), 32, 3, 1));
  require(cudaDeviceSynchronize());
  CHECK(static_cast<float*>(host)[2] == 7);
  require(cudaFreeHost(host));

  int local = 0;
  CHECK(cudaHostGetDevicePointer(&on_device, &local, 0) == cudaErrorInvalidValue);
  CHECK(cudaHostUnregister(&local) == cudaErrorHostMemoryNotRegistered);
  cudaGetLastError();
}

TEST_CASE("rows that begin at a pitch") {
  void* rows = nullptr;
  size_t pitch = 0;
  require(cudaMallocPitch(&rows, &pitch, 100, 3));
  CHECK(pitch >= 100);
  require(cudaMemset2D(rows, pitch, 7, 100, 3));
  std::vector<unsigned char> got(300);
  require(cudaMemcpy2D(got.data(), 100, rows, pitch, 100, 3, cudaMemcpyDeviceToHost));
  CHECK(got == std::vector<unsigned char>(300, 7));
  require(cudaFree(rows));
}

namespace {
void add_one(void* count) { ++*static_cast<int*>(count); }
}  // namespace

TEST_CASE("functions of the host in a stream, and wishes without effect") {
  int count = 0;
  require(cudaLaunchHostFunc(nullptr, add_one, &count));
  require(cudaDeviceSynchronize());
  CHECK(count == 1);
  int least = 0, greatest = 0;
  require(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  require(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
  require(cudaStreamDestroy(stream));
  size_t bytes = 0;
  require(cudaDeviceGetLimit(&bytes, cudaLimitPrintfFifoSize));
  CHECK(bytes > 0);
  cudaMemPool_t pool = nullptr;
  require(cudaDeviceGetDefaultMemPool(&pool, 0));
  CHECK(pool);
}
