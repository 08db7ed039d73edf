// Grids, blocks, barriers, shared and constant memory, launches.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "block_kernels.hpp"
#include "device_array.hpp"

using namespace device_test;

namespace {

size_t volume(dim3 v) { return size_t{v.x} * v.y * v.z; }

/// The coordinates of the i-th element, x fastest.
dim3 coordinates(size_t i, dim3 v) {
  return dim3(static_cast<unsigned>(i % v.x), static_cast<unsigned>(i / v.x % v.y),
              static_cast<unsigned>(i / v.x / v.y));
}

template <class A, class B>
bool same(const A& a, const B& b) {
  return a.x == b.x && a.y == b.y && a.z == b.z;
}

}  // namespace

TEST_CASE("every thread of every block runs once and knows where it is") {
  const struct {
    dim3 grid, block;
  } launches[] = {{1, 1},
                  {1, 1024},
                  {7, 33},
                  {dim3(3, 2, 4), dim3(4, 3, 2)},
                  {dim3(1, 5, 1), dim3(1, 1, 64)},
                  {dim3(2, 1, 3), dim3(2, 512, 1)},
                  {300, 1},
                  {dim3(1, 1, 9), 5},
                  {dim3(1, 700, 1), dim3(1, 7, 3)}};
  for (const auto& [grid, block] : launches) {
    const size_t count = volume(grid) * volume(block);
    const DeviceArray<Indices> device_indices(count);
    const DeviceArray<int> device_visits(count);
    who_am_i(device_indices.data(), device_visits.data(), grid, block);
    CHECK(device_visits.download() == std::vector<int>(count, 1));
    const std::vector<Indices> indices = device_indices.download();
    for (size_t i = 0; i < count; ++i) {
      CAPTURE(i);
      REQUIRE(same(indices[i].thread, coordinates(i % volume(block), block)));
      REQUIRE(same(indices[i].block, coordinates(i / volume(block), grid)));
      REQUIRE(same(indices[i].threads, block));
      REQUIRE(same(indices[i].blocks, grid));
    }
  }
}

TEST_CASE("more blocks than one extent of the grid holds") {
  const dim3 grid(1, 65535, 2);
  const DeviceArray<int> device_out(volume(grid));
  number_threads(device_out.data(), grid, 1);
  const std::vector<int> out = device_out.download();
  for (size_t i = 0; i < out.size(); ++i) REQUIRE(out[i] == static_cast<int>(i));
}

TEST_CASE("barriers that count") {
  for (const dim3 block : {dim3(1), dim3(17), dim3(32), dim3(48), dim3(1024), dim3(4, 5, 6)}) {
    const size_t threads = volume(block);
    CAPTURE(threads);
    // In round 0 all vote, in round 1 none, in round 2 the last thread alone.
    std::vector<unsigned> bits(threads);
    for (size_t t = 0; t < threads; ++t) {
      bits[t] =
          static_cast<unsigned>(t * 2654435761u >> 8 << 3) | unsigned{t == threads - 1} << 2 | 1;
    }
    const DeviceArray<unsigned> device_bits(bits);
    const DeviceArray<BarrierResults> device_results(kRounds * threads);
    barrier_votes(device_bits.data(), device_results.data(), block);
    const std::vector<BarrierResults> results = device_results.download();
    for (int round = 0; round < kRounds; ++round) {
      const auto votes = std::ranges::count_if(bits, [&](unsigned b) { return b >> round & 1; });
      for (size_t t = 0; t < threads; ++t) {
        const BarrierResults& r = results[static_cast<size_t>(round) * threads + t];
        REQUIRE(r.count == votes);
        REQUIRE((r.all != 0) == (votes == static_cast<long>(threads)));
        REQUIRE((r.any != 0) == (votes > 0));
      }
    }
  }
}

TEST_CASE("a barrier between writing and reading shared memory") {
  for (const unsigned threads : {1u, 2u, 31u, 33u, 1024u}) {
    const unsigned blocks = 5;
    std::vector<int> data(blocks * threads);
    for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<int>(i);
    const DeviceArray<int> device_data(data);
    reverse_blocks(device_data.data(), blocks, threads);
    for (unsigned b = 0; b < blocks; ++b) {
      std::reverse(&data[b * threads], &data[b * threads] + threads);
    }
    CHECK(device_data.download() == data);
  }
}

TEST_CASE("a warp that waits for another's flag") {
  const DeviceArray<int> out(1);
  wait_for_flag(out.data());
  CHECK(out.download()[0] == 42);
  for (const unsigned poller : {0u, 1u}) {
    poll_by_votes(poller, out.data());
    CHECK(out.download()[0] == 100);
    require(cudaMemset(out.data(), 0, sizeof(int)));
  }
}

TEST_CASE("shared memory") {
  const DeviceArray<int> wrong(1), visited(1);
  auto check = [&](int visits) {
    CHECK(wrong.download()[0] == 0);
    CHECK(visited.download()[0] == visits);
    require(cudaMemset(visited.data(), 0, sizeof(int)));
  };
  SUBCASE("several arrays of different types") {
    several_arrays(wrong.data(), visited.data());
    check(64);
  }
  SUBCASE("declared in functions, in scopes, under the same name") {
    declared_in_functions(wrong.data(), visited.data());
    check(64);
  }
  SUBCASE("in a template, instantiated twice") {
    in_template_for_int_and_double(wrong.data(), visited.data());
    check(128);
  }
  SUBCASE("dynamic, beside static") {
    const int opt_in = 100 * 1024;  // within the limits of compute capability 8.0 and above
    require(allow_dynamic_bytes(opt_in));
    for (const unsigned bytes : {1u, 100u, 4096u, 48u * 1024 - kStaticBytes, unsigned{opt_in}}) {
      CAPTURE(bytes);
      dynamic_and_static(wrong.data(), visited.data(), bytes);
      check(64);
    }
    dynamic_and_static(wrong.data(), visited.data(), 0);  // an array of no elements
    check(64);
  }
}

TEST_CASE("constant memory and variables of the device") {
  std::vector<float> values(kConstants), got(kConstants);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * 1.5f;
  require(set_constants(values.data(), kConstants, 0));
  values[5] = -1, values[6] = -2;
  require(set_constants(&values[5], 2, 5));
  require(get_constants(got.data(), kConstants, 0));
  CHECK(got == values);
  require(get_constants(got.data(), 1, 6));
  CHECK(got[0] == -2);

  require(set_settings(0.25, -3));
  const DeviceArray<double> out(kConstants);
  long long counter = 0;
  require(get_counter(&counter));
  CHECK(counter == 5);  // the initializer
  require(set_counter(1ll << 40));
  for (int launch = 0; launch < 3; ++launch) use_constants(out.data());
  const std::vector<double> results = out.download();
  for (size_t i = 0; i < results.size(); ++i) CHECK(results[i] == values[i] * 0.25 - 3);
  require(get_counter(&counter));
  CHECK(counter == (1ll << 40) + 3 * kConstants);
  require(set_counter(5));
}

TEST_CASE("all ways to write a launch") {
  cudaStream_t stream = nullptr;
  require(cudaStreamCreate(&stream));
  const DeviceArray<int> device_out(32);
  std::vector<int> expected;
  launch_in_all_ways(device_out.data(), &expected, stream);
  require(cudaStreamDestroy(stream));
  std::vector<int> out = device_out.download();
  out.resize(expected.size());
  CHECK(out == expected);
}

TEST_CASE("a parameter is copied on the host at most once, and its threads have their own bytes") {
  for (int way = 0; way < kWaysToPass; ++way) {
    CAPTURE(way);
    const DeviceArray<int> out(40);
    const Copies copies = pass_what_is_counted(way, out.data(), 40);
    CHECK(copies.made <= 2);
    CHECK(copies.destroyed == copies.made);
    const std::vector<int> got = out.download();
    for (int i = 0; i < 40; ++i) CHECK(got[static_cast<size_t>(i)] == 7 + i);
  }
}
