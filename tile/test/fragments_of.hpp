// Matrices of numbers, and the registers of a warp that hold them: by the maps of
// tile/ptx/fragments.hpp, which this way are what the tests prove.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "harness/convert.hpp"
#include "tile/ptx/fragments.hpp"

namespace ptx_test {

struct Matrix {
  int rows, cols;
  std::vector<double> values = std::vector<double>(static_cast<std::size_t>(rows * cols));

  double& operator()(int row, int col) {
    return values[static_cast<std::size_t>(row * cols + col)];
  }
  double operator()(int row, int col) const {
    return values[static_cast<std::size_t>(row * cols + col)];
  }
};

enum class Number { fp32, tf32, fp16, bf16, e4m3, e5m2 };

inline int bits_of(Number number) {
  switch (number) {
    case Number::fp32:
    case Number::tf32: return 32;
    case Number::fp16:
    case Number::bf16: return 16;
    case Number::e4m3:
    case Number::e5m2: return 8;
  }
  return 0;
}

/// The value of 8 bits, from the definition of the format (OCP 8-bit Floating Point Specification,
/// "FP8 Formats").
inline double value_of_fp8(Number number, unsigned bits) {
  const int mantissa_bits = number == Number::e4m3 ? 3 : 2, bias = number == Number::e4m3 ? 7 : 15;
  const unsigned magnitude = bits & 0x7f, mantissa = magnitude & ((1u << mantissa_bits) - 1);
  const int exponent = static_cast<int>(magnitude >> mantissa_bits);
  double value = std::ldexp(mantissa, 1 - bias - mantissa_bits);
  if (exponent > 0) {
    value = std::ldexp(mantissa + (1u << mantissa_bits), exponent - bias - mantissa_bits);
  }
  if (number == Number::e4m3 ? magnitude == 0x7f : magnitude > 0x7c) value = NAN;
  if (number == Number::e5m2 && magnitude == 0x7c) value = INFINITY;
  return bits & 0x80 ? -value : value;
}

inline std::vector<double> all_of_fp8(Number number) {
  std::vector<double> values;
  for (unsigned bits = 0; bits < 256; ++bits) values.push_back(value_of_fp8(number, bits));
  return values;
}

/// As the harness knows it; of tf32 as the float that it is.
inline tile::DType dtype_of(Number number) {
  return number == Number::fp16   ? tile::DType::fp16
         : number == Number::bf16 ? tile::DType::bf16
                                  : tile::DType::fp32;
}

/// The bits of numbers of the format.
inline std::vector<std::uint32_t> encode(Number number, const std::vector<double>& values) {
  std::vector<std::uint32_t> all(values.size());
  if (bits_of(number) == 8) {
    static const std::vector<double> kE4m3 = all_of_fp8(Number::e4m3);
    static const std::vector<double> kE5m2 = all_of_fp8(Number::e5m2);
    const std::vector<double>& known = number == Number::e4m3 ? kE4m3 : kE5m2;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto found = std::find_if(known.begin(), known.end(), [&](double candidate) {
        return std::isnan(values[i]) ? std::isnan(candidate) : candidate == values[i];
      });
      if (found == known.end()) throw std::invalid_argument("not a number of this format");
      all[i] = static_cast<std::uint32_t>(found - known.begin());
    }
    return all;
  }
  const std::vector<std::byte> bytes = tile::from_double(values, dtype_of(number));
  const std::size_t size = bytes.size() / std::max<std::size_t>(values.size(), 1);
  for (std::size_t i = 0; i < values.size(); ++i) std::memcpy(&all[i], &bytes[i * size], size);
  return all;
}
inline std::uint32_t encode(Number number, double value) {
  return encode(number, std::vector<double>{value})[0];
}

inline double decode(Number number, std::uint32_t bits) {
  if (bits_of(number) == 8) return value_of_fp8(number, bits);
  if (bits_of(number) == 32) return std::bit_cast<float>(bits);
  return tile::to_double(&bits, dtype_of(number), 1)[0];
}

using Map = tile::ptx::Element (*)(int lane, int i);

/// Appends the registers of 32 lanes that hold the matrix: [lane][register].
inline void append_fragment(std::vector<std::uint32_t>& words, const Matrix& matrix, Number number,
                            Map element) {
  const int each = 32 / bits_of(number), count = matrix.rows * matrix.cols / 32;
  const std::vector<std::uint32_t> bits = encode(number, matrix.values);
  for (int lane = 0; lane < 32; ++lane) {
    std::uint32_t word = 0;
    for (int i = 0; i < count; ++i) {
      const tile::ptx::Element e = element(lane, i);
      word |= bits[static_cast<std::size_t>(e.row * matrix.cols + e.col)]
              << i % each * bits_of(number);
      if (i % each + 1 == each) {
        words.push_back(word);
        word = 0;
      }
    }
  }
}

/// The other way.
inline Matrix matrix_of(const std::uint32_t* words, int rows, int cols, Number number,
                        Map element) {
  Matrix matrix{rows, cols};
  const int each = 32 / bits_of(number), count = rows * cols / 32;
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < count; ++i) {
      const std::uint32_t word = words[(lane * count + i) / each];
      const std::uint32_t mask = bits_of(number) == 32 ? ~0u : (1u << bits_of(number)) - 1;
      const tile::ptx::Element e = element(lane, i);
      matrix(e.row, e.col) = decode(number, word >> i % each * bits_of(number) & mask);
    }
  }
  return matrix;
}

}  // namespace ptx_test
