// What each warp-level primitive computes, once all its lanes have arrived.
#include <algorithm>
#include <bit>

#include "block.hpp"
#include "cpu_device/elect.h"
#include "cpu_device/tensor.h"

namespace cpu_device {
namespace {

// Runs `visit(lane)` for each lane of a mask.
template <class Visit>
void for_each_lane(uint32_t lanes, Visit visit) {
  for (; lanes; lanes &= lanes - 1) visit(static_cast<uint32_t>(std::countr_zero(lanes)));
}

// A lane outside the call has no value to give: CUDA leaves the result undefined. All ones is NaN
// in every floating-point type, so a kernel that uses it shows it.
constexpr uint64_t kUndefined = ~0ull;

// The source of `lane`, in whose section the lanes `first` to `last` are.
using Source = uint32_t (*)(uint32_t lane, uint32_t first, uint32_t last, uint32_t argument);

template <Source source>
void shuffle(WarpExchange& x, uint32_t lanes) {
  for_each_lane(lanes, [&](uint32_t lane) {
    const uint32_t width = x.argument[lane] >> 5, argument = x.argument[lane] % 32;
    const uint32_t first = lane & ~(width - 1);
    const uint32_t from = source(lane, first, first + width - 1, argument);
    x.result[lane] = lanes >> from & 1 ? x.value[from] : kUndefined;
  });
}

uint32_t indexed(uint32_t, uint32_t first, uint32_t last, uint32_t argument) {
  return first + (argument & (last - first));
}
// A lane whose source would lie outside its section keeps its own value.
uint32_t above(uint32_t lane, uint32_t first, uint32_t, uint32_t argument) {
  return lane - first >= argument ? lane - argument : lane;
}
uint32_t below(uint32_t lane, uint32_t, uint32_t last, uint32_t argument) {
  return last - lane >= argument ? lane + argument : lane;
}
// Reading from an earlier section is allowed here, from a later one is not.
uint32_t across(uint32_t lane, uint32_t, uint32_t last, uint32_t argument) {
  return (lane ^ argument) <= last ? lane ^ argument : lane;
}

void no_result(WarpExchange&, uint32_t) {}

uint32_t ballot_of(const WarpExchange& x, uint32_t lanes) {
  uint32_t ballot = 0;
  for_each_lane(lanes,
                [&](uint32_t lane) { ballot |= static_cast<uint32_t>(x.value[lane]) << lane; });
  return ballot;
}

void elect(WarpExchange& x, uint32_t lanes) {
  const auto lowest = static_cast<uint32_t>(std::countr_zero(lanes));
  for_each_lane(lanes, [&](uint32_t lane) { x.result[lane] = lane == lowest; });
}

void give_all(WarpExchange& x, uint32_t lanes, uint64_t result) {
  for_each_lane(lanes, [&](uint32_t lane) { x.result[lane] = result; });
}

void vote_all(WarpExchange& x, uint32_t lanes) { give_all(x, lanes, ballot_of(x, lanes) == lanes); }
void vote_any(WarpExchange& x, uint32_t lanes) { give_all(x, lanes, ballot_of(x, lanes) != 0); }
void ballot(WarpExchange& x, uint32_t lanes) { give_all(x, lanes, ballot_of(x, lanes)); }

uint32_t lanes_with(const WarpExchange& x, uint32_t lanes, uint64_t value) {
  uint32_t same = 0;
  for_each_lane(lanes, [&](uint32_t lane) { same |= uint32_t{x.value[lane] == value} << lane; });
  return same;
}

void match_any(WarpExchange& x, uint32_t lanes) {
  for_each_lane(lanes,
                [&](uint32_t lane) { x.result[lane] = lanes_with(x, lanes, x.value[lane]); });
}

void match_all(WarpExchange& x, uint32_t lanes) {
  const uint64_t first = x.value[std::countr_zero(lanes)];
  give_all(x, lanes, lanes_with(x, lanes, first) == lanes ? lanes : 0);
}

template <class T, T (*combine)(T, T)>
void reduce(WarpExchange& x, uint32_t lanes) {
  T total = from_bits<T>(x.value[std::countr_zero(lanes)]);
  for_each_lane(lanes & (lanes - 1),
                [&](uint32_t lane) { total = combine(total, from_bits<T>(x.value[lane])); });
  give_all(x, lanes, to_bits(total));
}

template <class T>
T add(T a, T b) {  // wraps, as on the GPU
  return static_cast<T>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}
template <class T>
T least(T a, T b) {
  return std::min(a, b);
}
template <class T>
T greatest(T a, T b) {
  return std::max(a, b);
}
uint32_t bit_and(uint32_t a, uint32_t b) { return a & b; }
uint32_t bit_or(uint32_t a, uint32_t b) { return a | b; }
uint32_t bit_xor(uint32_t a, uint32_t b) { return a ^ b; }

}  // namespace

const BarrierCall kSyncthreads{"__syncthreads()"};
const BarrierCall kSyncthreadsCount{"__syncthreads_count()"};
const BarrierCall kSyncthreadsAnd{"__syncthreads_and()"};
const BarrierCall kSyncthreadsOr{"__syncthreads_or()"};

const WarpCall kSyncwarp{"__syncwarp()", no_result};
const WarpCall kShfl{"__shfl_sync()", shuffle<indexed>};
const WarpCall kShflUp{"__shfl_up_sync()", shuffle<above>};
const WarpCall kShflDown{"__shfl_down_sync()", shuffle<below>};
const WarpCall kShflXor{"__shfl_xor_sync()", shuffle<across>};
const WarpCall kAll{"__all_sync()", vote_all};
const WarpCall kAny{"__any_sync()", vote_any};
const WarpCall kBallot{"__ballot_sync()", ballot};
const WarpCall kMatchAny{"__match_any_sync()", match_any};
const WarpCall kMatchAll{"__match_all_sync()", match_all};
const WarpCall kReduceAddInt{"__reduce_add_sync()", reduce<int, add>};
const WarpCall kReduceMinInt{"__reduce_min_sync()", reduce<int, least>};
const WarpCall kReduceMaxInt{"__reduce_max_sync()", reduce<int, greatest>};
const WarpCall kReduceAddUnsigned{"__reduce_add_sync()", reduce<uint32_t, add>};
const WarpCall kReduceMinUnsigned{"__reduce_min_sync()", reduce<uint32_t, least>};
const WarpCall kReduceMaxUnsigned{"__reduce_max_sync()", reduce<uint32_t, greatest>};
const WarpCall kReduceAnd{"__reduce_and_sync()", reduce<uint32_t, bit_and>};
const WarpCall kReduceOr{"__reduce_or_sync()", reduce<uint32_t, bit_or>};
const WarpCall kReduceXor{"__reduce_xor_sync()", reduce<uint32_t, bit_xor>};

bool elect_one(Site site) {
  static constexpr WarpCall kElect{"elect.sync", elect};
  require_capability(kElect.name, 90, site);
  return warp_collective(kElect, ~0u, 0, 0, site) != 0;
}

}  // namespace cpu_device
