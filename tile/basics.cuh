// What every kernel and its launcher begin with: element types, vectors of 16 bytes, rows of a
// matrix, and for the host the size of a grid.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "tile/host/cuda_check.hpp"
#include "tile/host/dtype.hpp"
#include "tile/host/grid.hpp"
#include "tile/ptx/address_once.cuh"

namespace tile {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

/// Calls `launch` with a value of the C++ type that `type` names, of which only the type matters:
///
///     return tile::with_element_type(problem.type, [&](auto element) {
///       return launch<decltype(element)>(problem, buffers, stream);
///     });
template <class Launch>
Status with_element_type(DType type, Launch&& launch) {
  switch (type) {
    case DType::fp32: return launch(float{});
    case DType::fp16: return launch(__half{});
    case DType::bf16: return launch(__nv_bfloat16{});
    case DType::fp64:
    case DType::tf32:
    case DType::e4m3: break;
  }
  return unsupported("type", std::string(name(type)) + " has no kernel");
}

/// 16 bytes of elements: the most that one thread can load or store with one instruction on cards
/// before Blackwell (PTX ISA, "ld"). Must be aligned to 16 bytes.
template <class T>
struct alignas(16) Vector {
  static constexpr int kCount = 16 / sizeof(T);
  T element[kCount];
};

/// Rows in global memory, `ld` elements from one to the next.
template <class T>
struct Rows {
  T* data;
  std::int64_t ld;

  __device__ __forceinline__ T* operator[](std::int64_t row) const {
    return ptx::address_once(data + row * ld);
  }
};

}  // namespace tile
