// For tests: tensors of heads' rows with strides, and integers, in guarded device memory.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>
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
                      const std::vector<double>& values, std::int64_t offset = 0) {
    const std::vector<std::size_t> places = places_of(shape, stride);
    std::vector<double> memory(places.empty() ? 0 : places.back() + 1,
                               std::numeric_limits<double>::quiet_NaN());
    for (std::size_t i = 0; i < places.size(); ++i) memory[places[i]] = values[i];
    return Tensor(
        DeviceBuffer::input(name, vector_layout(type, std::ssize(memory), offset), memory), places);
  }
  static Tensor output(const char* name, DType type, const Shape& shape, const Strides& stride,
                       Poison poison, std::int64_t offset = 0) {
    const std::vector<std::size_t> places = places_of(shape, stride);
    const std::int64_t extent = places.empty() ? 0 : static_cast<std::int64_t>(places.back()) + 1;
    return Tensor(DeviceBuffer::output(name, vector_layout(type, extent, offset), poison), places);
  }

  /// A tensor that a kernel reads and writes.
  static Tensor in_out(const char* name, DType type, const Shape& shape, const Strides& stride,
                       const std::vector<double>& values, std::int64_t offset = 0) {
    const std::vector<std::size_t> places = places_of(shape, stride);
    std::vector<double> memory(places.empty() ? 0 : places.back() + 1);
    for (std::size_t i = 0; i < places.size(); ++i) memory[places[i]] = values[i];
    return Tensor(
        DeviceBuffer::in_out(name, vector_layout(type, std::ssize(memory), offset), memory),
        places);
  }

  void* raw() const { return buffer_.raw(); }

  /// The elements in the order of the shape.
  std::vector<double> download() const {
    const std::vector<double> memory = buffer_.download();
    std::vector<double> values;
    for (const std::size_t place : places_) values.push_back(memory[place]);
    return values;
  }

  Status check() const {
    if (Status s = buffer_.check(); !s.ok()) return s;
    std::vector<std::byte> now = buffer_.download_bytes(), then = before_;
    const std::size_t size = size_bytes(buffer_.layout().dtype);
    for (const std::size_t place : places_) {
      std::memset(&now[place * size], 0, size);
      std::memset(&then[place * size], 0, size);
    }
    return now == then ? Status{} : device_error("tensor", "written between its elements");
  }

 private:
  Tensor(DeviceBuffer buffer, std::vector<std::size_t> places)
      : buffer_(std::move(buffer)), places_(std::move(places)), before_(buffer_.download_bytes()) {}

  // Where each element lies. The last of them is that with the greatest index of each extent.
  static std::vector<std::size_t> places_of(const Shape& shape, const Strides& stride) {
    std::vector<std::size_t> places;
    for (std::int64_t b = 0; b < shape.batch; ++b) {
      for (std::int64_t row = 0; row < shape.length; ++row) {
        for (std::int64_t head = 0; head < shape.heads; ++head) {
          for (std::int64_t d = 0; d < shape.dim; ++d) {
            places.push_back(static_cast<std::size_t>(b * stride.batch + row * stride.row +
                                                      head * stride.head + d));
          }
        }
      }
    }
    return places;
  }

  DeviceBuffer buffer_;
  std::vector<std::size_t> places_;
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
