#include "harness/convert.hpp"

#include <cuda_fp8.h>

#include <Eigen/Core>
#include <bit>
#include <cmath>
#include <cstring>

#include "harness/parallel.hpp"

namespace tile {
namespace {

// Of the two floats on either side of x, the one whose last bit is 1, unless x is a float itself.
//
// Eigen's half and bfloat16 are made from a float. Rounding a double to the nearest float first
// would round twice: 1 + 2^-11 + 2^-40 lies above the midpoint of two halves, becomes that midpoint
// as a float, and then ties the wrong way. An odd last bit remembers that something was cut off, so
// that the second rounding, to a type with at least two bits fewer, comes out right (Boldo and
// Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to
// odd", 2008).
float round_to_odd(double x) {
  const float nearest = static_cast<float>(x);
  const auto bits = std::bit_cast<std::uint32_t>(nearest);
  const double back = nearest;
  const bool is_cut = back < x || back > x;  // neither of a NaN
  // The neighbour away from zero has the next bits, that towards zero the ones before; no branch,
  // so that loops over elements become vector instructions.
  const std::uint32_t towards_x = std::abs(x) > std::abs(back) ? 1u : ~0u;
  return std::bit_cast<float>(bits + (is_cut && (bits & 1u) == 0 ? towards_x : 0u));
}

template <class T>
double widen(T x) {
  return static_cast<double>(static_cast<float>(x));
}
template <>
double widen(double x) {
  return x;
}

template <class T>
T narrow(double x) {
  return T(round_to_odd(x));
}
template <>
float narrow(double x) {
  return static_cast<float>(x);
}
template <>
double narrow(double x) {
  return x;
}
template <>
__nv_fp8_e4m3 narrow(double x) {
  return __nv_fp8_e4m3(x);  // rounds once, and saturates
}

// Calls work(T{}) with the C++ type of `dtype`.
template <class Work>
void with_type(DType dtype, Work work) {
  switch (dtype) {
    case DType::fp32:
    case DType::tf32: return work(float{});
    case DType::fp16: return work(Eigen::half{});
    case DType::bf16: return work(Eigen::bfloat16{});
    case DType::fp64: return work(double{});
    case DType::e4m3: return work(__nv_fp8_e4m3{});
  }
}

}  // namespace

std::vector<double> to_double(const void* data, DType dtype, std::int64_t count) {
  std::vector<double> values(static_cast<std::size_t>(count));
  with_type(dtype, [&]<class T>(T) {
    const auto* bytes = static_cast<const std::byte*>(data);
    in_parts(values.size(), kElementsForAThread, [&](std::size_t begin, std::size_t end) {
      T element;
      for (std::size_t i = begin; i < end; ++i) {
        // memcpy: `data` need not be aligned.
        std::memcpy(static_cast<void*>(&element), bytes + i * sizeof(T), sizeof(T));
        values[i] = widen(element);
      }
    });
  });
  return values;
}

std::vector<std::byte> from_double(std::span<const double> values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * size_bytes(dtype));
  with_type(dtype, [&]<class T>(T) {
    in_parts(values.size(), kElementsForAThread, [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) {
        const T element = narrow<T>(values[i]);
        std::memcpy(bytes.data() + i * sizeof(T), static_cast<const void*>(&element), sizeof(T));
      }
    });
  });
  return bytes;
}

void round_to(std::span<double> values, DType dtype) {
  with_type(dtype, [&]<class T>(T) {
    for (double& value : values) value = widen(narrow<T>(value));
  });
}

std::vector<double> rounded(std::span<const double> values, DType dtype) {
  std::vector<double> copy(values.begin(), values.end());
  in_parts(copy.size(), kElementsForAThread, [&](std::size_t begin, std::size_t end) {
    round_to(std::span(copy).subspan(begin, end - begin), dtype);
  });
  return copy;
}

}  // namespace tile
