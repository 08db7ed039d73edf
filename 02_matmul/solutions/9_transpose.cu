// Exercise 02.9: a transpose that costs what a copy costs
//
// out = transpose(in): in has rows x cols elements, out has cols x rows.
// The kernel is a copy so far. A block has 32 x 32 threads and moves as many elements, by way of a
// tile in shared memory. Each request of a warp to global memory costs 4 sectors of 32 bytes, and
// each to the tile one wavefront: 32 neighbours, as they lie.
// Make a transpose of it at the same price. Before you do, say what each line costs if you only
// change where in `out` a thread stores its element.
// The check build counts sectors and wavefronts of each line. Check it with: ./tour exercise 02.9
#include "exercises/exercises.hpp"
#include "tile/host/cuda_check.hpp"

namespace matmul {
namespace {

constexpr int kTile = 32;  // rows and columns of the tile, and of the block's threads

__global__ void transpose_tiles(const float* in,  // [rows][cols]
                                float* out,       // [cols][rows]
                                std::int64_t rows, std::int64_t cols) {
  __shared__ float tile_smem[kTile][kTile + 1];  // each row begins a bank further
  const int x = threadIdx.x, y = threadIdx.y;    // a warp has one y and every x
  const std::int64_t first_row = std::int64_t{blockIdx.y} * kTile;
  const std::int64_t first_col = std::int64_t{blockIdx.x} * kTile;

  const std::int64_t row = first_row + y, col = first_col + x;
  if (row < rows && col < cols) tile_smem[y][x] = in[row * cols + col];

  __syncthreads();  // the tile is complete before a thread reads what another one has loaded
  const std::int64_t out_row = first_col + y, out_col = first_row + x;
  if (out_row < cols && out_col < rows) out[out_row * rows + out_col] = tile_smem[x][y];
}

}  // namespace

tile::Status transpose(const float* in, float* out, std::int64_t rows, std::int64_t cols) {
  const auto tiles = [](std::int64_t n) { return static_cast<unsigned>((n + kTile - 1) / kTile); };
  transpose_tiles<<<dim3(tiles(cols), tiles(rows)), dim3(kTile, kTile)>>>(in, out, rows, cols);
  return tile::launch_status("transpose_tiles");
}

}  // namespace matmul
