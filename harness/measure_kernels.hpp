// Kernels that the measurements need.
#pragma once

#include <cstddef>

#include "tile/host/dtype.hpp"

namespace tile {

/// Copies `count` 16-byte vectors. Both pointers are aligned to 16 bytes.
void copy_vectors(const void* from, void* to, std::size_t count, void* stream);

/// Reads `count` 16-byte vectors and, because a compiler drops a read without a use, writes a byte
/// to `sink` if their bits happen to be all ones throughout, which `data` must not be.
void read_vectors(const void* data, std::size_t count, void* sink, void* stream);

/// Fills `count` 16-byte vectors with random bits.
void fill_random(void* data, std::size_t count, void* stream);

/// Fills every multiprocessor with independent fused multiply-adds in fp32, for about a
/// millisecond, and, because a compiler drops what has no use, writes a byte to `sink` if a sum is
/// negative, which none is.
void multiply_add(int multiprocessors, void* sink, void* stream);
/// How many multiply-adds that is.
double multiply_add_count(int multiprocessors);

/// Fills the tensor cores of every multiprocessor with independent mma.sync instructions whose
/// factors, random and of magnitudes in [1/2, 1), are fp16, bf16 or tf32, for about a millisecond.
/// Writes a byte to `sink` if a sum is a NaN, which none is.
void tensor_multiply_add(DType type, int multiprocessors, void* sink, void* stream);
/// How many multiply-adds that is.
double tensor_multiply_add_count(DType type, int multiprocessors);

/// Lets one thread run for 100 microseconds and counts: counts[0] gets the cycles of its
/// multiprocessor's clock, counts[1] the nanoseconds. Both are 64-bit integers in device memory.
void count_cycles(void* counts, void* stream);

}  // namespace tile
