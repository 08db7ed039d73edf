// Kernels that run one instruction of tile/ptx on what the host gives, for the tests beside them.
#pragma once

#include <cstdint>

#include "tile/host/status.hpp"

namespace ptx_test {

/// mma_… of tile/ptx/mma.cuh.
enum class Mma {
  k16_fp16,
  k16_bf16,
  k16_in_fp16,
  k16_of_halves,
  k8_fp16,
  k8_tf32,
  k32_e4m3,
  k32_e5m2
};

/// D = A B + D for each of `count` products, one a warp. Registers lie as
/// [product][lane][register].
tile::Status multiply(Mma mma, int count, const std::uint32_t* a, const std::uint32_t* b,
                      std::uint32_t* d);

/// Bytes of shared memory that the kernels below have.
inline constexpr int kSharedBytes = 2048;

/// Which of ldmatrix_… or stmatrix_…: 1, 2 or 4 tiles.
struct Move {
  int tiles;
  bool transposed;
};

/// One warp: shared memory becomes `memory`, and lane i passes the address of its byte rows[i].
/// Registers lie as [lane][register].
tile::Status load(Move move, const std::uint32_t* memory, const int* rows,
                  std::uint32_t* registers);
/// The other way: shared memory, `memory` at first, is there again when the warp has stored.
tile::Status store(Move move, std::uint32_t* memory, const int* rows,
                   const std::uint32_t* registers);

/// c (16 x 8 floats) = a (16 x 16 halves) b (16 x 8 halves), all row-major, by ldmatrix and
/// mma, with a swizzled in shared memory.
tile::Status multiply_matrices(const std::uint32_t* a, const std::uint32_t* b, float* c);

/// pack<…> and to_tf32 of tile/ptx/convert.cuh.
enum class Conversion { fp16, bf16, e4m3, e5m2, tf32 };

/// words[i] is made of values[2i] and values[2i + 1]; for tf32 words[i] of values[i].
tile::Status convert(Conversion conversion, int words, const float* values, std::uint32_t* out);

}  // namespace ptx_test
