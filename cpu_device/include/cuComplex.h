// The CPU device's stand-in for CUDA's header of the same name: complex numbers as float2 and
// double2. Quotients and absolute values are scaled, so that they overflow only where they must.
#pragma once

#include <cmath>

#include "cpu_device/vector_types.h"

#define CPU_DEVICE_COMPLEX(Complex, Vector, T, f)                                      \
  typedef Vector Complex;                                                              \
  constexpr Complex make_##Complex(T x, T y) { return {x, y}; }                        \
  constexpr T cuCreal##f(Complex z) { return z.x; }                                    \
  constexpr T cuCimag##f(Complex z) { return z.y; }                                    \
  constexpr Complex cuConj##f(Complex z) { return {z.x, -z.y}; }                       \
  constexpr Complex cuCadd##f(Complex a, Complex b) { return {a.x + b.x, a.y + b.y}; } \
  constexpr Complex cuCsub##f(Complex a, Complex b) { return {a.x - b.x, a.y - b.y}; } \
  constexpr Complex cuCmul##f(Complex a, Complex b) {                                  \
    return {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x};                             \
  }                                                                                    \
  inline Complex cuCdiv##f(Complex a, Complex b) {                                     \
    const T scale = 1 / (std::fabs(b.x) + std::fabs(b.y));                             \
    a = {a.x * scale, a.y * scale}, b = {b.x * scale, b.y * scale};                    \
    const T inverse = 1 / (b.x * b.x + b.y * b.y);                                     \
    return {(a.x * b.x + a.y * b.y) * inverse, (a.y * b.x - a.x * b.y) * inverse};     \
  }                                                                                    \
  inline T cuCabs##f(Complex z) { return std::hypot(z.x, z.y); }                       \
  inline Complex cuCfma##f(Complex a, Complex b, Complex c) {                          \
    return {std::fma(-a.y, b.y, std::fma(a.x, b.x, c.x)),                              \
            std::fma(a.y, b.x, std::fma(a.x, b.y, c.y))};                              \
  }
CPU_DEVICE_COMPLEX(cuFloatComplex, float2, float, f)
CPU_DEVICE_COMPLEX(cuDoubleComplex, double2, double, )
#undef CPU_DEVICE_COMPLEX

typedef cuFloatComplex cuComplex;
constexpr cuComplex make_cuComplex(float x, float y) { return {x, y}; }
constexpr cuDoubleComplex cuComplexFloatToDouble(cuFloatComplex z) { return {z.x, z.y}; }
constexpr cuFloatComplex cuComplexDoubleToFloat(cuDoubleComplex z) {
  return {static_cast<float>(z.x), static_cast<float>(z.y)};
}
