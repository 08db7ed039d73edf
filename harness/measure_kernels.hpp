// Kernels that the measurements need.
#pragma once

#include <cstddef>

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

/// Lets one thread run for 100 microseconds and counts: counts[0] gets the cycles of its
/// multiprocessor's clock, counts[1] the nanoseconds. Both are 64-bit integers in device memory.
void count_cycles(void* counts, void* stream);

}  // namespace tile
