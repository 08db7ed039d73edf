// The rounding of a result in fp32 to the type that it is stored in, for the bounds of references.
#pragma once

#include <cmath>
#include <limits>

#include "tile/host/dtype.hpp"

namespace tile {

struct Rounding {
  double unit, underflow;  // relative; and half the smallest denormal
  double infinite;         // from here on it is infinity

  /// What rounding adds to the error of a result near `value` that is off by `of_value`.
  double error(double value, double of_value) const {
    return unit * (std::abs(value) + of_value) + underflow;
  }
};

inline Rounding rounding_of(DType type) {
  // The last finite number lies u below a power of two; from the middle between them on it is that.
  const auto infinite = [](double power, double u) { return power * (1 - u / 2); };
  switch (type) {
    case DType::fp16: return {0x1p-11, 0x1p-25, infinite(0x1p16, 0x1p-11)};
    case DType::bf16: return {0x1p-8, 0x1p-134, infinite(0x1p128, 0x1p-8)};
    case DType::fp32:  // no further rounding
    case DType::tf32: return {0, 0, infinite(0x1p128, 0x1p-24)};
    case DType::fp64:
    case DType::e4m3: break;  // no result has it
  }
  return {0, 0, std::numeric_limits<double>::infinity()};
}

}  // namespace tile
