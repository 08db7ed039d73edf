// The CPU device's stand-in for CUDA's header of the same name. Of the driver's functions it has
// the one that makes tensor maps, which a program asks for by cudaGetDriverEntryPointByVersion().
#pragma once

#include <cstring>

#include "cpu_device/tensor_map.h"
#include "cuda.h"

using CUtensorMap = cpu_device::TensorMap;
using cuuint32_t = uint32_t;
using cuuint64_t = uint64_t;

enum CUresult { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1 };
/// Types that TMA copies without adding them are bytes here.
enum CUtensorMapDataType {
  CU_TENSOR_MAP_DATA_TYPE_UINT8 = 0,
  CU_TENSOR_MAP_DATA_TYPE_FLOAT16 = 6,
  CU_TENSOR_MAP_DATA_TYPE_FLOAT32 = 7,
  CU_TENSOR_MAP_DATA_TYPE_FLOAT64 = 8,
  CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9
};
enum CUtensorMapInterleave { CU_TENSOR_MAP_INTERLEAVE_NONE };
enum CUtensorMapSwizzle {
  CU_TENSOR_MAP_SWIZZLE_NONE,
  CU_TENSOR_MAP_SWIZZLE_32B,
  CU_TENSOR_MAP_SWIZZLE_64B,
  CU_TENSOR_MAP_SWIZZLE_128B
};
enum CUtensorMapL2promotion {
  CU_TENSOR_MAP_L2_PROMOTION_NONE,
  CU_TENSOR_MAP_L2_PROMOTION_L2_64B,
  CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
  CU_TENSOR_MAP_L2_PROMOTION_L2_256B
};
enum CUtensorMapFloatOOBfill { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE };

using PFN_cuTensorMapEncodeTiled_v12000 = CUresult (*)(
    CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data,
    const cuuint64_t* extents, const cuuint64_t* strides, const cuuint32_t* box,
    const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
    CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill);

namespace cpu_device {

/// cuTensorMapEncodeTiled. Of what a card takes it refuses element strides other than 1.
inline CUresult encode_tensor_map(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                  void* data, const cuuint64_t* extents, const cuuint64_t* strides,
                                  const cuuint32_t* box, const cuuint32_t* steps,
                                  CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                                  CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  constexpr cuuint64_t kUnit = 16;  // bytes: addresses, strides and rows are multiples of it
  if (!map || !data || rank < 1 || rank > 5) return CUDA_ERROR_INVALID_VALUE;
  if (reinterpret_cast<uintptr_t>(data) % kUnit != 0) return CUDA_ERROR_INVALID_VALUE;
  *map = {};
  map->type = TensorType::byte;
  map->element_bytes = 1;
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8: break;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
      map->type = TensorType::fp16, map->element_bytes = 2;
      break;
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
      map->type = TensorType::bf16, map->element_bytes = 2;
      break;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
      map->type = TensorType::fp32, map->element_bytes = 4;
      break;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64:
      map->type = TensorType::fp64, map->element_bytes = 8;
      break;
  }
  map->rank = static_cast<uint8_t>(rank);
  map->swizzle_bytes =
      static_cast<uint8_t>(swizzle == CU_TENSOR_MAP_SWIZZLE_NONE ? 0 : 16 << int{swizzle});
  map->data = static_cast<char*>(data);
  for (cuuint32_t i = 0; i < 5; ++i) {
    const bool exists = i < rank;
    map->extents[i] = exists ? static_cast<int64_t>(extents[i]) : 1;
    map->box[i] = exists ? static_cast<int32_t>(box[i]) : 1;
    map->strides[i] = i == 0   ? map->element_bytes
                      : exists ? static_cast<int64_t>(strides[i - 1])
                               : 0;
    if (!exists) continue;
    if (extents[i] < 1 || extents[i] > cuuint64_t{1} << 32 || box[i] < 1 || box[i] > 256 ||
        (i > 0 && (strides[i - 1] % kUnit != 0 || strides[i - 1] >= cuuint64_t{1} << 40)) ||
        (i > 0 && steps[i] != 1)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  const cuuint64_t row_bytes = cuuint64_t{box[0]} * map->element_bytes;
  if (row_bytes % kUnit != 0) return CUDA_ERROR_INVALID_VALUE;
  if (map->swizzle_bytes != 0 && row_bytes > map->swizzle_bytes) return CUDA_ERROR_INVALID_VALUE;
  map->tag = TensorMap::kTag;
  return CUDA_SUCCESS;
}

}  // namespace cpu_device

enum cudaDriverEntryPointQueryResult {
  cudaDriverEntryPointSuccess = 0,
  cudaDriverEntryPointSymbolNotFound = 1,
};
inline constexpr unsigned long long cudaEnableDefault = 0;

inline cudaError_t cudaGetDriverEntryPointByVersion(
    const char* symbol, void** function, unsigned, unsigned long long,
    cudaDriverEntryPointQueryResult* found = nullptr) {
  const bool is_here = std::strcmp(symbol, "cuTensorMapEncodeTiled") == 0;
  *function = is_here ? reinterpret_cast<void*>(&cpu_device::encode_tensor_map) : nullptr;
  if (found) *found = is_here ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
