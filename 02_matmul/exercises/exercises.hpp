// What the exercises of chapter 02 are to define. All matrices are those of matmul.hpp.
#pragma once

#include "matmul.hpp"

namespace matmul {

/// 02.1: C = A * transpose(B); the problem says that B is stored transposed.
tile::Status times_transposed(const Problem& problem, const Buffers& buffers);

/// How many floats the tile of B takes in shared memory, and in which of them the element (row,
/// col) lies, 0 <= row, col < 32.
int tile_slots();
int tile_slot(int row, int col);

/// 02.2: C = A * B.
tile::Status rectangular_tiles(const Problem& problem, const Buffers& buffers);

/// 02.3: D = max(0, A * B + bias), where `bias` has an element for each column. D lies at
/// buffers.c.
tile::Status bias_relu(const Problem& problem, const Buffers& buffers, const float* bias);

// The exercises on tensor cores are in fp16, and neither matrix is transposed.

/// 02.4: C = A * B.
tile::Status swizzled_tiles(const Problem& problem, const Buffers& buffers);

/// Where chunk `chunk` of row `row` lies in a tile whose rows have `row_chunks` chunks.
int chunk_place(int row_chunks, int row, int chunk);

/// 02.5: C = A * B with a ring of `slots` slots, 2 to 4. The first thread of the first block writes
/// down what it does in `log`, which has room for kMostLogged and holds zeros.
enum class RingStep : int { none, copy, commit, wait, barrier, multiply };
struct Logged {
  RingStep step;
  int number;  // the slot, or of wait the groups that may stay under way
};
inline constexpr int kMostLogged = 500;
tile::Status stages(const Problem& problem, const Buffers& buffers, int slots, Logged* log);

/// 02.6: C = A * B, added in fp32, and added in fp16.
tile::Status sums_in_fp32(const Problem& problem, const Buffers& buffers);
tile::Status sums_in_fp16(const Problem& problem, const Buffers& buffers);

// Those on Hopper's instructions are in fp16 too. Neither matrix is transposed, and the rows of A
// and B begin at multiples of 16 bytes.

/// 02.7: C = A * B with a ring of 3 stages of 64 x 64 elements of A and of B, for 64 x 64 of C.
tile::Status ring_of_mbarriers(const Problem& problem, const Buffers& buffers);

/// 02.8: C = A * B by clusters of two blocks side by side, each with 128 x 64 of C.
tile::Status multicast(const Problem& problem, const Buffers& buffers);

/// 02.9: out = transpose(in). `in` is rows x cols, `out` cols x rows, both without gaps, and
/// neither is empty.
tile::Status transpose(const float* in, float* out, std::int64_t rows, std::int64_t cols);
/// 02.10: a product of so many tiles, each of so many turns of the main loop, on a card of so many
/// multiprocessors.
struct Waves {
  std::int64_t tiles, turns, multiprocessors;
};
inline constexpr std::int64_t kMostShares = 64;
/// The turns until C is there, if `shares` blocks share a tile; and the fastest number of them.
std::int64_t turns_until_done(const Waves& waves, std::int64_t shares);
std::int64_t best_shares(const Waves& waves);

}  // namespace matmul
