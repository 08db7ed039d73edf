#include "tile/host/tensor_map.hpp"

namespace tile {
namespace {

cpu_device::TensorType type_of(DType type) {
  switch (type) {
    case DType::fp32:
    case DType::tf32: return cpu_device::TensorType::fp32;
    case DType::fp16: return cpu_device::TensorType::fp16;
    case DType::bf16: return cpu_device::TensorType::bf16;
    case DType::fp64: return cpu_device::TensorType::fp64;
    case DType::e4m3: return cpu_device::TensorType::byte;
  }
  return {};
}

}  // namespace

Status encode_tensor_map(const char*, const BoxedTensor& tensor, TensorMap* map) {
  const std::size_t bytes = size_bytes(tensor.type);
  *map = {};
  map->tag = TensorMap::kTag;
  map->type = type_of(tensor.type);
  map->rank = static_cast<std::uint8_t>(tensor.rank);
  map->element_bytes = static_cast<std::uint8_t>(bytes);
  map->swizzle_bytes = static_cast<std::uint8_t>(tensor.swizzle_bytes);
  map->data = static_cast<char*>(const_cast<void*>(tensor.data));
  for (int i = 0; i < kMaxTensorRank; ++i) {
    const bool exists = i < tensor.rank;
    map->extents[i] = exists ? tensor.extents[i] : 1;
    map->box[i] = exists ? tensor.box[i] : 1;
    const std::int64_t stride = i == 0 ? 1 : exists ? tensor.strides[i - 1] : 0;
    map->strides[i] = stride * static_cast<std::int64_t>(bytes);
  }
  return {};
}

}  // namespace tile
