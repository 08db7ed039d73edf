// Swizzles: where the 16-byte chunks of a tile's rows lie in shared memory, so that a warp finds
// chunks of one column in different banks.
//
// Shared memory has 32 banks of 4 bytes: 128 bytes, 8 chunks, and then the banks begin again (CUDA
// C++ Programming Guide, "Shared Memory"). An access of 16 bytes a lane takes place in phases of 8
// lanes, and a phase in one go if its 8 chunks lie in 8 different groups of 4 banks. ldmatrix reads
// a tile in such a phase: the same column of chunks of 8 rows that follow one another.
//
// All of these permute the chunks within a row: the chunk of column `chunk` of row `row` is stored
// in the place of the column that the function returns. An exclusive or with a number that depends
// on the row alone is such a permutation, and its own inverse. A copy of a row's chunks in order by
// neighbouring lanes stays free of conflicts as well, as it still fills the row.
#pragma once

#include <cuda_runtime_api.h>  // __host__ and __device__

namespace tile {

/// Rows of 128 bytes, or a multiple of it: each begins at bank 0, so that a column of chunks is in
/// one group of banks for all rows. Eight rows need eight groups, so the row's last three bits are
/// added without carry. The same as the 128-byte swizzle of TMA and wgmma (PTX ISA, "Swizzling
/// Modes").
__host__ __device__ constexpr int swizzle_128B(int row, int chunk) { return chunk ^ row % 8; }

/// Rows of 64 bytes: two of them fill the banks, so that rows of one parity collide, four of eight.
/// Rows 2i and 2i + 1 differ by themselves, so i is what must change the chunk: its last two bits,
/// as there are four chunks in a row.
__host__ __device__ constexpr int swizzle_64B(int row, int chunk) { return chunk ^ row / 2 % 4; }

/// Rows of 32 bytes: four of them fill the banks, and rows four apart collide, two of eight. The
/// row's third bit exchanges its two chunks.
__host__ __device__ constexpr int swizzle_32B(int row, int chunk) { return chunk ^ row / 4 % 2; }

}  // namespace tile
