// Exercise 02.1: a bank conflict
//
// C = A * transpose(B): B is stored n x k. Its rows are read along k, 32 neighbours at a time, and
// so its tile in shared memory has a row for each column of C.
// The kernel is right, but it waits. Shared memory has 32 banks: the float in slot s lies in bank
// s % 32, and a bank delivers one float at a time. A warp's 32 threads get theirs in one go, a
// "wavefront", if they lie in 32 different banks. If they are 32 floats of one bank, it takes 32.
// Change where an element of the tile lies: both the warp that stores a row of the tile and the one
// that reads a column of it shall need one wavefront. The kernel itself can stay as it is.
// Check it with: ./tour exercise 02.1
#include "exercises/exercises.hpp"
#include "matmul.cuh"
#include "matmul_launch.hpp"

namespace matmul {
namespace {

constexpr int kTile = 32;  // rows and columns of every tile, and of the block's threads

// The tile of B is an array of kSlots floats, and its element (row, col) lies in slot(row, col).
constexpr int kPitch = kTile + 1;  // one float of padding: each row begins a bank further
constexpr int kSlots = kTile * kPitch;
__host__ __device__ constexpr int slot(int row, int col) { return row * kPitch + col; }

__global__ void matmul_times_transposed(Operand<float> a,  // [m][k]
                                        Operand<float> b,  // [k][n], stored [n][k]
                                        Output<float> c,   // [m][n]
                                        std::int64_t m, std::int64_t n, std::int64_t k) {
  __shared__ float a_smem[kTile][kTile];  // [rows of C][part of k]
  __shared__ float b_smem[kSlots];        // [columns of C][part of k], by slot()
  const Corner corner = corner_of_block(n, kTile, kTile);
  const int x = threadIdx.x, y = threadIdx.y;  // a warp has one y and every x
  const std::int64_t row = corner.row + y, col = corner.col + x;

  float sum = 0;
  for (std::int64_t k0 = 0; k0 < k; k0 += kTile) {
    const std::int64_t load_col = corner.col + y;  // neighbouring threads: neighbours along k
    a_smem[y][x] = row < m && k0 + x < k ? a(row, k0 + x) : 0;
    b_smem[slot(y, x)] = k0 + x < k && load_col < n ? b(k0 + x, load_col) : 0;
    __syncthreads();  // both tiles are complete before a thread reads them

    for (int l = 0; l < kTile; ++l) sum += a_smem[y][l] * b_smem[slot(x, l)];
    __syncthreads();  // every thread has read them before one loads the next
  }
  if (row < m && col < n) c.store(row, col, sum);
}

}  // namespace

tile::Status times_transposed(const Problem& problem, const Buffers& buffers) {
  TILE_TRY(validate(problem, buffers));
  if (is_empty(problem)) return {};
  unsigned blocks = 0;
  TILE_TRY(blocks_for_tiles(problem, kTile, kTile, &blocks));
  matmul_times_transposed<<<blocks, dim3(kTile, kTile)>>>(
      op_a<float>(problem, buffers), op_b<float>(problem, buffers),
      output_c<float>(problem, buffers), problem.m, problem.n, terms(problem));
  return tile::launch_status("matmul_times_transposed");
}

// The check asks here where the elements lie.
int tile_slots() { return kSlots; }
int tile_slot(int row, int col) { return slot(row, col); }

}  // namespace matmul
