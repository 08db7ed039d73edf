#include "harness/inputs.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>

#include "harness/convert.hpp"
#include "harness/parallel.hpp"
#include "tile/host/status.hpp"

namespace tile {
namespace {

// splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA
// 2014): a bijection of 64-bit words that passes the usual tests when fed kGamma, 2 kGamma, ...
// A function of a counter has no state, and unlike std::uniform_real_distribution it gives the same
// numbers with every standard library.
constexpr std::uint64_t kGamma = 0x9E3779B97F4A7C15;

std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

// Word i of the stream of `seed`. Mixing the seed first keeps neighbouring seeds far apart.
std::uint64_t random_bits(std::uint64_t seed, std::uint64_t i) {
  return mix(mix(seed + kGamma) + (i + 1) * kGamma);
}

// In [0, 1): 53 random bits, as many as a double holds.
double random_unit(std::uint64_t seed, std::uint64_t i) {
  return static_cast<double>(random_bits(seed, i) >> 11) * 0x1p-53;
}

// Element i is at(i), rounded to the type.
template <class At>
std::vector<double> generate(std::int64_t count, DType dtype, At at) {
  if (count < 0) {
    throw std::invalid_argument(
        invalid_argument("count", std::to_string(count) + " is negative").message);
  }
  std::vector<double> values(static_cast<std::size_t>(count));
  in_parts(values.size(), kElementsForAThread, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) values[i] = at(i);
    round_to(std::span(values).subspan(begin, end - begin), dtype);
  });
  return values;
}

struct Range {
  double min_denormal, min_normal, max;
};

// IEEE 754: emin is the exponent of the smallest normal number, p the bits of the significand.
Range range(DType dtype) {
  const double ulp_of_1 = 2 * unit_roundoff(dtype);  // 2^(1-p)
  const auto make = [&](double min_normal, double power_above_max) {
    return Range{min_normal * ulp_of_1, min_normal, power_above_max / 2 * (2 - ulp_of_1)};
  };
  switch (dtype) {
    case DType::fp16: return make(0x1p-14, 0x1p16);
    case DType::fp64: return {0x1p-1074, 0x1p-1022, std::numeric_limits<double>::max()};
    case DType::e4m3: return {0x1p-9, 0x1p-6, 448};  // 480 would be its NaN
    case DType::fp32:
    case DType::tf32:
    case DType::bf16: break;  // bf16 has the exponents of fp32
  }
  return make(0x1p-126, 0x1p128);
}

std::vector<double> cycle(std::int64_t count, DType dtype, std::vector<double> period) {
  constexpr std::size_t kPeriod = 31;
  // Fill up with a ramp down from 2 in steps of 1/4, after which the cycle jumps back.
  for (double x = 2; period.size() < kPeriod; x -= 0.25) period.push_back(x);
  return generate(count, dtype, [&](std::size_t i) { return period[i % kPeriod]; });
}

std::vector<double> finite_specials(DType dtype) {
  const Range r = range(dtype);
  const double max_denormal = r.min_normal - r.min_denormal;
  return {0.0,          -0.0,          r.min_denormal, -r.min_denormal, max_denormal, -max_denormal,
          r.min_normal, -r.min_normal, r.max,          -r.max,          1e4,          -1e4};
}

}  // namespace

std::vector<double> uniform(std::int64_t count, DType dtype, std::uint64_t seed, double lo,
                            double hi) {
  return generate(count, dtype,
                  [&](std::size_t i) { return lo + (hi - lo) * random_unit(seed, i); });
}

std::vector<double> normal(std::int64_t count, DType dtype, std::uint64_t seed, double mean) {
  const auto make = [&](std::int64_t n) {
    return generate(n, dtype, [&](std::size_t i) {
      double sum = -6;
      for (std::uint64_t k = 0; k < 12; ++k) sum += random_unit(seed, 12 * i + k);
      return sum + mean;
    });
  };
  // Tests ask for the same few vectors, at different lengths, once for each step and case.
  constexpr std::int64_t kKept = 1 << 20;  // 8 MiB each
  if (count < 0 || count > kKept) return make(count);
  static std::map<std::tuple<DType, std::uint64_t, double>, std::vector<double>> all_kept;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  std::vector<double>& kept = all_kept[{dtype, seed, mean}];
  if (std::ssize(kept) < count) kept = make(std::min(kKept, std::max(count, 2 * std::ssize(kept))));
  return {kept.begin(), kept.begin() + count};
}

std::vector<double> integers(std::int64_t count, DType dtype, std::uint64_t seed, std::int64_t lo,
                             std::int64_t hi) {
  const auto limit = static_cast<std::int64_t>(1 / unit_roundoff(dtype));
  if (lo > hi || lo < -limit || hi > limit) {
    const std::string range_text = std::to_string(lo) + " to " + std::to_string(hi);
    throw std::invalid_argument(
        invalid_argument("lo, hi", range_text + " is empty or beyond " + std::to_string(limit))
            .message);
  }
  const auto choices = static_cast<std::uint64_t>(hi - lo) + 1;
  return generate(count, dtype, [&](std::size_t i) {
    // The remainder favours small values by at most choices / 2^64.
    return static_cast<double>(lo + static_cast<std::int64_t>(random_bits(seed, i) % choices));
  });
}

std::vector<double> adversarial(std::int64_t count, DType dtype) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<double> period = finite_specials(dtype);
  period.insert(period.end(), {kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN()});
  return cycle(count, dtype, std::move(period));
}

std::vector<double> adversarial_finite(std::int64_t count, DType dtype) {
  return cycle(count, dtype, finite_specials(dtype));
}

std::vector<double> all_very_negative(std::int64_t count, DType dtype) {
  // Neighbours in [2^14, 2^15), where 20480 lies, are 2^14 * 2u apart: 16 in fp16, 128 in bf16.
  const double step = std::max(0.25, 0x1p15 * unit_roundoff(dtype));
  return generate(count, dtype,
                  [&](std::size_t i) { return -20480 - step * static_cast<double>(i % 5); });
}

std::vector<std::int64_t> odd_sizes(std::int64_t tile) {
  std::set<std::int64_t> sizes = {
      0,  1,   2,   tile - 1, tile, tile + 1, 2 * tile - 1, 2 * tile + 1,
      97, 113, 257, 587,      799,  1023,     1025};
  return {sizes.begin(), sizes.end()};
}

std::vector<std::int64_t> pointer_offsets() { return {0, 1, 3}; }

}  // namespace tile
