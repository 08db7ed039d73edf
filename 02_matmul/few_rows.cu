// The product in fp32 if C has few rows: it takes as long as B takes to come from memory.
#include "matmul_launch.hpp"
#include "tiles.cuh"

namespace matmul {
namespace {

constexpr int kFewWarps = 4, kFewK = 32;  // of k for a warp at a time
static_assert(kFewColumns == 32 * kVector, "a warp has a row of the tile");

/// For at most 16 rows. A block has 128 columns and a share of k, and each warp a part of this
/// share. A lane has four columns of all rows, so it uses each element of B 16 times.
__global__ void __launch_bounds__(kFewWarps * 32)
    matmul_shares_few_rows(Operand<float> a,       // [m][k]
                           Operand<float> b,       // [k][n], along n
                           Output<float, true> c,  // [m][n], or [shares][m][n], one after the other
                           std::int64_t m, std::int64_t n, std::int64_t k, unsigned shares) {
  // [warp][part of k][rows of C]. With 4 floats of padding 32 lanes store to eight banks, not two.
  __shared__ alignas(16) float a_smem[kFewWarps][kFewK][kFewRows + kVector];
  __shared__ alignas(16) float sums_smem[kFewWarps][kFewRows][kFewColumns];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const unsigned share = blockIdx.x % shares;
  const std::int64_t first_col = static_cast<std::int64_t>(blockIdx.x / shares) * kFewColumns,
                     col = first_col + lane * kVector;
  const std::int64_t tiles = (k + kFewK - 1) / kFewK, parts = std::int64_t{shares} * kFewWarps,
                     part = std::int64_t{share} * kFewWarps + warp;
  const std::int64_t begin = tiles * part / parts * kFewK,
                     end = min(tiles * (part + 1) / parts * kFewK, k);
  const bool vectors = is_aligned(b.data, b.row_stride) && col + kVector <= n;

  float sum[kFewRows][kVector] = {};
  const auto add_products = [&](int l, float4 of_b) {
#pragma unroll
    for (int row = 0; row < kFewRows; row += kVector) {
      const float4 of_a = load_vector(&a_smem[warp][l][row]);
      const float rows[] = {of_a.x, of_a.y, of_a.z, of_a.w};
#pragma unroll
      for (int r = 0; r < kVector; ++r) {
        sum[row + r][0] += rows[r] * of_b.x, sum[row + r][1] += rows[r] * of_b.y;
        sum[row + r][2] += rows[r] * of_b.z, sum[row + r][3] += rows[r] * of_b.w;
      }
    }
  };
  // snippet-begin parts
  for (std::int64_t k0 = begin; k0 < end; k0 += kFewK) {
    __syncwarp();  // all lanes have read the last part of A
#pragma unroll
    for (int row = 0; row < kFewRows; ++row) {
      a_smem[warp][lane][row] = row < m && k0 + lane < end ? a(row, k0 + lane) : 0;
    }
    __syncwarp();  // all lanes have stored this part
    if (vectors && k0 + kFewK <= end) {
      const float* from = b.data + k0 * b.row_stride + col;
#pragma unroll 8
      for (int l = 0; l < kFewK; ++l) add_products(l, load_vector(from + l * b.row_stride));
    } else {
      for (int l = 0; l < kFewK && k0 + l < end; ++l) {
        const auto element = [&](int e) { return col + e < n ? b(k0 + l, col + e) : 0.f; };
        add_products(l, {element(0), element(1), element(2), element(3)});
      }
    }
  }
  // snippet-end parts
#pragma unroll
  for (int row = 0; row < kFewRows; ++row) {
    store_vector(&sums_smem[warp][row][lane * kVector],
                 {sum[row][0], sum[row][1], sum[row][2], sum[row][3]});
  }
  __syncthreads();  // all warps' sums are there
  c.data += share * m * c.ld;
  const int x = static_cast<int>(threadIdx.x);  // this thread's column
  for (int row = 0; row < m && first_col + x < n; ++row) {
    float all = 0;
    for (int w = 0; w < kFewWarps; ++w) all += sums_smem[w][row][x];
    c.store(row, first_col + x, all);
  }
}

}  // namespace

tile::Status multiply_few_rows(const Problem& p, const Buffers& buffers, unsigned shares,
                               void* stream) {
  unsigned tiles = 0;
  TILE_TRY(blocks_for_tiles(p, kFewRows, kFewColumns, &tiles));
  const Output<float, true> sums{static_cast<float*>(buffers.workspace), ld_of_sums(p), 1, 0};
  return tile::launch(matmul_shares_few_rows, "matmul_shares_few_rows", tiles * shares,
                      kFewWarps * 32, 0, stream, op_a<float>(p, buffers), op_b<float>(p, buffers),
                      shares == 1 ? output_c<float, true>(p, buffers) : sums, p.m, p.n, terms(p),
                      shares);
}

}  // namespace matmul
