// The driver makes the map. Its function is asked for by the runtime, so that no program is linked
// with libcuda, which a machine without a card does not have.
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include "tile/host/cuda_check.hpp"
#include "tile/host/tensor_map.hpp"

namespace tile {
namespace {

// tf32 is stored as fp32, and the kernel rounds it: TMA is to change no bits.
CUtensorMapDataType type_of(DType type) {
  switch (type) {
    case DType::fp32:
    case DType::tf32: return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case DType::fp16: return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DType::bf16: return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::fp64: return CU_TENSOR_MAP_DATA_TYPE_FLOAT64;
    case DType::e4m3: break;
  }
  return CU_TENSOR_MAP_DATA_TYPE_UINT8;
}

CUtensorMapSwizzle swizzle_of(int bytes) {
  switch (bytes) {
    case 32: return CU_TENSOR_MAP_SWIZZLE_32B;
    case 64: return CU_TENSOR_MAP_SWIZZLE_64B;
    case 128: return CU_TENSOR_MAP_SWIZZLE_128B;
    default: return CU_TENSOR_MAP_SWIZZLE_NONE;
  }
}

}  // namespace

Status encode_tensor_map(const char* name, const BoxedTensor& tensor, TensorMap* map) {
  // The driver wants the card's context in this thread. The runtime puts it there with a thread's
  // first call that needs it, which this may be.
  int card = 0;
  TILE_RETURN_IF_CUDA_ERROR(cudaGetDevice(&card));
  TILE_RETURN_IF_CUDA_ERROR(cudaSetDevice(card));
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  TILE_RETURN_IF_CUDA_ERROR(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                             12000, cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess || !function) {
    return unsupported(name, "the driver has no cuTensorMapEncodeTiled");
  }
  const auto rank = static_cast<cuuint32_t>(tensor.rank);
  cuuint64_t extents[kMaxTensorRank], strides[kMaxTensorRank];
  cuuint32_t box[kMaxTensorRank], steps[kMaxTensorRank];
  for (cuuint32_t i = 0; i < rank; ++i) {
    extents[i] = static_cast<cuuint64_t>(tensor.extents[i]);
    box[i] = static_cast<cuuint32_t>(tensor.box[i]);
    steps[i] = 1;
    if (i > 0) {
      strides[i - 1] = static_cast<cuuint64_t>(tensor.strides[i - 1]) * size_bytes(tensor.type);
    }
  }
  // L2 reads lines of 128 bytes at once from memory. Pairs of lines cost a product with rows that
  // begin within a line an eighth of its speed (docs/notes/02_matmul.md, "3000³").
  const auto encode = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
  const CUresult result =
      encode(map, type_of(tensor.type), rank, const_cast<void*>(tensor.data), extents, strides, box,
             steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_of(tensor.swizzle_bytes),
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return {};
  return device_error(name, "cuTensorMapEncodeTiled gives CUDA error " + std::to_string(result));
}

}  // namespace tile
