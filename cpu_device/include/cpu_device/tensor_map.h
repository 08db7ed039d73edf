// What the copies of boxes know of a tensor (PTX ISA, "Tensors"), for tile/host/tensor_map.hpp.
#pragma once

#include <cstdint>

namespace cpu_device {

enum class TensorType : uint8_t { fp32, fp16, bf16, fp64, byte };

/// In axis 0 elements are neighbours. Of an axis that the tensor does not have, the extents are 1.
struct TensorMap {
  static constexpr uint32_t kTag = 0x7e4502a9;
  uint32_t tag;  // kTag, if make_tensor_map() has made it
  TensorType type;
  uint8_t rank;
  uint8_t element_bytes;
  uint8_t swizzle_bytes;  // 0, 32, 64 or 128
  char* data;
  int64_t extents[5];
  int64_t strides[5];  // bytes from one to the next
  int32_t box[5];
};

}  // namespace cpu_device
