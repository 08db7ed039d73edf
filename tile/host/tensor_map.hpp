// The tensor map: what TMA knows of a tensor in global memory, and of the boxes in which it is
// copied; made on the host, passed to a kernel as `const __grid_constant__ TensorMap`, and named by
// the copies of tile/ptx/tma.cuh.
// CUDA Driver API, "Tensor Map Object Management":
// https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TENSOR__MEMORY.html
#pragma once

#include <cstdint>

#include "tile/host/dtype.hpp"
#include "tile/host/status.hpp"

#ifdef CPU_DEVICE
#include "cpu_device/tensor_map.h"
#else
#include <cuda.h>
#endif

namespace tile {

#ifdef CPU_DEVICE
using TensorMap = cpu_device::TensorMap;
#else
using TensorMap = CUtensorMap;
#endif

inline constexpr int kMaxTensorRank = 5;

/// A tensor of up to five axes, the one whose elements are neighbours first.
struct BoxedTensor {
  DType type;
  const void* data;                          ///< a multiple of 16 bytes
  int rank;                                  ///< 1 to 5
  std::int64_t extents[kMaxTensorRank];      ///< elements along each axis, 1 to 2^32
  std::int64_t strides[kMaxTensorRank - 1];  ///< elements from one to the next along axes 1, 2, …:
                                             ///< multiples of 16 bytes below 2^40 bytes, not 0
  int box[kMaxTensorRank];  ///< of what one copy moves: 1 to 256
  /// Within how many bytes the swizzle permutes the 16-byte chunks of shared memory: 0, 32, 64 or
  /// 128. The box's first axis has at most so many bytes (with 0: any), and a multiple of 16.
  /// swizzle_128B of tile/ptx/swizzle.hpp says where a chunk goes; the tile begins at a multiple of
  /// 1,024 bytes.
  int swizzle_bytes;
};

/// Elements outside of the tensor are read as zeros, and not written: see tile/ptx/tma.cuh. Fails
/// with a message about `name` if TMA cannot do it: unsupported() if an address or a stride breaks
/// the rule of 16 bytes or the card has no TMA, invalid_argument() for values that no tensor has.
Status make_tensor_map(const char* name, const BoxedTensor& tensor, TensorMap* map);

/// Whether that would succeed; without data, with memory that is aligned.
Status check_tensor_map(const char* name, const BoxedTensor& tensor);

/// Makes the map without checks (tensor_map_cpu.cpp, tensor_map_gpu.cpp).
Status encode_tensor_map(const char* name, const BoxedTensor& tensor, TensorMap* map);

}  // namespace tile
