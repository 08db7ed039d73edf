// The CPU device's stand-in for CUDA's header of the same name: __nv_fp8_e4m3 and __nv_fp8_e5m2,
// as storage for tensor-core operands. Left out: conversions from and to other types than float and
// double, vectors of them, and the functions __nv_cvt_….
//
// Conversions saturate, as CUDA's constructors do: what exceeds the largest finite number, infinity
// included, becomes that number. A NaN becomes 0x7f.
#pragma once

#include "cpu_device/small_float.h"

/// 4 significant bits, normal from 2^-6 to 448, subnormal down to 2^-9. No infinity: all exponents
/// are those of numbers, and only all ones is a NaN.
struct __nv_fp8_e4m3 {
  unsigned char __x;

  __nv_fp8_e4m3() = default;
  explicit __nv_fp8_e4m3(float a) : __nv_fp8_e4m3(double{a}) {}
  explicit __nv_fp8_e4m3(double a) {
    const unsigned bits = cpu_device::from_double<Wider>(a / kScale);
    const unsigned sign = bits >> Wider::kSignBit << 7, magnitude = bits & (Wider::kSign - 1u);
    if (magnitude > Wider::kInfinity) {
      __x = kNan;
    } else {
      __x = static_cast<unsigned char>(sign | (magnitude < kNan ? magnitude : kNan - 1));
    }
  }
  explicit operator float() const {
    const unsigned magnitude = __x & kNan;
    if (magnitude == kNan) return cpu_device::to_float<Wider>(Wider::kNan);
    const unsigned sign = (__x & 0x80u) << (Wider::kSignBit - 7);
    return cpu_device::to_float<Wider>(static_cast<unsigned short>(sign | magnitude)) * kScale;
  }

 private:
  // With one more bit of exponent, a format with infinities has the same bit patterns for these
  // numbers, 2^-8 times as large, and its own infinities and NaNs are out of their reach.
  using Wider = cpu_device::SmallFloat<5, 3>;
  static constexpr float kScale = 256;
  static constexpr unsigned char kNan = 0x7f;
};

/// The upper half of a __half: 3 significant bits, normal from 2^-14 to 57344, subnormal down to
/// 2^-16, with infinities and NaNs.
struct __nv_fp8_e5m2 {
  unsigned char __x;

  __nv_fp8_e5m2() = default;
  explicit __nv_fp8_e5m2(float a) : __nv_fp8_e5m2(double{a}) {}
  explicit __nv_fp8_e5m2(double a) {
    const unsigned bits = cpu_device::from_double<Format>(a);
    const bool infinite = (bits & 0x7f) == Format::kInfinity;
    __x = static_cast<unsigned char>(infinite ? bits - 1 : bits);
  }
  explicit operator float() const { return cpu_device::to_float<Format>(__x); }

 private:
  using Format = cpu_device::SmallFloat<5, 2>;
};
