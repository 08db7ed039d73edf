// A matrix among the arguments of a step, and its checks before a launch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tile/host/overlap.hpp"
#include "tile/host/status.hpp"

namespace tile {

/// Rows of `cols` elements, `ld` from the first of one to the first of the next.
struct MatrixArgument {
  std::string_view name, ld_name;
  const void* data;
  std::int64_t rows, cols, ld;
  std::int64_t element_bytes;

  bool empty() const { return rows == 0 || cols == 0; }
  /// Of one that is not empty, once check_size() is content.
  Region region() const {
    return {data, cols * element_bytes, {Region::dimension(rows, ld, element_bytes)}};
  }
};

/// The leading dimension must be a row at least, and the matrix end within 64 bits.
inline Status check_size(const MatrixArgument& x) {
  if (x.ld < x.cols) {
    return invalid_argument(
        x.ld_name, std::to_string(x.ld) + " is less than a row of " + std::to_string(x.cols));
  }
  if (x.empty()) return {};
  std::int64_t count = 0;
  if (__builtin_mul_overflow(x.rows - 1, x.ld, &count) ||
      __builtin_add_overflow(count, x.cols, &count) ||
      __builtin_mul_overflow(count, x.element_bytes, &count)) {
    return invalid_argument(x.name, "its " + std::to_string(x.rows) + " rows, " +
                                        std::to_string(x.ld) + " elements apart, overflow 64 bits");
  }
  return {};
}

inline Status check_pointer(const MatrixArgument& x) {
  if (!x.data) return invalid_argument(x.name, "is null");
  if (reinterpret_cast<std::uintptr_t>(x.data) % static_cast<std::uintptr_t>(x.element_bytes)) {
    return invalid_argument(x.name, "is not aligned to an element");
  }
  return {};
}

/// No byte of the output may lie in the input; between its rows it may.
inline Status check_apart(const MatrixArgument& output, const MatrixArgument& input) {
  if (output.empty() || input.empty() || !overlap(output.region(), input.region())) return {};
  return invalid_argument(output.name, std::string("overlaps ").append(input.name));
}

/// The same, but the output may be the input, with the same rows.
inline Status check_apart_or_same(const MatrixArgument& output, const MatrixArgument& input) {
  if (output.data == input.data && output.ld == input.ld) return {};
  return check_apart(output, input);
}

}  // namespace tile
