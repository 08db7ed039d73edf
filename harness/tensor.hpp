// For tests: tensors of heads' rows with strides, and integers, in guarded device memory.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "harness/buffer.hpp"
#include "tile/host/strides.hpp"

namespace tile {

/// [batch][length][heads][dim] with strides. The memory between its elements must not be touched:
/// it is NaN in an input, poison in an output.
class Tensor {
 public:
  struct Shape {
    std::int64_t batch, length, heads, dim;
    std::int64_t count() const { return batch * length * heads * dim; }
  };

  static Tensor input(const char* name, DType type, const Shape& shape, const Strides& stride,
                      const std::vector<double>& values, std::int64_t offset = 0);
  static Tensor output(const char* name, DType type, const Shape& shape, const Strides& stride,
                       Poison poison, std::int64_t offset = 0);
  /// A tensor that a kernel reads and writes.
  static Tensor in_out(const char* name, DType type, const Shape& shape, const Strides& stride,
                       const std::vector<double>& values, std::int64_t offset = 0);

  void* raw() const { return buffer_.raw(); }

  /// The elements in the order of the shape.
  std::vector<double> download() const;

  /// Whether nothing is written around it and between its elements.
  Status check() const;

 private:
  Tensor(DeviceBuffer buffer, std::vector<std::size_t> places);

  DeviceBuffer buffer_;
  std::vector<std::size_t> places_;  // of the elements, in the order of the shape
  std::vector<std::byte> before_;
};

/// Strides of [batch][heads][length][dim], with `gap` elements after each row.
inline Strides heads_first(std::int64_t length, std::int64_t heads, std::int64_t dim,
                           std::int64_t gap = 0) {
  return {heads * length * (dim + gap), length * (dim + gap), dim + gap};
}

/// int32 in device memory. The harness has no buffers of integers: these are floats of the same
/// bits.
inline std::optional<DeviceBuffer> lengths_buffer(const char* name, const std::vector<int>& n) {
  if (n.empty()) return std::nullopt;
  std::vector<double> floats;
  for (const int each : n) floats.push_back(std::bit_cast<float>(each));
  return DeviceBuffer::input(name, vector_layout(DType::fp32, std::ssize(n)), floats);
}

/// Makes the rows of [batch][length][row] NaN that lie beyond each batch entry's own length: they
/// must not be read. No lengths: all rows are there.
inline void erase_beyond(const std::vector<int>& lengths, std::int64_t length,
                         std::vector<double>* rows) {
  const std::int64_t row =
      std::ssize(*rows) / std::max<std::int64_t>(1, std::ssize(lengths) * length);
  for (std::size_t entry = 0; entry < lengths.size(); ++entry) {
    const auto end = rows->begin() + static_cast<std::int64_t>(entry + 1) * length * row;
    std::fill(end - (length - lengths[entry]) * row, end, std::numeric_limits<double>::quiet_NaN());
  }
}

}  // namespace tile
