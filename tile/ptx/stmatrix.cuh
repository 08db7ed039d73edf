// stmatrix: a warp stores tiles of 8 rows of 16 bytes from registers to shared memory, ldmatrix
// backwards. Compute capability 9.0 and up.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-stmatrix
//
// Lane i passes the address of row i % 8 of tile i / 8, aligned to 16 bytes; x1 uses the addresses
// of lanes 0-7 and x2 those of lanes 0-15. Register r[j] is the lane's part of tile j: two elements
// of 16 bits of row lane / 4, from column lane % 4 * 2 on, the left one in the lower half
// (element_of_ldmatrix in fragments.hpp). Two registers that hold packed sums of mma, d[0] with
// d[1] and d[2] with d[3], are such tiles. The forms with _trans transpose each tile on the way
// (element_of_ldmatrix_trans).
//
// All 32 lanes must call it together. It writes memory, so the asm is volatile and has the clobber
// "memory": no load, store or barrier of the source may change places with it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "tile/ptx/shared_address.cuh"

#ifdef CPU_DEVICE

#include "cpu_device/tensor.h"

namespace tile::ptx {
using cpu_device::stmatrix_x1;
using cpu_device::stmatrix_x1_trans;
using cpu_device::stmatrix_x2;
using cpu_device::stmatrix_x2_trans;
using cpu_device::stmatrix_x4;
using cpu_device::stmatrix_x4_trans;
}  // namespace tile::ptx

#else

namespace tile::ptx {

/// One tile.
///     stmatrix.sync.aligned.m8n8.x1.shared.b16 [row], {r0};
__device__ __forceinline__ void stmatrix_x1(SharedAddress row, const std::uint32_t (&r)[1]) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};"
               :
               : "r"(row.value()), "r"(r[0])
               : "memory");
#else
  __trap();
#endif
}

/// Two tiles.
///     stmatrix.sync.aligned.m8n8.x2.shared.b16 [row], {r0, r1};
__device__ __forceinline__ void stmatrix_x2(SharedAddress row, const std::uint32_t (&r)[2]) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};"
               :
               : "r"(row.value()), "r"(r[0]), "r"(r[1])
               : "memory");
#else
  __trap();
#endif
}

/// Four tiles.
///     stmatrix.sync.aligned.m8n8.x4.shared.b16 [row], {r0, r1, r2, r3};
__device__ __forceinline__ void stmatrix_x4(SharedAddress row, const std::uint32_t (&r)[4]) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               :
               : "r"(row.value()), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
#else
  __trap();
#endif
}

/// One tile, transposed.
///     stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [row], {r0};
__device__ __forceinline__ void stmatrix_x1_trans(SharedAddress row, const std::uint32_t (&r)[1]) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};"
               :
               : "r"(row.value()), "r"(r[0])
               : "memory");
#else
  __trap();
#endif
}

/// Two tiles, each transposed.
///     stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [row], {r0, r1};
__device__ __forceinline__ void stmatrix_x2_trans(SharedAddress row, const std::uint32_t (&r)[2]) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};"
               :
               : "r"(row.value()), "r"(r[0]), "r"(r[1])
               : "memory");
#else
  __trap();
#endif
}

/// Four tiles, each transposed.
///     stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [row], {r0, r1, r2, r3};
__device__ __forceinline__ void stmatrix_x4_trans(SharedAddress row, const std::uint32_t (&r)[4]) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
               :
               : "r"(row.value()), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
#else
  __trap();
#endif
}

}  // namespace tile::ptx

#endif
