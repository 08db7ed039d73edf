// ldmatrix: a warp loads tiles of 8 rows of 16 bytes from shared memory into the registers that
// mma.cuh takes. Compute capability 7.5 and up.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-ldmatrix
//
// Lane i passes the address of row i % 8 of tile i / 8, aligned to 16 bytes. The rows may lie
// anywhere in shared memory. x1 reads the addresses of lanes 0-7 and x2 those of lanes 0-15; on 7.5
// the others must be valid too, so let those lanes pass copies. Register r[j] is the lane's part of
// tile j: two elements of 16 bits of row lane / 4, from column lane % 4 * 2 on, the left one in the
// lower half (element_of_ldmatrix in fragments.hpp).
//
// The forms with _trans transpose each tile on the way: the lane gets the same places of the
// transposed tile, that is column lane / 4 and the rows lane % 4 * 2 and the next
// (element_of_ldmatrix_trans). Only tiles of 16-bit elements can be transposed. Without it the
// instruction moves four bytes a lane, whatever they are: tf32 and 8-bit operands as well.
//
// All 32 lanes must call it together. It reads memory, which the compiler cannot see in its
// operands: so the asm is volatile and has the clobber "memory". Otherwise it could move before the
// barrier that makes the tile complete, or another one with the same address could stand for it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "tile/ptx/shared_address.cuh"

#ifdef CPU_DEVICE

#include "cpu_device/tensor.h"

namespace tile::ptx {
using cpu_device::ldmatrix_x1;
using cpu_device::ldmatrix_x1_trans;
using cpu_device::ldmatrix_x2;
using cpu_device::ldmatrix_x2_trans;
using cpu_device::ldmatrix_x4;
using cpu_device::ldmatrix_x4_trans;
}  // namespace tile::ptx

#else

namespace tile::ptx {

/// One tile.
///     ldmatrix.sync.aligned.m8n8.x1.shared.b16 {r0}, [row];
__device__ __forceinline__ void ldmatrix_x1(std::uint32_t (&r)[1], SharedAddress row) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 750
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
               : "=r"(r[0])
               : "r"(row.value())
               : "memory");
#else
  __trap();
#endif
}

/// Two tiles: r[0] and r[1] are also B's registers for mma_m16n8k16, from two tiles of 8 columns of
/// B each of which lies in shared memory as a row.
///     ldmatrix.sync.aligned.m8n8.x2.shared.b16 {r0, r1}, [row];
__device__ __forceinline__ void ldmatrix_x2(std::uint32_t (&r)[2], SharedAddress row) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 750
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(row.value())
               : "memory");
#else
  __trap();
#endif
}

/// Four tiles: if they are the upper left, lower left, upper right and lower right one of A's 16 by
/// 16 elements, r is A's fragment for mma_m16n8k16.
///     ldmatrix.sync.aligned.m8n8.x4.shared.b16 {r0, r1, r2, r3}, [row];
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&r)[4], SharedAddress row) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 750
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row.value())
               : "memory");
#else
  __trap();
#endif
}

/// One tile, transposed.
///     ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {r0}, [row];
__device__ __forceinline__ void ldmatrix_x1_trans(std::uint32_t (&r)[1], SharedAddress row) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 750
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
               : "=r"(r[0])
               : "r"(row.value())
               : "memory");
#else
  __trap();
#endif
}

/// Two tiles, each transposed: B's fragment for mma_m16n8k16 from 16 rows of 8 elements of a
/// row-major B.
///     ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {r0, r1}, [row];
__device__ __forceinline__ void ldmatrix_x2_trans(std::uint32_t (&r)[2], SharedAddress row) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 750
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(row.value())
               : "memory");
#else
  __trap();
#endif
}

/// Four tiles, each transposed.
///     ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {r0, r1, r2, r3}, [row];
__device__ __forceinline__ void ldmatrix_x4_trans(std::uint32_t (&r)[4], SharedAddress row) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 750
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row.value())
               : "memory");
#else
  __trap();
#endif
}

}  // namespace tile::ptx

#endif
