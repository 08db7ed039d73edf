// Floating-point formats of 16 bits or fewer, held as integers: conversions that round once.
// cuda_fp16.h and cuda_bf16.h are built on it.
//
// Everything passes through double. It holds every value of these formats, every product of two
// of them and every float exactly, so it never adds a rounding of its own where this file is used
// as it says. That needs IEEE arithmetic: no -ffast-math.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace cpu_device {

inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// PTX's .rn, .rz, .rm and .rp (PTX ISA, "Rounding Modifiers").
enum class Rounding { nearest_even, toward_zero, down, up };

/// A sign, `kExponents` bits of exponent and `kMantissas` bits of mantissa, with the subnormals,
/// infinities and NaNs of IEEE 754. The constants of type uint16_t are bit patterns.
template <int kExponents, int kMantissas>
struct SmallFloat {
  static constexpr int kMantissaBits = kMantissas;
  static constexpr int kBias = (1 << (kExponents - 1)) - 1;
  static constexpr int kSignBit = kExponents + kMantissas;
  static constexpr uint16_t kSign = 1 << kSignBit;
  static constexpr uint16_t kInfinity = ((1 << kExponents) - 1) << kMantissas;
  static constexpr uint16_t kMaxFinite = kInfinity - 1;
  static constexpr uint16_t kNan = kSign - 1;  // the one that GPUs produce: positive, all ones
};

using Fp16 = SmallFloat<5, 10>;
using Bf16 = SmallFloat<8, 7>;

/// The value of a bit pattern, exactly. bf16 is the upper half of a float and keeps a NaN's
/// payload; the other formats give the canonical NaN, 0x7fffffff.
template <class Format>
constexpr float to_float(uint16_t bits) {
  constexpr int kShift = 23 - Format::kMantissaBits;
  if constexpr (Format::kBias == 127) {
    return std::bit_cast<float>(uint32_t{bits} << kShift);
  } else {
    const uint32_t magnitude = bits & (Format::kSign - 1u);
    if (magnitude > Format::kInfinity) return std::bit_cast<float>(0x7fffffffu);
    const uint32_t sign = (bits ^ magnitude) << (31 - Format::kSignBit);
    if (magnitude == Format::kInfinity) return std::bit_cast<float>(sign | 0x7f800000u);
    // A subnormal has no hidden bit. Its mantissa is read with one in front, at the smallest normal
    // number s, and s is subtracted again. Others go the same way and subtract 0: random signs and
    // zeros would make a branch here cost more than all the rest.
    constexpr uint32_t kSmallestNormal = uint32_t{128 - Format::kBias} << 23;
    constexpr uint32_t kRebias = uint32_t{127 - Format::kBias} << 23;
    const uint32_t subnormal = magnitude >> Format::kMantissaBits == 0;
    const float value = std::bit_cast<float>((magnitude << kShift) + kRebias + (subnormal << 23)) -
                        std::bit_cast<float>(subnormal * kSmallestNormal);
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
  }
}

/// value / 2^shift, rounded; 0 < shift < 64 and value < 2^63. `negative` is the sign of the number
/// whose magnitude is being rounded: it turns down and up into toward and away from zero.
template <Rounding kRounding>
constexpr uint64_t shift_right(uint64_t value, int shift, bool negative) {
  const uint64_t below_one = (uint64_t{1} << shift) - 1;
  uint64_t bias = 0;
  if constexpr (kRounding == Rounding::nearest_even) {
    bias = below_one / 2 + ((value >> shift) & 1);  // a tie goes up from an odd number only
  } else if constexpr (kRounding == Rounding::down) {
    bias = negative ? below_one : 0;
  } else if constexpr (kRounding == Rounding::up) {
    bias = negative ? 0 : below_one;
  }
  return (value + bias) >> shift;
}

/// `value` rounded to the format, in one step. NaNs become the canonical NaN. What exceeds the
/// largest finite number becomes infinity, or stays there if the mode rounds toward zero.
template <class Format, Rounding kRounding = Rounding::nearest_even>
constexpr uint16_t from_double(double value) {
  constexpr uint64_t kDoubleInfinity = uint64_t{0x7ff} << 52;
  constexpr int kMinNormal = 1024 - Format::kBias;  // its exponent field as a double
  constexpr int kDropped = 52 - Format::kMantissaBits;

  const uint64_t bits = std::bit_cast<uint64_t>(value);
  const uint64_t magnitude = bits & ~(uint64_t{1} << 63);
  const bool negative = bits != magnitude;
  const uint64_t sign = (bits ^ magnitude) >> (63 - Format::kSignBit);
  if (magnitude >= kDoubleInfinity) {
    if (magnitude > kDoubleInfinity) return Format::kNan;
    return static_cast<uint16_t>(sign | Format::kInfinity);
  }

  const int exponent = static_cast<int>(magnitude >> 52);
  uint64_t rounded;
  if (exponent >= kMinNormal) {
    // Exponent and mantissa are rounded as one integer: a carry out of the mantissa is what
    // increments the exponent.
    constexpr uint64_t kRebias = uint64_t{kMinNormal - 1} << 52;
    rounded = shift_right<kRounding>(magnitude - kRebias, kDropped, negative);
  } else {
    // Subnormal or zero in the format: the last place is that of the smallest normal number, so
    // smaller numbers lose more bits. Past 63 nothing changes: less than half of that place is
    // left.
    const uint64_t hidden = uint64_t{exponent != 0} << 52;
    const uint64_t significand = (magnitude & ((uint64_t{1} << 52) - 1)) | hidden;
    const int dropped = kDropped + kMinNormal - exponent;
    rounded = shift_right<kRounding>(significand, dropped < 63 ? dropped : 63, negative);
  }
  if (rounded > Format::kMaxFinite) {
    const bool stays = kRounding == Rounding::toward_zero ||
                       (kRounding == Rounding::down && !negative) ||
                       (kRounding == Rounding::up && negative);
    rounded = stays ? Format::kMaxFinite : Format::kInfinity;
  }
  return static_cast<uint16_t>(sign | rounded);
}

/// `value` rounded to the format, in one step.
template <class Format, Rounding kRounding = Rounding::nearest_even, class Integer>
constexpr uint16_t from_integer(Integer value) {
  const bool negative = value < 0;
  const auto bits = static_cast<uint64_t>(value);
  uint64_t magnitude = negative ? 0 - bits : bits;
  // A double holds 53 bits. Of a longer number the last 11 are folded into one that says whether
  // any of them was set: that is all that they can decide.
  if (magnitude >> 53 != 0) magnitude = (magnitude >> 11 | ((magnitude & 0x7ff) != 0)) << 11;
  const auto exact = static_cast<double>(magnitude);
  return from_double<Format, kRounding>(negative ? -exact : exact);
}

/// `value` rounded to an integer. Saturates. NaN gives 0, or 2^63 as a bit pattern in the 64-bit
/// types (CUDA Math API, __half2int_rn and __half2ll_rn).
template <class Integer, Rounding kRounding>
Integer to_integer(double value) {
  using Limits = std::numeric_limits<Integer>;
  constexpr double kEnd = 2.0 * static_cast<double>(uint64_t{1} << (Limits::digits - 1));
  if (std::isnan(value)) {
    return sizeof(Integer) == 8 ? static_cast<Integer>(uint64_t{1} << 63) : Integer{0};
  }
  if constexpr (kRounding == Rounding::nearest_even) value = std::rint(value);
  if constexpr (kRounding == Rounding::toward_zero) value = std::trunc(value);
  if constexpr (kRounding == Rounding::down) value = std::floor(value);
  if constexpr (kRounding == Rounding::up) value = std::ceil(value);
  if (value <= static_cast<double>(Limits::min())) return Limits::min();
  if (value >= kEnd) return Limits::max();
  return static_cast<Integer>(value);
}

/// a * b + c for values of these formats, such that one further rounding gives what a single
/// rounding of the exact result would.
///
/// std::fma in float followed by a rounding to fp16 is wrong where the float lands on the midpoint
/// of two halves and the bits that said which side the result is on are gone. In double the product
/// is exact but the sum need not be: in bf16 (1 + 2^-7) * 1.5 is such a midpoint, and adding
/// 2^-100 leaves the double where it is. So the sum is rounded to odd: when it is inexact and its
/// last bit is 0, the neighbour on the side of the exact sum is taken. An odd last bit is never a
/// midpoint of a format with 2 bits fewer (Boldo and Melquiond, "Emulation of FMA and correctly
/// rounded sums: proved algorithms using rounding to odd", 2008).
inline double fma_to_odd(double a, double b, double c) {
  const double product = a * b;
  const double sum = product + c;
  // What the addition cut off, exactly (Knuth's TwoSum). Infinities make it NaN.
  const double product_part = sum - c;
  const double c_part = sum - product_part;
  const double error = (product - product_part) + (c - c_part);
  const auto bits = std::bit_cast<uint64_t>(sum);
  const bool inexact = error < 0 || error > 0;
  if (!inexact || (bits & 1) != 0) return sum;
  return std::bit_cast<double>((error > 0) == (sum > 0) ? bits + 1 : bits - 1);
}

}  // namespace cpu_device
