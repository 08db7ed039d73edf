// Bits, integers and conversions, against results computed bit by bit or in wider types.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <vector>

#include "device_array.hpp"
#include "math_kernels.hpp"

using namespace device_test;

namespace {

constexpr unsigned kEdges[] = {0,          1,          2,          3,          0x80,
                               0xff,       0x7fffff,   0x800000,   0xffffff,   0x12345678,
                               0x7fffffff, 0x80000000, 0x80000001, 0xdeadbeef, 0xffffffff};

bool bit(unsigned long long x, int i) { return x >> i & 1; }

int bits_set(unsigned long long x) {
  int count = 0;
  for (int i = 0; i < 64; ++i) count += bit(x, i);
  return count;
}
/// The number of the highest bit set, -1 for none.
int highest(unsigned long long x) {
  int i = 63;
  while (i >= 0 && !bit(x, i)) --i;
  return i;
}
/// The number of the lowest bit set, -1 for none.
int lowest(unsigned long long x) {
  for (int i = 0; i < 64; ++i) {
    if (bit(x, i)) return i;
  }
  return -1;
}

unsigned char byte(unsigned x, unsigned i) { return static_cast<unsigned char>(x >> 8 * i); }

/// The 24 low bits as a signed number.
long long signed24(unsigned x) {
  const long long low = x & 0xffffff;
  return low >= 0x800000 ? low - 0x1000000 : low;
}

}  // namespace

TEST_CASE("functions of words") {
  std::vector<Words> in;
  for (const unsigned x : kEdges) {
    for (const unsigned y : kEdges) {
      for (const unsigned s : {0u, 1u, 0x3210u, 0x7654u, 0x0617u, 31u, 32u, 45u}) {
        const unsigned long long wide = static_cast<unsigned long long>(x) << 32 | y;
        in.push_back({x, y, s, wide, ~wide * 0x9e3779b97f4a7c15u});
      }
    }
  }
  const DeviceArray<Words> device_in(in);
  const DeviceArray<WordResults> device_out(in.size());
  word_functions(device_in.data(), device_out.data(), static_cast<int>(in.size()));
  const std::vector<WordResults> out = device_out.download();
  for (size_t i = 0; i < in.size(); ++i) {
    const unsigned x = in[i].x, y = in[i].y, s = in[i].s;
    const unsigned long long a = in[i].a, b = in[i].b;
    const int ix = static_cast<int>(x), iy = static_cast<int>(y);
    const long long la = static_cast<long long>(a), lb = static_cast<long long>(b);
    const WordResults& r = out[i];
    CAPTURE(x);
    CAPTURE(y);
    CAPTURE(s);
    CHECK(r.popc == bits_set(x));
    CHECK(r.popcll == bits_set(a));
    CHECK(r.clz == 31 - highest(x));
    CHECK(r.clzll == 63 - highest(a));
    CHECK(r.ffs == lowest(x) + 1);
    CHECK(r.ffsll == lowest(a) + 1);
    for (int n = 0; n < 32; ++n) REQUIRE(bit(r.brev, n) == bit(x, 31 - n));
    for (unsigned n = 0; n < 4; ++n) {
      const unsigned pick = s >> 4 * n & 7;
      REQUIRE(byte(r.byte_perm, n) == (pick < 4 ? byte(x, pick) : byte(y, pick - 4)));
    }
    const int shift = static_cast<int>(s & 31);
    for (int n = 0; n < 32; ++n) {  // y:x, the x half low
      const unsigned long long both = static_cast<unsigned long long>(y) << 32 | x;
      REQUIRE(bit(r.funnel_l, n) == bit(both, 32 + n - shift));
      REQUIRE(bit(r.funnel_r, n) == (n + shift < 64 && bit(both, n + shift)));
    }
    // The same, but by up to 32.
    const unsigned clamped = std::min(s % 64, 32u);
    const unsigned long long pair = static_cast<unsigned long long>(y) << 32 | x;
    CHECK(r.funnel_lc == static_cast<unsigned>(clamped == 32 ? x : pair << clamped >> 32));
    CHECK(r.funnel_rc == static_cast<unsigned>(pair >> clamped));
    unsigned dot = s, dot_unsigned = s;
    for (unsigned n = 0; n < 4; ++n) {
      const auto a8 = static_cast<signed char>(byte(x, n)),
                 b8 = static_cast<signed char>(byte(y, n));
      dot += static_cast<unsigned>(a8 * b8);
      dot_unsigned += static_cast<unsigned>(byte(x, n)) * static_cast<unsigned>(byte(y, n));
    }
    CHECK(r.dp4a == static_cast<int>(dot));
    CHECK(r.dp4a_unsigned == dot_unsigned);
    const long long wide_x = ix, wide_y = iy;
    CHECK(r.sad == static_cast<unsigned>(std::abs(wide_x - wide_y)) + s);
    CHECK(r.usad == (x > y ? x - y : y - x) + s);
    CHECK(r.hadd == static_cast<int>((wide_x + wide_y) >> 1));
    CHECK(r.rhadd == static_cast<int>((wide_x + wide_y + 1) >> 1));
    CHECK(r.uhadd == static_cast<unsigned>((static_cast<unsigned long long>(x) + y) >> 1));
    for (int n = 0; n < 64; ++n) REQUIRE(bit(r.brevll, n) == bit(a, 63 - n));
    __extension__ using Wide = __int128;
    __extension__ using UnsignedWide = unsigned __int128;
    CHECK(r.umulhi == static_cast<unsigned>(UnsignedWide{x} * y >> 32));
    CHECK(r.mulhi == static_cast<int>(Wide{ix} * iy >> 32));
    CHECK(r.umul64hi == static_cast<unsigned long long>(UnsignedWide{a} * b >> 64));
    CHECK(r.mul24 == static_cast<int>(signed24(x) * signed24(y)));
    CHECK(r.as_int == ix);
    CHECK(r.as_uint == y);
    CHECK(r.as_longlong == la);
    CHECK(r.min_int == (ix < iy ? ix : iy));
    CHECK(r.max_int == (ix < iy ? iy : ix));
    CHECK(r.min_unsigned == (x < y ? x : y));
    CHECK(r.max_unsigned == (x < y ? y : x));
    CHECK(r.min_mixed == (x < y ? x : y));
    CHECK(r.max_mixed == (x < y ? y : x));
    CHECK(r.min_long == (la < lb ? la : lb));
    CHECK(r.max_long == (a < b ? b : a));
  }
}

namespace {

double rounded(double x, int mode) {
  const double below = std::floor(x), above = std::ceil(x);
  switch (mode) {
    case kZero: return x < 0 ? above : below;
    case kDown: return below;
    case kUp: return above;
    default:
      if (x - below != above - x) return x - below < above - x ? below : above;
      return std::fmod(below, 2) == 0 ? below : above;
  }
}

/// PTX ISA, `cvt`: out of range gives the nearest integer; NaN gives 0 between 32-bit types and
/// the highest bit otherwise.
template <class Integer>
Integer converted(double x, int mode, bool from_double) {
  using Limits = std::numeric_limits<Integer>;
  if (std::isnan(x)) {
    if (sizeof(Integer) == 4 && !from_double) return 0;
    return static_cast<Integer>(1ull << (sizeof(Integer) * 8 - 1));
  }
  const long double whole = rounded(x, mode);  // holds every integer of 64 bits
  if (whole <= static_cast<long double>(Limits::min())) return Limits::min();
  if (whole >= static_cast<long double>(Limits::max())) return Limits::max();
  return static_cast<Integer>(whole);
}

}  // namespace

TEST_CASE("to integers, in every rounding") {
  std::vector<double> in{0,
                         0.25,
                         0.5,
                         0.75,
                         1,
                         1.5,
                         2.5,
                         3.5,
                         1e5 + 0.5,
                         8388607.5,
                         0x1p23 + 1,
                         0x1p30,
                         0x1p31 - 1,
                         0x1p31 - 0.5,
                         0x1p31,
                         0x1p32 - 1,
                         0x1p32 - 0.5,
                         0x1p32,
                         0x1p52 + 0.5,
                         0x1p62,
                         0x1p63 - 1024,
                         0x1p63,
                         0x1p64 - 2048,
                         0x1p64,
                         1e30,
                         1e300,
                         1e-40,
                         1e-300,
                         INFINITY};
  const size_t positive = in.size();
  for (size_t i = 0; i < positive; ++i) in.push_back(-in[i]);
  in.push_back(NAN);
  const DeviceArray<double> device_in(in);
  const DeviceArray<Integers> device_out(in.size());
  to_integers(device_in.data(), device_out.data(), static_cast<int>(in.size()));
  const std::vector<Integers> out = device_out.download();
  for (size_t i = 0; i < in.size(); ++i) {
    for (const bool from_double : {false, true}) {
      for (int mode = 0; mode < kModes; ++mode) {
        const double x = from_double ? in[i] : static_cast<double>(static_cast<float>(in[i]));
        CAPTURE(x);
        CAPTURE(from_double);
        CAPTURE(mode);
        const Integers& r = out[i];
        CHECK(r.to_int[from_double][mode] == converted<int>(x, mode, from_double));
        CHECK(r.to_uint[from_double][mode] == converted<unsigned>(x, mode, from_double));
        CHECK(r.to_ll[from_double][mode] == converted<long long>(x, mode, from_double));
        CHECK(r.to_ull[from_double][mode] == converted<unsigned long long>(x, mode, from_double));
      }
    }
  }
}

TEST_CASE("from integers, rounded to nearest even") {
  std::vector<long long> in;
  for (const unsigned x : kEdges) {
    in.push_back(x);
    in.push_back(-static_cast<long long>(x));
    in.push_back(static_cast<long long>(x) << 31 | x);
    // Halfway between two floats, and beside it.
    for (const int off : {-1, 0, 1}) in.push_back(0x1000001ll * 2 * (x % 8 + 1) + off);
  }
  in.push_back(std::numeric_limits<long long>::min());
  in.push_back(std::numeric_limits<long long>::max());
  const DeviceArray<long long> device_in(in);
  const DeviceArray<Floats> device_out(in.size());
  to_floats(device_in.data(), device_out.data(), static_cast<int>(in.size()));
  const std::vector<Floats> out = device_out.download();
  // A long double holds every integer exactly, so that there is one rounding.
  auto to_float = [](auto x) { return static_cast<float>(static_cast<long double>(x)); };
  for (size_t i = 0; i < in.size(); ++i) {
    CAPTURE(in[i]);
    CHECK(out[i].from_int == to_float(static_cast<int>(in[i])));
    CHECK(out[i].from_uint == to_float(static_cast<unsigned>(in[i])));
    CHECK(out[i].from_ll == to_float(in[i]));
    CHECK(out[i].from_double == to_float(static_cast<double>(in[i])));
    CHECK(out[i].int_to_double == static_cast<int>(in[i]));
  }
}

TEST_CASE("the clock goes forward") {
  const DeviceArray<long long> times(2);
  const DeviceArray<int> result(std::vector<int>{3});
  clocks(times.data(), result.data());
  const std::vector<long long> t = times.download();
  CHECK(t[0] <= t[1]);
  unsigned x = 3;
  for (unsigned i = 0; i < 1000; ++i) x = x * 5 + i;
  CHECK(result.download()[0] == static_cast<int>(x));
}
