// Exercise 01.2: adding matrices
//
// c = a + b. A Matrix (exercises.hpp, beside this file) is a pointer, data, and a length, ld: row r
// of a begins at a.data + r * a.ld. ld, the "leading dimension", may be larger than the number of
// columns: then there is padding between the rows, which the kernel must leave alone. Each of the
// three matrices has an ld of its own.
// Blocks have two dimensions here: 32 threads along a row (x), 8 rows (y). Write the kernel's body.
// Which of x and y should walk along a row, so that neighbouring threads read neighbouring
// elements? Check it with: ./tour exercise 01.2
#include "exercises/exercises.hpp"
#include "tile/basics.cuh"

namespace vector_add {
namespace {

constexpr int kColumnsPerBlock = 32;
constexpr int kRowsPerBlock = 8;

__global__ void add_matrices_kernel(Matrix a,  // [rows][cols]
                                    Matrix b,  // [rows][cols]
                                    Matrix c,  // [rows][cols]
                                    std::int64_t rows, std::int64_t cols) {
  // TODO: Which row and which column are this thread's? Do both exist?
}

}  // namespace

tile::Status add_matrices(Matrix a, Matrix b, Matrix c, std::int64_t rows, std::int64_t cols) {
  if (rows == 0 || cols == 0) return {};
  dim3 blocks;
  TILE_TRY(tile::blocks_for("cols", cols, kColumnsPerBlock, &blocks.x));
  TILE_TRY(tile::blocks_for("rows", rows, kRowsPerBlock, &blocks.y));
  if (blocks.y > 65535) return tile::unsupported("rows", "more than a grid has along y");
  add_matrices_kernel<<<blocks, dim3(kColumnsPerBlock, kRowsPerBlock)>>>(a, b, c, rows, cols);
  return tile::launch_status("add_matrices_kernel");
}

}  // namespace vector_add
