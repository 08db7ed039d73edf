// Apart from tests, which are not optimised: these loops take most of the time of a test on a GPU.
#include "harness/tensor.hpp"

#include <cstring>
#include <utility>

namespace tile {
namespace {

using Places = std::vector<std::size_t>;

// Where each element lies. The last of them is that with the greatest index of each extent.
Places places_of(const Tensor::Shape& shape, const Strides& stride) {
  Places places;
  places.reserve(static_cast<std::size_t>(shape.count()));
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

// The memory of a tensor with these values, and `gap` between them.
std::vector<double> spread(const Places& places, const std::vector<double>& values, double gap) {
  std::vector<double> memory(places.empty() ? 0 : places.back() + 1, gap);
  for (std::size_t i = 0; i < places.size(); ++i) memory[places[i]] = values[i];
  return memory;
}

}  // namespace

Tensor::Tensor(DeviceBuffer buffer, Places places)
    : buffer_(std::move(buffer)), places_(std::move(places)), before_(buffer_.download_bytes()) {}

Tensor Tensor::input(const char* name, DType type, const Shape& shape, const Strides& stride,
                     const std::vector<double>& values, std::int64_t offset) {
  Places places = places_of(shape, stride);
  const auto memory = spread(places, values, std::numeric_limits<double>::quiet_NaN());
  return Tensor(DeviceBuffer::input(name, vector_layout(type, std::ssize(memory), offset), memory),
                std::move(places));
}

Tensor Tensor::output(const char* name, DType type, const Shape& shape, const Strides& stride,
                      Poison poison, std::int64_t offset) {
  Places places = places_of(shape, stride);
  const std::int64_t extent = places.empty() ? 0 : static_cast<std::int64_t>(places.back()) + 1;
  return Tensor(DeviceBuffer::output(name, vector_layout(type, extent, offset), poison),
                std::move(places));
}

Tensor Tensor::in_out(const char* name, DType type, const Shape& shape, const Strides& stride,
                      const std::vector<double>& values, std::int64_t offset) {
  Places places = places_of(shape, stride);
  const auto memory = spread(places, values, 0);
  return Tensor(DeviceBuffer::in_out(name, vector_layout(type, std::ssize(memory), offset), memory),
                std::move(places));
}

std::vector<double> Tensor::download() const {
  const std::vector<double> memory = buffer_.download();
  std::vector<double> values;
  values.reserve(places_.size());
  for (const std::size_t place : places_) values.push_back(memory[place]);
  return values;
}

Status Tensor::check() const {
  TILE_TRY(buffer_.check());
  std::vector<std::byte> now = buffer_.download_bytes(), then = before_;
  const std::size_t size = size_bytes(buffer_.layout().dtype);
  for (const std::size_t place : places_) {
    std::memset(&now[place * size], 0, size);
    std::memset(&then[place * size], 0, size);
  }
  const bool is_kept = now.empty() || std::memcmp(now.data(), then.data(), now.size()) == 0;
  return is_kept ? Status{} : device_error("tensor", "written between its elements");
}

}  // namespace tile
