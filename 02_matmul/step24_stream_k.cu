// Step 24: a line of iterations, cut into equal pieces.
// Idea: tiles of C come in waves, and the last wave is seldom full. So the unit of work is not a
//       tile, but an iteration of the main loop. The iterations of at most two waves of tiles lie
//       in one line, tile after tile, and each block that runs at one time has a piece of it.
// Change: from step 6: a block walks over its piece from the end. If the next piece continues a
//         tile, the block leaves its sums in the workspace. If the block has a tile's last k, it
//         waits for the other blocks of the tile, adds their sums and stores C. Whole tiles follow.
//         Rows that begin anywhere are copied float by float in the background, in tiles of 64 x
//         128. The launcher estimates which tiles are faster, and how many are cut.
// Limit: the multiply-adds.
#include "matmul_launch.hpp"
#include "stream_tiles.cuh"
#include "tile/ptx/semaphore.cuh"

namespace matmul {
namespace {

static_assert(kTileN == 128 && kTileK == 8, "as stream_plan() in arguments.cpp reckons");

/// The iteration of the line at which a piece begins.
__device__ unsigned begin_of(const StreamPlan& plan, unsigned piece) {
  return piece * plan.length + min(piece, plan.longer);
}

template <bool kWords, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(stream_rows<kWords>, kStreamThreads / stream_rows<kWords>)
    matmul_stream_k(Operand<float> a,       // [m][k]
                    Operand<float> b,       // [k][n]
                    Output<float, true> c,  // [m][n]
                    float4* parts,          // [pieces][sums of a tile]
                    unsigned* counters,     // [1 + pieces], zeros; or null if no tile is cut
                    std::int64_t m, std::int64_t n, std::int64_t k, StreamPlan plan) {
  constexpr int kM = stream_rows<kWords>, kPart = kSumVectors * kM;
  using ALoader = Loader<kWords, kAAlongK, kM, kM>;
  using BLoader = Loader<kWords, kBAlongK, kTileN, kM>;
  __shared__ alignas(16) TileOf<kM> a_smem[2];  // [buffer][part of k][rows of C]
  __shared__ alignas(16) Tile b_smem[2];        // [buffer][part of k][columns of C]
  __shared__ unsigned piece_smem;
  // snippet-begin walk
  // Blocks take the pieces in order, so the blocks of all earlier pieces have already begun.
  if (threadIdx.x == 0) piece_smem = counters ? atomicAdd(counters, 1u) : blockIdx.x;
  __syncthreads();  // the piece's number is there
  const unsigned piece = piece_smem;
  const ThreadPosition at;

  unsigned first = begin_of(plan, piece), end = begin_of(plan, piece + 1);
  for (unsigned whole = plan.line + piece;;) {
    if (first == end) {  // the piece is done: whole tiles follow
      if (whole >= plan.tiles) return;
      first = whole * plan.tile, end = first + plan.tile, whole += plan.pieces;
    }
    // From the end: first the sums that another block waits for, last those that wait for others.
    const unsigned tile = (end - 1) / plan.tile, tile_begin = tile * plan.tile,
                   begin = max(first, tile_begin);
    const Corner corner = corner_in_groups<kM, kTileN, 8 * kTileM / kM>(tile, m, n);
    const std::int64_t k_begin = std::int64_t{begin - tile_begin} * kTileK,
                       k_end = min(std::int64_t{end - tile_begin} * kTileK, k);
    // snippet-end walk
    ALoader a_loader(a.data + k_begin * a.col_stride, kAAlongK ? a.row_stride : a.col_stride,
                     corner.row, m, k_end - k_begin);
    BLoader b_loader(b.data + k_begin * b.row_stride, kBAlongK ? b.col_stride : b.row_stride,
                     corner.col, n, k_end - k_begin);
    __syncthreads();  // all threads have read what the previous tile of C needed
    a_loader.fetch(a_smem[0]);
    b_loader.fetch(b_smem[0]);
    a_loader.put(a_smem[0]);
    b_loader.put(b_smem[0]);
    __syncthreads();  // the first tiles are complete before a thread reads them

    Sums sums;
    Factors factors[2];  // of this k and of the next
    factors[0].load(a_smem[0], b_smem[0], 0, at);
    int buffer = 0;
    for (std::int64_t k0 = k_begin; k0 < k_end; k0 += kTileK) {
      a_loader.fetch(a_smem[buffer ^ 1]);  // after the last tile this gives zeros, without a load
      b_loader.fetch(b_smem[buffer ^ 1]);
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

    // snippet-begin parts
    if (end < tile_begin + plan.tile) {  // the next piece goes on with this tile
      leave_sums(sums.sum[0], parts + piece * kPart, kM);
      __syncthreads();  // all of them are there
      if (threadIdx.x == 0) tile::ptx::semaphore_add(&counters[1 + piece]);
    } else {
      for (unsigned other = piece; begin_of(plan, other) > tile_begin;) {
        --other;
        if (threadIdx.x == 0) tile::ptx::semaphore_wait(&counters[1 + other], 1);
        __syncthreads();  // the other block's sums are there
        add_sums(sums.sum[0], parts + other * kPart, kM);
      }
      sums.store(c, corner, at, m, n, a_smem[0][0]);
    }
    // snippet-end parts
    end = begin;
  }
}

}  // namespace

tile::Status stream_k(const Problem& p, const Buffers& buffers, void* stream) {
  int sms = 0;  // multiprocessors
  TILE_TRY(tile::count_multiprocessors(&sms));
  const StreamPlan plan = stream_plan(p, sms);
  auto* const counters = plan.line > 0 ? static_cast<unsigned*>(buffers.workspace) : nullptr;
  auto* const parts = reinterpret_cast<float4*>(counters + stream_counters(plan));
  if (counters) {
    TILE_RETURN_IF_CUDA_ERROR(cudaMemsetAsync(counters, 0, stream_counters(plan) * sizeof(unsigned),
                                              static_cast<cudaStream_t>(stream)));
  }
  const auto launch = [&](auto words, auto a_along_k, auto b_along_k) {
    return tile::launch(matmul_stream_k<words.value, a_along_k.value, b_along_k.value>,
                        "matmul_stream_k", plan.pieces, stream_rows<words.value>, 0, stream,
                        op_a<float>(p, buffers), op_b<float>(p, buffers),
                        output_c<float, true>(p, buffers), parts, counters, p.m, p.n, terms(p),
                        plan);
  };
  const auto with_words = [&](auto... directions) {
    return plan.words ? launch(std::true_type{}, directions...)
                      : launch(std::false_type{}, directions...);
  };
  return with_directions(p, with_words);
}

}  // namespace matmul
