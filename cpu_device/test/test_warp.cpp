// Warp-level primitives against what the PTX ISA says of them (shfl.sync, vote.sync, match.sync,
// redux.sync, activemask), computed lane by lane.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <vector>

#include "device_array.hpp"
#include "warp_kernels.hpp"

using namespace device_test;

namespace {

constexpr unsigned kFull = 0xffffffffu;

/// A mask of the lowest lanes.
unsigned lowest(unsigned lanes) { return lanes >= 32 ? kFull : (1u << lanes) - 1; }

/// The lanes that exist in the warp of a thread.
unsigned existing(unsigned thread, unsigned threads) { return lowest(threads - thread / 32 * 32); }

bool has(unsigned mask, unsigned lane) { return mask >> lane & 1; }

/// The lane that a shuffle reads. The hardware takes the low five bits of the argument.
unsigned source_of(int shuffle, unsigned lane, int argument, unsigned width) {
  const unsigned five_bits = static_cast<unsigned>(argument + 64) % 32;
  const unsigned first = lane / width * width;
  switch (shuffle) {
    case kIdx: return first + five_bits % width;
    case kUp: return lane >= first + five_bits ? lane - five_bits : lane;
    case kDown: return lane + five_bits < first + width ? lane + five_bits : lane;
    default: return (lane ^ five_bits) < first + width ? lane ^ five_bits : lane;
  }
}

/// Different in every byte of every thread's value, exact in each type.
template <class T>
std::vector<T> distinct_values(unsigned threads) {
  std::vector<T> values;
  for (unsigned t = 0; t < threads; ++t) {
    const uint64_t bits = (t + 1) * 0x0123456789abcdefu;
    T value;
    if constexpr (sizeof(T) == 8)
      std::memcpy(&value, &bits, 8);
    else
      value = static_cast<T>(bits % 0xffffff);
    values.push_back(value);
  }
  return values;
}

template <class T>
bool same_bits(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

}  // namespace

TEST_CASE_TEMPLATE("shuffles of every width and argument", T, int, unsigned, long, unsigned long,
                   long long, unsigned long long, float, double) {
  // One warp; two; one that is short, called with all lanes and with its own.
  const struct {
    unsigned threads, mask;
  } launches[] = {{32, kFull}, {64, kFull}, {40, kFull}, {8, 0xff}, {1, 1}};
  for (const auto& launch : launches) {
    const unsigned threads = launch.threads, mask = launch.mask;
    CAPTURE(threads);
    const std::vector<T> in = distinct_values<T>(threads);
    const DeviceArray<T> device_in(in), device_out(kWidths * kArguments * kShuffles * threads);
    shuffles(device_in.data(), device_out.data(), mask, threads);
    const std::vector<T> out = device_out.download();

    for (size_t i = 0; i < out.size(); ++i) {
      const auto thread = static_cast<unsigned>(i % threads);
      const int shuffle = static_cast<int>(i / threads % kShuffles);
      const int argument = static_cast<int>(i / threads / kShuffles % kArguments) + kFirstArgument;
      const unsigned width = 1u << i / threads / kShuffles / kArguments;
      const unsigned source = source_of(shuffle, thread % 32, argument, width);
      if (!has(existing(thread, threads), source)) continue;  // undefined
      if (same_bits(out[i], in[thread / 32 * 32 + source])) continue;
      CAPTURE(shuffle);
      CAPTURE(argument);
      CAPTURE(width);
      CAPTURE(thread);
      REQUIRE(out[i] == in[thread / 32 * 32 + source]);
    }
  }
}

namespace {

std::vector<WarpValues> warp_values(unsigned threads, unsigned seed) {
  std::vector<WarpValues> values(threads);
  for (unsigned t = 0; t < threads; ++t) {
    const unsigned r = (t + 1) * 2654435761u * (seed + 1) >> 7;
    WarpValues& v = values[t];
    v.predicate = seed == 0 ? 1 : seed == 1 ? 0 : static_cast<int>(r % 2) * -7;
    v.integer = seed < 2 ? -5 : static_cast<int>(r << 30 | r % 3);  // few different ones
    v.wide = seed < 2 ? 1ll << 40 : static_cast<long long>(r % 2) << 40 | 3;
    v.single = seed < 2 ? 0.5f : r % 4 < 2 ? 0.0f : -0.0f;  // equal, and not the same bits
    v.full = seed < 2 ? -1e300 : static_cast<double>(r % 3);
  }
  return values;
}

/// What each lane of `group` gets; `v` are the values of its warp.
WarpResults expected_results(const WarpValues* v, unsigned group, unsigned lane) {
  std::vector<unsigned> lanes;
  for (unsigned l = 0; l < 32; ++l) {
    if (has(group, l)) lanes.push_back(l);
  }
  auto lanes_like_mine = [&](auto member) {
    unsigned like = 0;
    for (const unsigned l : lanes) like |= unsigned{same_bits(v[l].*member, v[lane].*member)} << l;
    return like;
  };
  auto total = [&](auto start, auto combine) {
    auto sum = start;
    for (const unsigned l : lanes) sum = combine(sum, static_cast<decltype(start)>(v[l].integer));
    return sum;
  };
  auto least = [](auto a, auto b) { return std::min(a, b); };
  auto greatest = [](auto a, auto b) { return std::max(a, b); };

  WarpResults r{};
  for (const unsigned l : lanes) r.ballot |= unsigned{v[l].predicate != 0} << l;
  r.through_shared = v[lanes.front()].integer;
  r.all = r.ballot == group;
  r.any = r.ballot != 0;
  r.match_any_int = r.match_any_unsigned = lanes_like_mine(&WarpValues::integer);
  r.match_any_wide = lanes_like_mine(&WarpValues::wide);
  r.match_any_float = lanes_like_mine(&WarpValues::single);
  r.match_any_double = lanes_like_mine(&WarpValues::full);
  r.match_all_int = r.match_any_int == group ? group : 0;
  r.match_all_wide = r.match_any_wide == group ? group : 0;
  r.match_all_float = r.match_any_float == group ? group : 0;
  r.match_all_double = r.match_any_double == group ? group : 0;
  r.all_match_int = r.match_all_int != 0;
  r.all_match_wide = r.match_all_wide != 0;
  r.all_match_float = r.match_all_float != 0;
  r.all_match_double = r.match_all_double != 0;
  if (tile::device().capability < 80) return r;  // it has no reductions
  r.add_unsigned = total(0u, std::plus<>());     // wraps, as the sum of the integers does
  r.add_int = static_cast<int>(r.add_unsigned);
  r.min_int = total(v[lane].integer, least);
  r.max_int = total(v[lane].integer, greatest);
  r.min_unsigned = total(kFull, least);
  r.max_unsigned = total(0u, greatest);
  r.and_unsigned = total(kFull, std::bit_and<>());
  r.or_unsigned = total(0u, std::bit_or<>());
  r.xor_unsigned = total(0u, std::bit_xor<>());
  return r;
}

}  // namespace

TEST_CASE("votes, matches and reductions among the lanes of a mask") {
  const struct {
    dim3 block;
    unsigned mask;
  } launches[] = {{32, kFull},
                  {32, 0x0000ffff},
                  {32, 0xaaaaaaaa},
                  {32, 0x80000001},
                  {32, 0x00000001},
                  {96, 0x7fffffff},
                  {dim3(8, 4, 3), 0xf0f0f0f0},
                  {dim3(5, 3, 3), 0x00000fff},
                  {45, kFull},
                  {1024, 0x12345678}};
  for (const auto& launch : launches) {
    const dim3 block = launch.block;
    const unsigned mask = launch.mask;
    for (unsigned seed = 0; seed < 5; ++seed) {
      CAPTURE(mask);
      CAPTURE(seed);
      const unsigned threads = block.x * block.y * block.z;
      const std::vector<WarpValues> in = warp_values(threads, seed);
      const DeviceArray<WarpValues> device_in(in);
      const DeviceArray<WarpResults> device_out(threads);
      collectives(device_in.data(), device_out.data(), mask, block);
      const std::vector<WarpResults> out = device_out.download();
      for (unsigned t = 0; t < threads; ++t) {
        const unsigned lane = t % 32;
        const unsigned group = (has(mask, lane) ? mask : ~mask) & existing(t, threads);
        WarpResults got = out[t];
        got.all = got.all != 0;  // CUDA says "non-zero"
        got.any = got.any != 0;
        // Only ints and unsigneds: compared as words, to name the first that differs.
        unsigned words[sizeof(WarpResults) / 4], expected[sizeof(WarpResults) / 4];
        const WarpResults e = expected_results(&in[t - lane], group, lane);
        std::memcpy(words, &got, sizeof words);
        std::memcpy(expected, &e, sizeof expected);
        const auto [word, right] = std::mismatch(std::begin(words), std::end(words), expected);
        if (word == std::end(words)) continue;
        const auto member = word - words;
        CAPTURE(t);
        CAPTURE(member);
        REQUIRE(*word == *right);
      }
    }
  }
}

TEST_CASE("groups of lanes in loops of their own") {
  for (const unsigned threads : {32u, 96u, 1024u}) {
    std::vector<int> in(threads);
    std::iota(in.begin(), in.end(), -7);
    const DeviceArray<int> device_in(in), device_out(threads);
    groups_in_loops(device_in.data(), device_out.data(), threads);
    const std::vector<int> out = device_out.download();
    for (unsigned t = 0; t < threads; ++t) {
      const unsigned first = t / 8 * 8;
      int sum = std::accumulate(&in[first], &in[first] + 8, 0);
      for (unsigned round = 0; round < t % 32 / 8; ++round) sum *= 8;  // of eight equal sums
      REQUIRE(out[t] == sum);
    }
  }
}

TEST_CASE("active lanes") {
  for (const unsigned threads : {32u, 64u, 45u, 1u}) {
    const DeviceArray<ActiveMasks> device_out(threads);
    active_masks(device_out.data(), threads);
    const std::vector<ActiveMasks> out = device_out.download();
    for (unsigned t = 0; t < threads; ++t) {
      CAPTURE(t);
      const unsigned lane = t % 32;
      const unsigned all = existing(t, threads);
      // CUDA promises this lane, and no lane that cannot be here. Lanes in lock step, as far as
      // the code lets them be, are what the CPU device promises.
      auto check = [&](unsigned got, unsigned lanes_here) {
        CHECK(has(got, lane));
        CHECK((got & ~lanes_here) == 0);
        if (tile::device_is_simulated()) CHECK(got == lanes_here);
      };
      const unsigned thirds = 0x49249249;
      check(out[t].converged, all);
      check(out[t].in_branch, all & (lane % 3 == 0 ? thirds : ~thirds));
      const unsigned with_rounds[] = {kFull, 0xeeeeeeee, 0xcccccccc, 0x88888888};
      for (unsigned round = 0; round <= lane % 4; ++round) {
        check(out[t].in_loop[round], all & with_rounds[round]);
      }
      check(out[t].after, all);
    }
  }
}

TEST_CASE("one atomic for all active lanes") {
  const unsigned threads = 500;
  std::vector<int> in(threads);
  for (unsigned t = 0; t < threads; ++t) in[t] = static_cast<int>(t * t / 3);
  const auto odd = std::ranges::count_if(in, [](int i) { return i % 2 == 1; });
  const DeviceArray<int> device_in(in), counter(1), device_tickets(threads);
  aggregated_count(device_in.data(), counter.data(), device_tickets.data(), threads);
  std::vector<int> tickets = device_tickets.download();
  CHECK(counter.download()[0] == odd);
  for (unsigned t = 0; t < threads; ++t) CHECK((tickets[t] >= 0) == (in[t] % 2 == 1));
  std::erase(tickets, -1);
  std::ranges::sort(tickets);
  for (int i = 0; i < odd; ++i) REQUIRE(tickets[static_cast<size_t>(i)] == i);
}
