// What fp16 and bf16 operations must give, from the definition: the exact result as an integer,
// then one rounding. Uses no floating-point arithmetic, neither the CPU device's headers nor
// CUDA's, so that it judges both.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <limits>

namespace half_oracle {

enum class Mode { rn, rz, rd, ru };

struct Format {
  int exponent_bits;
  int mantissa_bits;

  constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  constexpr uint32_t sign() const { return 1u << (exponent_bits + mantissa_bits); }
  constexpr uint32_t infinity() const { return ((1u << exponent_bits) - 1) << mantissa_bits; }
  constexpr uint32_t max_finite() const { return infinity() - 1; }
  constexpr uint32_t nan() const { return sign() - 1; }
  constexpr uint32_t one() const { return uint32_t(bias()) << mantissa_bits; }
  constexpr bool is_nan(uint32_t bits) const { return (bits & (sign() - 1)) > infinity(); }
};

inline constexpr Format kFp16{5, 10};
inline constexpr Format kBf16{8, 7};
inline constexpr Format kFp32{8, 23};

/// A floating-point number taken apart: +-mantissa * 2^exponent unless it is infinite or a NaN.
struct Number {
  bool nan = false;
  bool infinite = false;
  bool negative = false;
  uint64_t mantissa = 0;
  int exponent = 0;

  bool zero() const { return !nan && !infinite && mantissa == 0; }
};

inline Number decode(uint64_t bits, int exponent_bits, int mantissa_bits) {
  const uint64_t field = bits >> mantissa_bits & ((uint64_t{1} << exponent_bits) - 1);
  const uint64_t fraction = bits & ((uint64_t{1} << mantissa_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  Number number;
  number.negative = (bits >> (exponent_bits + mantissa_bits) & 1) != 0;
  if (field == (uint64_t{1} << exponent_bits) - 1) {
    number.nan = fraction != 0;
    number.infinite = fraction == 0;
  } else {
    const bool normal = field != 0;
    number.mantissa = fraction | uint64_t{normal} << mantissa_bits;
    number.exponent = (normal ? int(field) : 1) - bias - mantissa_bits;
  }
  return number;
}

inline Number decode(const Format& format, uint32_t bits) {
  return decode(bits, format.exponent_bits, format.mantissa_bits);
}
inline Number decode_double(uint64_t bits) { return decode(bits, 11, 52); }

/// A number as an integer of 640 bits times 2^-320, in two's complement: wide enough for every
/// float and for the product of any two 16-bit numbers.
class Exact {
 public:
  Exact() = default;

  /// +-mantissa * 2^exponent.
  Exact(bool negative, uint64_t mantissa, int exponent) {
    const auto position = size_t(exponent + kPoint);
    const size_t index = position / 64, shift = position % 64;
    word_[index] = mantissa << shift;
    if (shift != 0) word_[index + 1] = mantissa >> (64 - shift);
    if (negative) negate();
  }

  Exact& operator+=(const Exact& other) {
    bool carry = false;
    for (size_t i = 0; i < kWords; ++i) {
      const uint64_t sum = word_[i] + other.word_[i];
      const uint64_t with_carry = sum + carry;
      carry = sum < word_[i] || with_carry < sum;
      word_[i] = with_carry;
    }
    return *this;
  }

  void negate() {
    bool carry = true;
    for (uint64_t& word : word_) {
      word = ~word + carry;
      carry = carry && word == 0;
    }
  }

  bool negative() const { return word_[kWords - 1] >> 63 != 0; }

  /// The exponent of the highest set bit of a number >= 0, or INT_MIN for 0.
  int log2() const {
    for (size_t i = kWords; i-- > 0;) {
      if (word_[i] != 0) return int(i * 64) + 63 - std::countl_zero(word_[i]) - kPoint;
    }
    return std::numeric_limits<int>::min();
  }

  /// floor(number / 2^exponent) of a number >= 0, where that has at most 64 bits.
  uint64_t quotient(int exponent) const {
    const auto position = size_t(exponent + kPoint);
    const size_t index = position / 64, shift = position % 64;
    const uint64_t low = word_[index] >> shift;
    return shift == 0 || index + 1 == kWords ? low : low | word_[index + 1] << (64 - shift);
  }

  /// What floor cut off there, against one half: -2 none, -1 less, 0 equal, 1 more.
  int remainder_against_half(int exponent) const {
    const int half = exponent - 1;
    const bool half_bit = (quotient(half) & 1) != 0;
    const auto position = size_t(half + kPoint);
    bool rest = (word_[position / 64] & ((uint64_t{1} << position % 64) - 1)) != 0;
    for (size_t i = 0; i < position / 64; ++i) rest = rest || word_[i] != 0;
    if (half_bit) return rest ? 1 : 0;
    return rest ? -1 : -2;
  }

 private:
  static constexpr size_t kWords = 10;
  static constexpr int kPoint = 320;
  std::array<uint64_t, kWords> word_{};
};

inline bool rounds_up(Mode mode, bool negative, bool odd, int remainder_against_half) {
  switch (mode) {
    case Mode::rn: return remainder_against_half > 0 || (remainder_against_half == 0 && odd);
    case Mode::rz: return false;
    case Mode::rd: return negative && remainder_against_half > -2;
    case Mode::ru: return !negative && remainder_against_half > -2;
  }
  std::abort();
}

/// The bits of `value` in `format`; `negative_zero` is the sign to give to a zero.
inline uint32_t round(const Format& format, Mode mode, Exact value, bool negative_zero) {
  const bool negative = value.negative();
  if (negative) value.negate();
  const int log2 = value.log2();
  if (log2 == std::numeric_limits<int>::min()) return negative_zero ? format.sign() : 0;
  const uint32_t sign = negative ? format.sign() : 0;

  // The last place: that of the number's binade, or of the smallest normal one for subnormals.
  int last_place = std::max(log2, 1 - format.bias()) - format.mantissa_bits;
  uint64_t mantissa = value.quotient(last_place);
  if (rounds_up(mode, negative, mantissa % 2 != 0, value.remainder_against_half(last_place))) {
    ++mantissa;
  }
  const uint64_t hidden = uint64_t{1} << format.mantissa_bits;
  if (mantissa == 2 * hidden) {
    mantissa = hidden;
    ++last_place;
  }
  if (mantissa < hidden) return sign | uint32_t(mantissa);
  const int field = last_place + format.mantissa_bits + format.bias();
  if (field >= (1 << format.exponent_bits) - 1) {
    const bool away =
        mode == Mode::rn || (mode == Mode::rd && negative) || (mode == Mode::ru && !negative);
    return sign | (away ? format.infinity() : format.max_finite());
  }
  return sign | uint32_t(field) << format.mantissa_bits | uint32_t(mantissa - hidden);
}

/// A number in another format.
inline uint32_t convert(const Format& format, Mode mode, const Number& a) {
  if (a.nan) return format.nan();
  if (a.infinite) return (a.negative ? format.sign() : 0) | format.infinity();
  // Doubles reach further than Exact, but all beyond these exponents overflow or vanish alike.
  const int exponent = std::clamp(a.exponent, -300, 200);
  return round(format, mode, Exact(a.negative, a.mantissa, exponent), a.negative);
}

inline uint32_t from_magnitude(const Format& format, Mode mode, bool negative, uint64_t magnitude) {
  return round(format, mode, Exact(negative, magnitude, 0), false);
}

inline uint32_t fma(const Format& format, const Number& a, const Number& b, const Number& c) {
  const bool product_negative = a.negative != b.negative;
  if (a.nan || b.nan || c.nan) return format.nan();
  if (a.infinite || b.infinite) {
    if (a.zero() || b.zero()) return format.nan();
    if (c.infinite && c.negative != product_negative) return format.nan();
    return (product_negative ? format.sign() : 0) | format.infinity();
  }
  if (c.infinite) return (c.negative ? format.sign() : 0) | format.infinity();
  Exact sum(product_negative, a.mantissa * b.mantissa, a.exponent + b.exponent);
  sum += Exact(c.negative, c.mantissa, c.exponent);
  return round(format, Mode::rn, sum, product_negative && c.negative);
}

/// A number known to lie in [whole, whole + 1) * 2^exponent, and at whole * 2^exponent if `exact`.
/// All that lies strictly between rounds alike as long as `whole` has a few bits more than the
/// format; one more bit stands for it.
inline uint32_t round_truncated(const Format& format, bool negative, uint64_t whole, int exponent,
                                bool exact) {
  return round(format, Mode::rn, Exact(negative, 2 * whole + !exact, exponent - 1), negative);
}

inline uint32_t divide(const Format& format, const Number& a, const Number& b) {
  const bool negative = a.negative != b.negative;
  const uint32_t sign = negative ? format.sign() : 0;
  if (a.nan || b.nan || (a.infinite && b.infinite) || (a.zero() && b.zero())) return format.nan();
  if (a.infinite || b.zero()) return sign | format.infinity();
  if (a.zero() || b.infinite) return sign;
  const uint64_t numerator = a.mantissa << 50;
  return round_truncated(format, negative, numerator / b.mantissa, a.exponent - b.exponent - 50,
                         numerator % b.mantissa == 0);
}

/// floor(sqrt(n)), bit by bit.
inline uint64_t integer_sqrt(uint64_t n) {
  uint64_t root = 0;
  for (uint64_t bit = uint64_t{1} << 31; bit != 0; bit >>= 1) {
    if ((root | bit) * (root | bit) <= n) root |= bit;
  }
  return root;
}

inline uint32_t square_root(const Format& format, const Number& a) {
  if (a.nan || (a.negative && !a.zero())) return format.nan();
  if (a.zero()) return a.negative ? format.sign() : 0;
  if (a.infinite) return format.infinity();
  const bool odd = a.exponent % 2 != 0;
  const uint64_t square = a.mantissa << (odd ? 41 : 40);
  const uint64_t root = integer_sqrt(square);
  return round_truncated(format, false, root, (a.exponent - odd) / 2 - 20, root * root == square);
}

inline uint32_t reciprocal_square_root(const Format& format, const Number& a) {
  if (a.nan || (a.negative && !a.zero())) return format.nan();
  if (a.zero()) return (a.negative ? format.sign() : 0) | format.infinity();
  if (a.infinite) return 0;
  const bool odd = a.exponent % 2 != 0;
  const uint64_t mantissa = a.mantissa << odd;
  const uint64_t numerator = uint64_t{1} << 62;
  const uint64_t root = integer_sqrt(numerator / mantissa);  // sqrt(2^62 / mantissa)
  return round_truncated(format, false, root, -(a.exponent - odd) / 2 - 31,
                         root * root * mantissa == numerator);
}

/// `a` rounded to an integer of the format (cvt.rni.f16.f16 and its like); keeps the sign of zero.
inline uint32_t round_to_integer(const Format& format, Mode mode, const Number& a) {
  if (a.nan || a.infinite || a.exponent >= 0) return convert(format, mode, a);
  const Exact magnitude(false, a.mantissa, a.exponent);
  uint64_t whole = magnitude.quotient(0);
  whole += rounds_up(mode, a.negative, whole % 2 != 0, magnitude.remainder_against_half(0));
  return round(format, mode, Exact(a.negative, whole, 0), a.negative);
}

/// `a` rounded to an integer of `bits` bits as two's complement. Saturates; NaN gives 0, or 2^63 if
/// the integer has 64 bits.
inline uint64_t to_integer(Mode mode, const Number& a, int bits, bool is_signed) {
  if (a.nan) return bits == 64 ? uint64_t{1} << 63 : 0;
  const uint64_t limit = is_signed ? (uint64_t{1} << (bits - 1)) - !a.negative
                                   : (a.negative ? 0 : ~uint64_t{0} >> (64 - bits));
  uint64_t magnitude = limit;
  const Exact exact(false, a.mantissa, a.exponent);
  if (!a.infinite && exact.log2() < 64) {
    magnitude = exact.quotient(0);
    const bool odd = magnitude % 2 != 0;
    magnitude += rounds_up(mode, a.negative, odd, exact.remainder_against_half(0));
  }
  magnitude = std::min(magnitude, limit);
  return a.negative ? 0 - magnitude : magnitude;
}

/// -1, 0, 1, or 2 if either is a NaN.
inline int compare(const Number& a, const Number& b) {
  if (a.nan || b.nan) return 2;
  const auto key = [](const Number& n) {
    return n.infinite ? Exact(n.negative, 1, 200) : Exact(n.negative, n.mantissa, n.exponent);
  };
  Exact difference = key(b);
  difference.negate();
  difference += key(a);
  if (difference.negative()) return -1;
  return difference.log2() == std::numeric_limits<int>::min() ? 0 : 1;
}

/// Maximum and minimum of the bits: +0 is greater than -0.
inline uint32_t maximum(const Format& format, uint32_t a, uint32_t b, bool nan_wins) {
  const bool a_nan = format.is_nan(a), b_nan = format.is_nan(b);
  if ((a_nan && b_nan) || ((a_nan || b_nan) && nan_wins)) return format.nan();
  if (a_nan || b_nan) return a_nan ? b : a;
  const int order = compare(decode(format, a), decode(format, b));
  if (order == 0) return a & b;  // differ in the sign of zero at most
  return order > 0 ? a : b;
}
inline uint32_t minimum(const Format& format, uint32_t a, uint32_t b, bool nan_wins) {
  const uint32_t sign = format.sign();
  const uint32_t result = maximum(format, a ^ sign, b ^ sign, nan_wins);
  return format.is_nan(result) ? format.nan() : result ^ sign;
}

}  // namespace half_oracle
