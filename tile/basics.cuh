// What every kernel begins with: element types, vectors of 16 bytes and rows of a matrix; and for
// its launcher the choice of an element type and the size of a grid.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "tile/host/cuda_check.hpp"
#include "tile/host/element_type.hpp"
#include "tile/host/grid.hpp"
#include "tile/ptx/address_once.cuh"

namespace tile {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

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
