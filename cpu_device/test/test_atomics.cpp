// Atomic functions: what one call does, and what many threads of many blocks do to one cell.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "atomic_kernels.hpp"
#include "device_array.hpp"

using namespace device_test;

namespace {

constexpr Atomic kAll[] = {Atomic::add,  Atomic::sub, Atomic::exch, Atomic::min,
                           Atomic::max,  Atomic::inc, Atomic::dec,  Atomic::cas,
                           Atomic::and_, Atomic::or_, Atomic::xor_};

/// What a cell holds after one call (CUDA C++ Programming Guide, "Atomic Functions"). Sums wrap.
template <class T>
T after(Atomic f, T old, T x, T expected) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    const U a = static_cast<U>(old), b = static_cast<U>(x);
    switch (f) {
      case Atomic::add: return static_cast<T>(a + b);
      case Atomic::sub: return static_cast<T>(a - b);
      case Atomic::and_: return static_cast<T>(a & b);
      case Atomic::or_: return static_cast<T>(a | b);
      case Atomic::xor_: return static_cast<T>(a ^ b);
      default: break;
    }
  }
  switch (f) {
    case Atomic::add: return old + x;
    case Atomic::exch: return x;
    case Atomic::min: return std::min(old, x);
    case Atomic::max: return std::max(old, x);
    case Atomic::inc: return old >= x ? T(0) : old + 1;
    case Atomic::dec: return old == 0 || old > x ? x : old - 1;
    case Atomic::cas: return old == expected ? x : old;
    default: return old;
  }
}

}  // namespace

TEST_CASE_TEMPLATE("one call", T, int, unsigned, long long, unsigned long long, unsigned short,
                   float, double) {
  using Limits = std::numeric_limits<T>;
  const T values[] = {T(0),
                      T(1),
                      T(2),
                      T(7),
                      T(100),
                      static_cast<T>(-1),
                      static_cast<T>(-3),
                      Limits::lowest(),
                      Limits::max(),
                      static_cast<T>(Limits::max() / 2)};
  const DeviceArray<T> cell(1), returned(1);
  for (const Atomic f : kAll) {
    if (!has_atomic<T>(f)) continue;
    for (const T old : values) {
      for (const T operand : values) {
        for (const T expected : {old, T(5)}) {
          CAPTURE(static_cast<int>(f));
          CAPTURE(old);
          CAPTURE(operand);
          require(cudaMemcpy(cell.data(), &old, sizeof(T), cudaMemcpyHostToDevice));
          apply_once(f, cell.data(), operand, expected, returned.data());
          REQUIRE(returned.download()[0] == old);
          REQUIRE(cell.download()[0] == after(f, old, operand, expected));
          if (f != Atomic::cas) break;
        }
      }
    }
  }
}

TEST_CASE_TEMPLATE("one cell and many threads", T, int, unsigned, long long, unsigned long long,
                   unsigned short, float, double) {
  const unsigned blocks = 37, threads = 192;
  // Small enough for every partial sum to be exact in float; different in every thread's.
  std::vector<T> in(blocks * threads);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<T>(i * 7919 % 1201);
  const T start = T(3);

  for (const Atomic f : kAll) {
    if (!has_atomic<T>(f)) continue;
    CAPTURE(static_cast<int>(f));
    std::vector<T> operands = in;
    // One limit for all threads, so that the cell counts round and round.
    if (f == Atomic::inc || f == Atomic::dec) std::ranges::fill(operands, T(100));
    const DeviceArray<T> cell(std::vector<T>{start}), device_in(operands), device_old(in.size());
    apply_by_all(f, cell.data(), device_in.data(), device_old.data(), blocks, threads);
    const T final = cell.download()[0];
    std::vector<T> old = device_old.download();

    if (f == Atomic::exch) {
      // Every value put in comes out once, but for the last, and the first one came out.
      old.push_back(final);
      operands.push_back(start);
      std::ranges::sort(old);
      std::ranges::sort(operands);
      CHECK(old == operands);
      continue;
    }
    // Every other function gives the same in any order of the threads.
    T expected = start;
    const Atomic same_effect = f == Atomic::cas ? Atomic::add : f;
    for (const T x : operands) expected = after(same_effect, expected, x, T(0));
    CHECK(final == expected);
    // The values returned are those that the cell went through.
    if (f == Atomic::inc || f == Atomic::dec) {
      std::vector<T> passed{start};
      while (passed.size() < old.size()) {
        passed.push_back(after(f, passed.back(), T(100), T(0)));
      }
      std::ranges::sort(old);
      std::ranges::sort(passed);
      CHECK(old == passed);
    } else if (f == Atomic::min || f == Atomic::max) {
      CHECK(std::ranges::count(old, start) >= 1);
    } else if (f == Atomic::add && std::is_integral_v<T>) {
      // No thread saw a sum that another had replaced: from old to old + operand is one chain.
      std::vector<T> left = old, arrived{start};
      for (size_t i = 0; i < old.size(); ++i) arrived.push_back(static_cast<T>(old[i] + in[i]));
      left.push_back(final);
      std::ranges::sort(left);
      std::ranges::sort(arrived);
      CHECK(left == arrived);
    }
  }
}

TEST_CASE_TEMPLATE("a histogram in shared memory", T, int, unsigned, unsigned long long, float,
                   double) {
  std::vector<unsigned char> in(50'000);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<unsigned char>(i * i % 71 % kBins);
  std::vector<T> expected(kBins);
  for (const unsigned char bin : in) expected[bin] += 1;
  const DeviceArray<unsigned char> device_in(in);
  for (const unsigned blocks : {1u, 23u}) {
    const DeviceArray<T> bins(kBins);
    histogram(device_in.data(), bins.data(), static_cast<unsigned>(in.size()), blocks);
    CHECK(bins.download() == expected);
  }
}

TEST_CASE("the last block adds up what the others published with a fence") {
  std::vector<int> in(20'000);
  std::iota(in.begin(), in.end(), -5000);
  const int expected = std::accumulate(in.begin(), in.end(), 0);
  const DeviceArray<int> device_in(in), partial(300), sum(1);
  const DeviceArray<unsigned> done(1);
  for (const unsigned blocks : {1u, 2u, 300u}) {
    sum_by_last_block(device_in.data(), static_cast<unsigned>(in.size()), partial.data(),
                      done.data(), sum.data(), blocks);
    CHECK(sum.download()[0] == expected);
    CHECK(done.download()[0] == 0);
  }
}
