// Step 23: shares of k.
// Idea: a C of few tiles leaves multiprocessors without work, however long its sums are. So several
//       blocks share a tile, and each adds the products of its share of k.
// Change: from step 6: a block's sums go to a workspace, and a second kernel adds up all shares of
//         a tile, always in the same order. Tiles are smaller, 64 x 64 or 64 x 128 with 16 of k, so
//         that there are more of them, and fewer rows and columns lie outside of C. The launcher
//         estimates which tiles and how many shares are fastest. If C has at most 16 rows, most of
//         a tile would lie outside, and few_rows.cu's kernel runs.
// Limit: the multiply-adds; with few rows the memory that B comes from.
#include "matmul_launch.hpp"
#include "tiles.cuh"

namespace matmul {
namespace {

// A tile of C has 64 rows, and 64 or 128 columns. Each of four warps has a quarter of it, and a
// thread 8 x 4 or 8 x 8 elements.
constexpr int kWarpRows = kShareRows / 2, kPartOfK = 16;
static_assert(kThreads == 128 && kWarpsN == 2 && kPartOfK % 2 == 0);
constexpr int kAddThreads = 256;

template <int kCols, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(kThreads, share_blocks(kCols))
    matmul_shares(Operand<float> a,       // [m][k]
                  Operand<float> b,       // [k][n]
                  Output<float, true> c,  // [m][n], or [shares][m][n], one after the other
                  std::int64_t m, std::int64_t n, std::int64_t k, unsigned shares) {
  using ALoader = TileLoader<kAAlongK, kShareRows, kThreads, kPartOfK, int>;
  using BLoader = TileLoader<kBAlongK, kCols, kThreads, kPartOfK, int>;
  using ATile = TileOf<kShareRows, kPartOfK>;
  using Sums = SumsOf<kWarpRows, kCols / 2>;
  static_assert(kThreads / 32 * Sums::kStoreFloats * sizeof(float) <= sizeof(ATile));
  __shared__ alignas(16) ATile a_smem[2];                    // [buffer][part of k][rows of C]
  __shared__ alignas(16) TileOf<kCols, kPartOfK> b_smem[2];  // [buffer][part of k][columns of C]
  // snippet-begin range
  // Neighbouring blocks share a tile. Each share but the last is a whole number of parts of k.
  const unsigned share = blockIdx.x % shares;
  const Corner corner = corner_in_groups<kShareRows, kCols>(blockIdx.x / shares, m, n);
  const std::int64_t parts = (k + kPartOfK - 1) / kPartOfK;
  const std::int64_t begin = parts * share / shares * kPartOfK,
                     end = min(parts * (share + 1) / shares * kPartOfK, k);
  const ThreadPosition at(kWarpRows, kCols / 2);
  ALoader a_loader(a.data + begin * a.col_stride, kAAlongK ? a.row_stride : a.col_stride,
                   corner.row, min(m, corner.row + kShareRows), end - begin);
  BLoader b_loader(b.data + begin * b.row_stride, kBAlongK ? b.col_stride : b.row_stride,
                   corner.col, min(n, corner.col + kCols), end - begin);
  // snippet-end range

  a_loader.fetch();
  b_loader.fetch();
  a_loader.put(a_smem[0]);
  b_loader.put(b_smem[0]);
  __syncthreads();  // the first tiles are complete before a thread reads them

  Sums sums;
  typename Sums::Factors factors[2];  // of this k and of the next
  factors[0].load(a_smem[0], b_smem[0], 0, at);
  int buffer = 0;
  for (std::int64_t left = end - begin; left > 0; left -= kPartOfK) {
    a_loader.fetch();  // after the last tile this gives zeros, without a load
    b_loader.fetch();
#pragma unroll
    for (int l = 0; l < kPartOfK; ++l) {
      if (l == kPartOfK - 1) {  // the next k is in the next tile
        buffer ^= 1;
        a_loader.put(a_smem[buffer]);
        b_loader.put(b_smem[buffer]);
        // The next tile is complete before a thread reads it; and every thread has read all of
        // this one before one of them, in the next iteration, stores over it.
        __syncthreads();
      }
      factors[(l + 1) % 2].load(a_smem[buffer], b_smem[buffer], (l + 1) % kPartOfK, at);
      sums.add_products(factors[l % 2]);
    }
  }
  c.data += share * m * c.ld;  // share is 0 if k is not split
  sums.store(c, corner, at, m, n, a_smem[0][0]);
}

// snippet-begin add
/// C = activation(alpha sum + beta C + bias), the sum over all shares, an element to a thread.
__global__ void __launch_bounds__(kAddThreads)
    matmul_shares_add(const float* parts,     // [shares][m][n], rows `ld` apart
                      Output<float, true> c,  // [m][n]
                      std::int64_t m, std::int64_t n, std::int64_t ld, int shares) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kAddThreads + threadIdx.x;
  for (std::int64_t i = first; i < m * n; i += gridDim.x * std::int64_t{kAddThreads}) {
    const std::int64_t row = i / n, col = i % n;
    const float* part = parts + row * ld + col;
    float sum = 0;
#pragma unroll 8
    for (int share = 0; share < shares; ++share) sum += part[share * m * ld];
    c.store(row, col, sum);
  }
}
// snippet-end add

}  // namespace

tile::Status shares(const Problem& p, const Buffers& buffers, void* stream) {
  int sms = 0;  // multiprocessors
  TILE_TRY(tile::count_multiprocessors(&sms));
  const SharePlan plan = share_plan(p, sms);
  const auto shares = static_cast<unsigned>(plan.shares);
  unsigned tiles = 0;
  TILE_TRY(blocks_for_tiles(p, kShareRows, plan.columns, &tiles));
  const Output<float, true> c = output_c<float, true>(p, buffers);
  auto* const parts = static_cast<float*>(buffers.workspace);
  const std::int64_t ld = ld_of_sums(p);
  const auto launch = [&](auto columns, auto a_along_k, auto b_along_k) {
    return tile::launch(
        matmul_shares<columns.value, a_along_k.value, b_along_k.value>, "matmul_shares",
        tiles * shares, kThreads, 0, stream, op_a<float>(p, buffers), op_b<float>(p, buffers),
        shares == 1 ? c : Output<float, true>{parts, ld, 1, 0}, p.m, p.n, terms(p), shares);
  };
  const auto with_columns = [&](auto... directions) {
    return plan.columns == 64 ? launch(std::integral_constant<int, 64>{}, directions...)
                              : launch(std::integral_constant<int, 128>{}, directions...);
  };
  TILE_TRY(is_few_rows(p) ? multiply_few_rows(p, buffers, shares, stream)
                          : with_directions(p, with_columns));
  if (shares == 1) return {};
  int blocks = 0;
  TILE_TRY(tile::blocks_that_fit(p.m * p.n, kAddThreads, &blocks));
  return tile::launch(matmul_shares_add, "matmul_shares_add", blocks, kAddThreads, 0, stream, parts,
                      c, p.m, p.n, ld, shares);
}

}  // namespace matmul
