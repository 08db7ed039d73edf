// Refused: column access, when it is read: 2 threads in bank 0: 2 wavefronts
#include "exercises/exercises.hpp"
#include "matrices.cuh"

namespace matmul {
namespace {

constexpr int kTile = 32;  // rows and columns of every tile, and of the block's threads

// The tile of B is an array of kSlots floats, and its element (row, col) lies in slot(row, col).
constexpr int kPitch = kTile + 2;
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
    __syncthreads();  // the tiles are complete before anybody reads them

    for (int l = 0; l < kTile; ++l) sum += a_smem[y][l] * b_smem[slot(x, l)];
    __syncthreads();  // everybody has read them before anybody loads the next
  }
  if (row < m && col < n) c.store(row, col, sum);
}

}  // namespace

tile::Status times_transposed(const Problem& problem, const Buffers& buffers) {
  unsigned blocks = 0;
  tile::Status status = blocks_for_tiles(problem, buffers, kFp32, kTile, kTile, &blocks);
  if (!status.ok() || blocks == 0) return status;
  const Product<float> p(problem, buffers);
  matmul_times_transposed<<<blocks, dim3(kTile, kTile)>>>(p.a, p.b, p.c, p.m, p.n, p.k);
  return tile::launch_status("matmul_times_transposed");
}

// The check asks here where the elements lie.
int tile_slots() { return kSlots; }
int tile_slot(int row, int col) { return slot(row, col); }

}  // namespace matmul
