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

}  // namespace matmul
