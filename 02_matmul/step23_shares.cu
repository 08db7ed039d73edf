// Step 23: shares of k.
// Idea: a C of few tiles leaves multiprocessors without work, however long its sums are. So several
//       blocks share a tile, and each adds the products of its share of k.
// Change: from step 6: a block's sums go to a workspace, and a second kernel adds up all shares of
//         a tile, always in the same order. The launcher estimates how many shares are fastest. If
//         C has at most 16 rows, most of a tile would lie outside, and few_rows.cu's kernel runs.
// Limit: the multiply-adds; with few rows the memory that B comes from.
#include "tile/host/launch.hpp"
#include "tiles.cuh"

namespace matmul {
namespace {

static_assert(kTileM == 128 && kTileN == 128, "as cycles() in arguments.cpp reckons");
constexpr int kAddThreads = 256;

template <bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(kThreads, 2)
    matmul_shares(Operand<float> a,       // [m][k]
                  Operand<float> b,       // [k][n]
                  Output<float, true> c,  // [m][n], or [shares][m][n], one after the other
                  std::int64_t m, std::int64_t n, std::int64_t k, unsigned shares) {
  __shared__ alignas(16) Tile a_smem[2];  // [buffer][part of k][rows of C]
  __shared__ alignas(16) Tile b_smem[2];  // [buffer][part of k][columns of C]
  // snippet-begin range
  // Neighbouring blocks share a tile. Each share but the last is a whole number of tiles of k.
  const unsigned share = blockIdx.x % shares;
  const Corner corner = corner_in_groups<kTileM, kTileN>(blockIdx.x / shares, m, n);
  const std::int64_t tiles = (k + kTileK - 1) / kTileK;
  const std::int64_t begin = tiles * share / shares * kTileK,
                     end = min(tiles * (share + 1) / shares * kTileK, k);
  const ThreadPosition at;
  TileLoader<kAAlongK> a_loader(a.data + begin * a.col_stride,
                                kAAlongK ? a.row_stride : a.col_stride, corner.row, m, end - begin);
  TileLoader<kBAlongK> b_loader(b.data + begin * b.row_stride,
                                kBAlongK ? b.col_stride : b.row_stride, corner.col, n, end - begin);
  // snippet-end range

  a_loader.fetch();
  b_loader.fetch();
  a_loader.put(a_smem[0]);
  b_loader.put(b_smem[0]);
  __syncthreads();  // the first tiles are complete before a thread reads them

  Sums sums;
  Factors factors[2];  // of this k and of the next
  factors[0].load(a_smem[0], b_smem[0], 0, at);
  int buffer = 0;
  for (std::int64_t k0 = begin; k0 < end; k0 += kTileK) {
    a_loader.fetch();  // after the last tile this gives zeros, without a load
    b_loader.fetch();
#pragma unroll
    for (int l = 0; l < kTileK; ++l) {
      if (l == kTileK - 1) {  // the next k is in the next tile
        buffer ^= 1;
        a_loader.put(a_smem[buffer]);
        b_loader.put(b_smem[buffer]);
        // The next tile is complete before a thread reads it; and every thread has read all of
        // this one before one of them, in the next iteration, stores over it.
        __syncthreads();
      }
      factors[(l + 1) % 2].load(a_smem[buffer], b_smem[buffer], (l + 1) % kTileK, at);
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
  unsigned tiles = 0;
  TILE_TRY(blocks_for_tiles(p, kTileM, kTileN, &tiles));
  const auto shares = static_cast<unsigned>(k_shares(p, sms));
  const Output<float, true> c = output_c<float, true>(p, buffers);
  auto* const parts = static_cast<float*>(buffers.workspace);
  const std::int64_t ld = ld_of_sums(p);
  const auto launch = [&](auto a_along_k, auto b_along_k) {
    return tile::launch(
        matmul_shares<a_along_k.value, b_along_k.value>, "matmul_shares", tiles * shares, kThreads,
        0, stream, op_a<float>(p, buffers), op_b<float>(p, buffers),
        shares == 1 ? c : Output<float, true>{parts, ld, 1, 0}, p.m, p.n, terms(p), shares);
  };
  TILE_TRY(is_few_rows(p) ? multiply_few_rows(p, buffers, shares, stream)
                          : with_directions(p, launch));
  if (shares == 1) return {};
  int blocks = 0;
  TILE_TRY(tile::blocks_that_fit(p.m * p.n, kAddThreads, &blocks));
  return tile::launch(matmul_shares_add, "matmul_shares_add", blocks, kAddThreads, 0, stream, parts,
                      c, p.m, p.n, ld, shares);
}

}  // namespace matmul
