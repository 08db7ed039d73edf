// Runs every function of half_device.hpp on the device and holds the results against the oracle.
// On the CPU device this tests its headers; built for a GPU, the very same expectations are tested
// on the hardware.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "half_device.hpp"
#include "half_oracle.hpp"

using half_device::Op;
using half_device::Type;
using half_oracle::Format;
using half_oracle::Mode;
using half_oracle::Number;

namespace {

const char* name(Op op) {
  switch (op) {
#define NAME(op_name) \
  case Op::op_name:   \
    return #op_name;
#define WITH_PAIR(op_name, function, function2) NAME(op_name) NAME(op_name##_pair)
#define FOUR(op_name) NAME(op_name) NAME(op_name##_pair) NAME(op_name##_mask) NAME(op_name##_both)
#define CONVERSIONS(type, T, mode) \
  NAME(to_##type##_##mode) NAME(to_##type##_##mode##_high) NAME(from_##type##_##mode)
    HALF_DEVICE_UNARY(WITH_PAIR)
    HALF_DEVICE_BINARY(WITH_PAIR)
    HALF_DEVICE_TERNARY(WITH_PAIR)
    HALF_DEVICE_COMPARISON(FOUR)
    HALF_DEVICE_INTEGER(CONVERSIONS)
    HALF_DEVICE_OTHER(NAME)
#undef NAME
#undef WITH_PAIR
#undef FOUR
#undef CONVERSIONS
    case Op::count: break;
  }
  return "unknown operation";
}

bool needs_fma(Op op) {
  switch (op) {
#define CASES(op_name, function, function2) \
  case Op::op_name:                         \
  case Op::op_name##_pair:
    HALF_DEVICE_TERNARY(CASES)
#undef CASES
    case Op::hcmadd: return true;
    default: return false;
  }
}

// What an operation reads: the number a alone, several numbers, or an operand of another type.
enum class Takes { one_number, numbers, word };

Takes takes(Op op) {
  switch (op) {
#define ONE(op_name, function, function2) case Op::op_name:
#define TO(type, T, mode)      \
  case Op::to_##type##_##mode: \
  case Op::to_##type##_##mode##_high:
    HALF_DEVICE_UNARY(ONE)
    HALF_DEVICE_INTEGER(TO)
#undef ONE
#undef TO
    case Op::hisnan:
    case Op::hisinf:
    case Op::to_char_rz:
    case Op::to_uchar_rz:
    case Op::to_float:
    case Op::from_other:
    case Op::through_short:
    case Op::through_ushort: return Takes::one_number;
#define FROM(type, T, mode) case Op::from_##type##_##mode:
      HALF_DEVICE_INTEGER(FROM)
#undef FROM
    case Op::from_float:
    case Op::from_float_rn:
    case Op::from_float_rz:
    case Op::from_float_rd:
    case Op::from_float_ru:
    case Op::from_double:
    case Op::pair_from_float:
    case Op::pair_from_floats:
    case Op::pair_from_float2: return Takes::word;
    default: return Takes::numbers;
  }
}

using Random = std::independent_bits_engine<std::mt19937, 32, uint32_t>;

struct Operands {
  std::vector<uint16_t> a, b, c;

  void add(uint32_t x, uint32_t y, uint32_t z) {
    a.push_back(static_cast<uint16_t>(x));
    b.push_back(static_cast<uint16_t>(y));
    c.push_back(static_cast<uint16_t>(z));
  }
};

// What the operations must give for one triple of operands.
class Expected {
 public:
  Expected(Type type, uint32_t a, uint32_t b, uint32_t c)
      : f_(type == Type::fp16 ? half_oracle::kFp16 : half_oracle::kBf16),
        other_(type == Type::fp16 ? half_oracle::kBf16 : half_oracle::kFp16),
        a_(a),
        b_(b),
        c_(c),
        word_(uint64_t{a} | uint64_t{b} << 16 | uint64_t{c} << 32 | uint64_t{a} << 48) {}

  uint32_t operator()(Op op) const {
    switch (op) {
#define UNARY(op_name, function, function2) \
  case Op::op_name: return op_name(a_);     \
  case Op::op_name##_pair:                  \
    return pair(op_name(a_), op_name(b_));
#define BINARY(op_name, function, function2) \
  case Op::op_name: return op_name(a_, b_);  \
  case Op::op_name##_pair:                   \
    return pair(op_name(a_, b_), op_name(b_, c_));
#define TERNARY(op_name, function, function2)   \
  case Op::op_name: return op_name(a_, b_, c_); \
  case Op::op_name##_pair: return pair(op_name(a_, b_, c_), op_name(b_, c_, a_));
// clang-format 14 would make one macro of the next two.
// clang-format off
#define COMPARISON(op_name)                                                                    \
  case Op::op_name: return op_name(a_, b_);                                                    \
  case Op::op_name##_pair:                                                                     \
    return pair(op_name(a_, b_) ? f_.one() : 0, op_name(b_, c_) ? f_.one() : 0);               \
  case Op::op_name##_mask: return pair(op_name(a_, b_) ? 0xffff : 0, op_name(b_, c_) ? 0xffff : 0); \
  case Op::op_name##_both: return op_name(a_, b_) && op_name(b_, c_);
#define INTEGER(type, T, mode)                                                                 \
  case Op::to_##type##_##mode: return static_cast<uint32_t>(to_integer<T>(Mode::mode));        \
  case Op::to_##type##_##mode##_high:                                                          \
    return static_cast<uint32_t>(to_integer<T>(Mode::mode) >> 32);                             \
  case Op::from_##type##_##mode: return from_integer(Mode::mode, static_cast<T>(word_));
      // clang-format on
      HALF_DEVICE_UNARY(UNARY)
      HALF_DEVICE_BINARY(BINARY)
      HALF_DEVICE_TERNARY(TERNARY)
      HALF_DEVICE_COMPARISON(COMPARISON)
      HALF_DEVICE_INTEGER(INTEGER)
#undef UNARY
#undef BINARY
#undef TERNARY
#undef COMPARISON
#undef INTEGER
      case Op::hisnan: return f_.is_nan(a_);
      case Op::hisnan2: return pair(f_.is_nan(a_) ? f_.one() : 0, f_.is_nan(b_) ? f_.one() : 0);
      case Op::hisinf: return a_ == f_.infinity() ? 1 : a_ == (f_.infinity() | f_.sign()) ? ~0u : 0;
      case Op::hcmadd:
        return pair(hfma(hneg(b_), c_, hfma(a_, b_, c_)), hfma(b_, b_, hfma(a_, c_, a_)));
      case Op::to_char_rz: return static_cast<uint32_t>(to_integer<signed char>(Mode::rz));
      case Op::to_uchar_rz: return static_cast<uint32_t>(to_integer<unsigned char>(Mode::rz));
      case Op::to_float:
      case Op::pair_to_float2_x:
      case Op::low2float: return to_float(a_);
      case Op::pair_to_float2_y:
      case Op::high2float: return to_float(b_);
      case Op::from_float:
      case Op::from_float_rn: return from_float(Mode::rn, word_);
      case Op::from_float_rz: return from_float(Mode::rz, word_);
      case Op::from_float_rd: return from_float(Mode::rd, word_);
      case Op::from_float_ru: return from_float(Mode::ru, word_);
      case Op::from_double:
        return half_oracle::convert(f_, Mode::rn, half_oracle::decode_double(word_));
      case Op::from_other:
        return half_oracle::convert(f_, Mode::rn, half_oracle::decode(other_, a_));
      case Op::pair_from_float:
        return pair(from_float(Mode::rn, word_), from_float(Mode::rn, word_));
      case Op::pair_from_floats:
      case Op::pair_from_float2:
        return pair(from_float(Mode::rn, word_), from_float(Mode::rn, word_ >> 32));
      case Op::make_pair:
      case Op::halves2pair: return pair(a_, b_);
      case Op::half2pair:
      case Op::low2pair: return pair(a_, a_);
      case Op::high2pair: return pair(b_, b_);
      case Op::low2half:
      case Op::through_short:
      case Op::through_ushort: return a_;
      case Op::high2half: return b_;
      case Op::lows2pair: return pair(a_, b_);
      case Op::highs2pair: return pair(b_, c_);
      case Op::lowhigh2highlow: return pair(b_, a_);
      case Op::count: break;
    }
    FAIL("no expectation for operation " << static_cast<int>(op));
    return 0;
  }

  // Whether a result is right. The payload of a NaN is not specified where the operation need not
  // round: the sign operations and the conversion to float (PTX ISA, "neg", "abs").
  bool accepts(Op op, uint32_t got) const {
    const uint32_t want = (*this)(op);
    if (got == want) return true;
    switch (op) {
      case Op::hneg:
      case Op::habs:
      case Op::from_double:  // an H200 keeps the sign and part of the payload
        return f_.is_nan(want) && f_.is_nan(got);
      case Op::hneg_pair:
      case Op::habs_pair: {
        const auto same = [this](uint32_t x, uint32_t y) {
          return x == y || (f_.is_nan(x) && f_.is_nan(y));
        };
        return same(want & 0xffff, got & 0xffff) && same(want >> 16, got >> 16);
      }
      case Op::to_float:
      case Op::low2float:
      case Op::high2float:
      case Op::pair_to_float2_x:
      case Op::pair_to_float2_y:
        return half_oracle::kFp32.is_nan(want) && half_oracle::kFp32.is_nan(got);
      default: return false;
    }
  }

 private:
  static uint32_t pair(uint32_t x, uint32_t y) { return x | y << 16; }
  Number number(uint32_t bits) const { return half_oracle::decode(f_, bits); }

  uint32_t hneg(uint32_t x) const { return f_.is_nan(x) ? f_.nan() : x ^ f_.sign(); }
  uint32_t habs(uint32_t x) const { return f_.is_nan(x) ? f_.nan() : x & ~f_.sign(); }
  uint32_t hsqrt(uint32_t x) const { return half_oracle::square_root(f_, number(x)); }
  uint32_t hrsqrt(uint32_t x) const { return half_oracle::reciprocal_square_root(f_, number(x)); }
  uint32_t hrcp(uint32_t x) const { return hdiv(f_.one(), x); }
  uint32_t htrunc(uint32_t x) const { return rounded(Mode::rz, x); }
  uint32_t hceil(uint32_t x) const { return rounded(Mode::ru, x); }
  uint32_t hfloor(uint32_t x) const { return rounded(Mode::rd, x); }
  uint32_t hrint(uint32_t x) const { return rounded(Mode::rn, x); }
  uint32_t rounded(Mode mode, uint32_t x) const {
    return half_oracle::round_to_integer(f_, mode, number(x));
  }

  // x + y is x * 1 + y, x - y is y * -1 + x, and x * y adds a zero of the product's own sign.
  uint32_t hadd(uint32_t x, uint32_t y) const { return hfma(x, f_.one(), y); }
  uint32_t hsub(uint32_t x, uint32_t y) const { return hfma(y, f_.one() | f_.sign(), x); }
  uint32_t hmul(uint32_t x, uint32_t y) const {
    const uint32_t zero = (x ^ y) & f_.sign();
    return hfma(x, y, zero);
  }
  uint32_t hdiv(uint32_t x, uint32_t y) const {
    return half_oracle::divide(f_, number(x), number(y));
  }
  uint32_t hadd_rn(uint32_t x, uint32_t y) const { return hadd(x, y); }
  uint32_t hsub_rn(uint32_t x, uint32_t y) const { return hsub(x, y); }
  uint32_t hmul_rn(uint32_t x, uint32_t y) const { return hmul(x, y); }
  uint32_t hadd_sat(uint32_t x, uint32_t y) const { return saturated(hadd(x, y)); }
  uint32_t hsub_sat(uint32_t x, uint32_t y) const { return saturated(hsub(x, y)); }
  uint32_t hmul_sat(uint32_t x, uint32_t y) const { return saturated(hmul(x, y)); }
  uint32_t hmax(uint32_t x, uint32_t y) const { return half_oracle::maximum(f_, x, y, false); }
  uint32_t hmin(uint32_t x, uint32_t y) const { return half_oracle::minimum(f_, x, y, false); }
  uint32_t hmax_nan(uint32_t x, uint32_t y) const { return half_oracle::maximum(f_, x, y, true); }
  uint32_t hmin_nan(uint32_t x, uint32_t y) const { return half_oracle::minimum(f_, x, y, true); }

  uint32_t hfma(uint32_t x, uint32_t y, uint32_t z) const {
    return half_oracle::fma(f_, number(x), number(y), number(z));
  }
  uint32_t hfma_sat(uint32_t x, uint32_t y, uint32_t z) const { return saturated(hfma(x, y, z)); }
  uint32_t hfma_relu(uint32_t x, uint32_t y, uint32_t z) const {
    const uint32_t result = hfma(x, y, z);
    return (result & f_.sign()) != 0 ? 0 : result;
  }
  // To [+0, 1]; bit patterns of numbers >= 0 are in the order of the numbers, NaNs above them all.
  uint32_t saturated(uint32_t x) const {
    if ((x & f_.sign()) != 0 || f_.is_nan(x)) return 0;
    return std::min(x, f_.one());
  }

  int order(uint32_t x, uint32_t y) const { return half_oracle::compare(number(x), number(y)); }
  bool eq(uint32_t x, uint32_t y) const { return order(x, y) == 0; }
  bool lt(uint32_t x, uint32_t y) const { return order(x, y) == -1; }
  bool gt(uint32_t x, uint32_t y) const { return order(x, y) == 1; }
  bool unordered(uint32_t x, uint32_t y) const { return order(x, y) == 2; }
  bool ne(uint32_t x, uint32_t y) const { return lt(x, y) || gt(x, y); }
  bool le(uint32_t x, uint32_t y) const { return lt(x, y) || eq(x, y); }
  bool ge(uint32_t x, uint32_t y) const { return gt(x, y) || eq(x, y); }
  bool equ(uint32_t x, uint32_t y) const { return eq(x, y) || unordered(x, y); }
  bool neu(uint32_t x, uint32_t y) const { return ne(x, y) || unordered(x, y); }
  bool ltu(uint32_t x, uint32_t y) const { return lt(x, y) || unordered(x, y); }
  bool leu(uint32_t x, uint32_t y) const { return le(x, y) || unordered(x, y); }
  bool gtu(uint32_t x, uint32_t y) const { return gt(x, y) || unordered(x, y); }
  bool geu(uint32_t x, uint32_t y) const { return ge(x, y) || unordered(x, y); }

  uint32_t to_float(uint32_t x) const {
    return half_oracle::convert(half_oracle::kFp32, Mode::rn, number(x));
  }
  uint32_t from_float(Mode mode, uint64_t bits) const {
    const auto low = static_cast<uint32_t>(bits);
    return half_oracle::convert(f_, mode, half_oracle::decode(half_oracle::kFp32, low));
  }
  template <class T>
  uint64_t to_integer(Mode mode) const {
    constexpr bool kSigned = std::numeric_limits<T>::is_signed;
    return half_oracle::to_integer(mode, number(a_), 8 * sizeof(T), kSigned);
  }
  template <class T>
  uint32_t from_integer(Mode mode, T value) const {
    const bool negative = value < 0;
    const auto bits = static_cast<uint64_t>(value);
    return half_oracle::from_magnitude(f_, mode, negative, negative ? 0 - bits : bits);
  }

  Format f_, other_;
  uint32_t a_, b_, c_;
  uint64_t word_;
};

// a * b lies midway between two numbers of the format and c is far below: only a single rounding of
// a * b + c goes the right way.
void add_fma_traps(const Format& f, int count, Operands& operands) {
  Random random(1);
  const int digits = f.mantissa_bits + 1;
  while (count > 0) {
    // Significands near 1, so that the product neither overflows nor comes near the subnormals.
    const uint32_t a = f.one() + random() % (1u << f.mantissa_bits);
    const uint32_t b = f.one() + random() % (1u << f.mantissa_bits);
    const uint64_t product =
        half_oracle::decode(f, a).mantissa * half_oracle::decode(f, b).mantissa;
    const int excess = 64 - std::countl_zero(product) - digits;
    if ((product & ((uint64_t{1} << excess) - 1)) != uint64_t{1} << (excess - 1)) continue;
    for (const uint32_t tiny : {1u, 1u | f.sign(), 0u}) operands.add(a, b, tiny);
    --count;
  }
}

// Zero, subnormals, the smallest and largest normal numbers, numbers around 1, 1.5, 2 and 3,
// infinity, NaNs without and with the quiet bit; and all of them negative.
std::vector<uint32_t> edges(const Format& f) {
  const uint32_t one = f.one(), infinity = f.infinity(), hidden = 1u << f.mantissa_bits;
  std::vector<uint32_t> edges{0,
                              1,
                              2,
                              hidden - 1,
                              hidden,
                              hidden + 1,
                              one - hidden,
                              one - 1,
                              one,
                              one + 1,
                              one + hidden / 2,
                              one + hidden,
                              one + hidden * 3 / 2,
                              infinity - hidden,
                              infinity - 1,
                              infinity,
                              infinity + 1,
                              f.nan()};
  for (size_t i = 0, count = edges.size(); i < count; ++i) edges.push_back(edges[i] | f.sign());
  return edges;
}

Operands operands(const Format& f, Takes takes) {
  Operands all;
  Random random(2);
  if (takes == Takes::one_number) {
    for (uint32_t a = 0; a < 0x10000; ++a) all.add(a, random(), random());
    return all;
  }
  for (int i = 0; i < 8000; ++i) all.add(random(), random(), random());
  std::vector<uint32_t> values = edges(f);
  if (takes == Takes::numbers) {
    add_fma_traps(f, 100, all);
    for (const uint32_t a : values) {
      for (const uint32_t b : values) {
        for (size_t i = 0; i < values.size(); i += 3) {
          all.add(a, b, values[(i + a + b) % values.size()]);
        }
      }
    }
    return all;
  }
  // Digits that are rounded away: ties and their neighbours. Leading 16 bits of doubles: 1, and the
  // limits of both formats.
  const uint32_t digits[] = {0x0080, 0x0200, 0x0fff, 0x1000, 0x1001,
                             0x3000, 0x7fff, 0x8000, 0x8001};
  const uint32_t doubles[] = {0x3ff0, 0x40ef, 0x40f0, 0x3e60, 0x3e70, 0x3f0f, 0x3f10, 0x47ef,
                              0x47f0, 0x3790, 0x37a0, 0x380f, 0x3810, 0xbff0, 0xc0ef, 0xc7ef};
  for (const uint32_t a : doubles) {
    for (const uint32_t c : digits) {
      for (const uint32_t b : {0u, 1u, 0x8000u}) all.add(a, b, c);
    }
  }
  values.insert(values.end(), std::begin(digits), std::end(digits));
  values.insert(values.end(), std::begin(doubles), std::end(doubles));
  for (const uint32_t a : values) {
    for (const uint32_t b : values) all.add(a, b, random());
  }
  return all;
}

void run_all(Type type) {
  const Format f = type == Type::fp16 ? half_oracle::kFp16 : half_oracle::kBf16;
  const Operands one_number = operands(f, Takes::one_number);
  const Operands numbers = operands(f, Takes::numbers);
  const Operands words = operands(f, Takes::word);
  for (int i = 0; i < static_cast<int>(Op::count); ++i) {
    const auto op = static_cast<Op>(i);
    if (type == Type::bf16 && needs_fma(op) && !half_device::has_bf16_fma()) continue;
    const std::string op_name = name(op);
    CAPTURE(op_name);
    const Takes kind = takes(op);
    const Operands& in = kind == Takes::one_number ? one_number
                         : kind == Takes::numbers  ? numbers
                                                   : words;
    std::vector<uint32_t> out(in.a.size());
    REQUIRE(half_device::run_half_ops(type, op, in.a.data(), in.b.data(), in.c.data(), out.data(),
                                      static_cast<int>(out.size())));
    size_t wrong = 0;
    for (size_t k = 0; k < out.size(); ++k) {
      const Expected expected(type, in.a[k], in.b[k], in.c[k]);
      if (expected.accepts(op, out[k]) || ++wrong > 3) continue;  // three examples will do
      const uint32_t a = in.a[k], b = in.b[k], c = in.c[k], got = out[k], want = expected(op);
      CAPTURE(a);
      CAPTURE(b);
      CAPTURE(c);
      CHECK(got == want);
    }
    CHECK(wrong == 0);
  }
}

}  // namespace

TEST_CASE("fp16 functions on the device") { run_all(Type::fp16); }
TEST_CASE("bf16 functions on the device") { run_all(Type::bf16); }
