// The orders in which threads run: what they are, that they do not matter to correct kernels, and
// that they expose a missing barrier. CPU device only.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "block_kernels.hpp"
#include "harness/compare.hpp"
#include "order_kernels.hpp"
#include "report.hpp"

using namespace device_test;
using cpu_device::options;
using cpu_device::Order;

namespace {

constexpr Order kOrders[] = {Order::forward, Order::reverse, Order::random};

struct Recorded {
  std::vector<int> starts, resumed;
};

Recorded record(Order order, uint64_t seed, unsigned blocks, unsigned threads) {
  options().order = order;
  options().seed = seed;
  const DeviceArray<int> starts(blocks * threads), resumed(blocks * threads);
  record_order(starts.data(), resumed.data(), blocks, threads);
  return {starts.download(), resumed.download()};
}

std::vector<int> counting(size_t count) {
  std::vector<int> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

std::vector<int> sorted(std::vector<int> v) {
  std::ranges::sort(v);
  return v;
}

}  // namespace

TEST_CASE("forward and reverse are what they say, for threads and blocks") {
  const OptionsGuard guard;
  for (const unsigned threads : {1u, 33u, 1024u}) {
    std::vector<int> numbers = counting(3 * threads);
    const Recorded forward = record(Order::forward, 0, 3, threads);
    CHECK(forward.starts == numbers);
    CHECK(forward.resumed == numbers);
    std::ranges::reverse(numbers);
    const Recorded reverse = record(Order::reverse, 0, 3, threads);
    CHECK(reverse.starts == numbers);
    CHECK(reverse.resumed == numbers);
  }
}

TEST_CASE("a random order is the seed's, and visits every thread once") {
  const OptionsGuard guard;
  const unsigned blocks = 7, threads = 96;
  std::set<std::vector<int>> different;
  for (const uint64_t seed : {0ull, 1ull, 2ull, 7ull, 1000ull, ~0ull}) {
    const Recorded r = record(Order::random, seed, blocks, threads);
    CHECK(sorted(r.starts) == counting(blocks * threads));
    CHECK(sorted(r.resumed) == counting(blocks * threads));
    CHECK(r.starts != r.resumed);
    const Recorded again = record(Order::random, seed, blocks, threads);
    CHECK(again.starts == r.starts);
    CHECK(again.resumed == r.resumed);
    different.insert(r.starts);
    // Blocks differ, and so does the order of a block's threads from the next block's.
    std::set<std::vector<int>> of_blocks;
    for (unsigned b = 0; b < blocks; ++b) {
      std::vector<int> block(&r.starts[b * threads], &r.starts[b * threads] + threads);
      for (int& t : block) t %= static_cast<int>(threads);
      of_blocks.insert(block);
    }
    CHECK(of_blocks.size() == blocks);
  }
  CHECK(different.size() == 6);
}

TEST_CASE("a random order visits every block of every grid once") {
  const OptionsGuard guard;
  for (unsigned blocks = 1; blocks <= 40; ++blocks) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const std::vector<int> starts = record(Order::random, seed * seed, blocks, 1).starts;
      REQUIRE(sorted(starts) == counting(blocks));
    }
  }
}

namespace {

using Reference = std::function<void(const std::vector<double>& in, std::vector<double>* out)>;

/// Calls visit(row) with where each row of kRow elements begins.
template <class Visit>
void each_row(Visit visit) {
  for (size_t first = 0; first < kBlocks * kRow; first += kRow) visit(first);
}

void matmul_reference(const std::vector<double>& in, std::vector<double>* out) {
  const size_t n = kMatrix;
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) {
      double sum = 0;
      for (size_t k = 0; k < n; ++k) sum += in[i * n + k] * in[(n + k) * n + j];
      (*out)[i * n + j] = sum;
    }
  }
}
void reverse_reference(const std::vector<double>& in, std::vector<double>* out) {
  each_row([&](size_t r) { std::reverse_copy(&in[r], &in[r] + kRow, &(*out)[r]); });
}
void reduction_reference(const std::vector<double>& in, std::vector<double>* out) {
  each_row([&](size_t r) {
    std::fill_n(&(*out)[r], kRow, std::accumulate(&in[r], &in[r] + kRow, 0.0));
  });
}
void scan_reference(const std::vector<double>& in, std::vector<double>* out) {
  each_row([&](size_t r) { std::partial_sum(&in[r], &in[r] + kRow, &(*out)[r]); });
}
void softmax_reference(const std::vector<double>& in, std::vector<double>* out) {
  each_row([&](size_t r) {
    double sum = 0;
    const double max = *std::max_element(&in[r], &in[r] + kRow);
    for (size_t i = r; i < r + kRow; ++i) sum += std::exp2(in[i] - max);
    // Powers and sum are whole, so that one division is rounded, and once.
    for (size_t i = r; i < r + kRow; ++i) {
      (*out)[i] = static_cast<float>(std::exp2(in[i] - max) / sum);
    }
  });
}

/// Whether forward, reverse and random:7 give a wrong result without a barrier.
struct Exposed {
  bool in_order[3];
};

struct Case {
  const Subject& subject;
  Reference reference;
  std::vector<Exposed> without;  // each barrier
};

// A barrier that one order hides another shows: hence three.
const Case kCases[] = {
    {kTiledMatmul, matmul_reference, {{true, true, true}, {true, true, true}}},
    {kReverse, reverse_reference, {{true, true, true}}},
    {kBlockReduction, reduction_reference, {{true, false, true}, {true, true, true}}},
    {kScan, scan_reference, {{false, true, true}, {true, false, true}}},
    {kSoftmax, softmax_reference, {{true, false, true}, {true, true, true}, {true, true, true}}},
};

tile::Comparison run(const Case& c, int without) {
  std::vector<float> in(c.subject.size);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i * 2654435761u % 97 % 8);
  tile::Expected expected{{c.subject.size}, {}, std::vector<double>(c.subject.size)};
  expected.value.resize(c.subject.size);
  c.reference(std::vector<double>(in.begin(), in.end()), &expected.value);

  const DeviceArray<float> device_in(in), device_out(c.subject.size);
  c.subject.launch(device_in.data(), device_out.data(), without);
  const std::vector<float> out = device_out.download();
  return tile::compare(c.subject.name, std::vector<double>(out.begin(), out.end()), expected);
}

}  // namespace

TEST_CASE("correct kernels give the same in every order, with any number of workers") {
  const OptionsGuard guard;
  for (const Case& c : kCases) {
    for (const Order order : kOrders) {
      for (const int workers : {1, 2, 5}) {
        for (uint64_t seed = 0; seed < (order == Order::random ? 10 : 1); ++seed) {
          options().order = order;
          options().workers = workers;
          options().seed = seed;
          const tile::Comparison comparison = run(c, 0);
          CHECK_MESSAGE(comparison.ok(), comparison.message);
        }
      }
    }
  }
}

TEST_CASE("a missing barrier shows in the result, and is reported by the check build") {
  const OptionsGuard guard;
  options().seed = 7;
  for (const Case& c : kCases) {
    for (int barrier = 1; barrier <= c.subject.barriers; ++barrier) {
      for (size_t order = 0; order < 3; ++order) {
        options().order = kOrders[order];
        const std::string what = std::string(c.subject.name) + " without barrier " +
                                 std::to_string(barrier) + " in order " + std::to_string(order);
        if (cpu_device::kChecking) {
          const DeviceArray<float> in(c.subject.size), out(c.subject.size);
          c.subject.launch(in.data(), out.data(), barrier);
          const KernelFailure failure = take_failure();
          const std::string& report = failure.report;
          CHECK_MESSAGE(failure.error == cudaErrorLaunchFailure, what);
          CHECK_MESSAGE(report.find(": a race\n") != std::string::npos, what, ": ", report);
          CHECK_MESSAGE(report.find("__syncthreads() ") != std::string::npos, what, ": ", report);
          continue;
        }
        const tile::Comparison comparison = run(c, barrier);
        CHECK_MESSAGE(
            comparison.ok() != c.without[static_cast<size_t>(barrier - 1)].in_order[order], what,
            ": ", comparison.mismatches, " of ", comparison.count, " are wrong");
      }
    }
  }
}
