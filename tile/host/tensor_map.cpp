#include "tile/host/tensor_map.hpp"

#include <string>

#include "tile/host/device.hpp"
#include "tile/host/text.hpp"

namespace tile {
namespace {

constexpr std::int64_t kUnit = 16;  // bytes; addresses and strides are multiples of it

std::string axis(const char* what, int i, std::int64_t value) {
  return std::string(what) + " " + std::to_string(i) + ", " + grouped(value) + ",";
}

}  // namespace

Status check_tensor_map(const char* name, const BoxedTensor& t) {
  const auto element_bytes = static_cast<std::int64_t>(size_bytes(t.type));
  if (t.rank < 1 || t.rank > kMaxTensorRank) {
    return invalid_argument(name, "rank " + std::to_string(t.rank) + " is not 1 to 5");
  }
  for (int i = 0; i < t.rank; ++i) {
    if (t.extents[i] < 1 || t.extents[i] > std::int64_t{1} << 32) {
      return invalid_argument(name, axis("extent", i, t.extents[i]) + " is not 1 to 2^32");
    }
    if (t.box[i] < 1 || t.box[i] > 256) {
      return invalid_argument(name, axis("box extent", i, t.box[i]) + " is not 1 to 256");
    }
    if (i > 0 &&
        (t.strides[i - 1] < 0 || t.strides[i - 1] >= (std::int64_t{1} << 40) / element_bytes)) {
      return invalid_argument(name,
                              axis("stride", i, t.strides[i - 1]) + " is not 0 to 2^40 bytes");
    }
  }
  const std::int64_t row_bytes = t.box[0] * element_bytes;
  if (row_bytes % kUnit != 0) {
    return invalid_argument(
        name, "a row of the box, " + counted(row_bytes, "byte") + ", is no multiple of 16 bytes");
  }
  if (t.swizzle_bytes != 0 && t.swizzle_bytes != 32 && t.swizzle_bytes != 64 &&
      t.swizzle_bytes != 128) {
    return invalid_argument(
        name, "a swizzle of " + counted(t.swizzle_bytes, "byte") + " is not one of 0, 32, 64, 128");
  }
  if (t.swizzle_bytes != 0 && row_bytes > t.swizzle_bytes) {
    return invalid_argument(name, "a row of the box, " + counted(row_bytes, "byte") +
                                      ", is longer than the swizzle, " +
                                      counted(t.swizzle_bytes, "byte"));
  }

  if (device().capability < 90) return unsupported(name, "TMA needs compute capability 9.0");
  if (reinterpret_cast<std::uintptr_t>(t.data) % kUnit != 0) {
    return unsupported(name, "its address is no multiple of 16 bytes, which TMA needs");
  }
  for (int i = 1; i < t.rank; ++i) {
    if (t.strides[i - 1] == 0) {
      return unsupported(name, axis("stride", i, 0) + " was never asked of TMA");
    }
    if (t.strides[i - 1] * element_bytes % kUnit != 0) {
      return unsupported(name, axis("stride", i, t.strides[i - 1]) +
                                   " is no multiple of 16 bytes, which TMA needs");
    }
  }
  return {};
}

Status make_tensor_map(const char* name, const BoxedTensor& tensor, TensorMap* map) {
  if (!tensor.data) return invalid_argument(name, "is null");
  if (const Status status = check_tensor_map(name, tensor); !status.ok()) return status;
  return encode_tensor_map(name, tensor, map);
}

}  // namespace tile
