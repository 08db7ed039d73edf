// Step 24: one line of iterations, cut into equal pieces.
// Idea: tiles of C come in waves, and the last wave is seldom full. So the unit of work is no tile,
//       but an iteration of the main loop. Those of all tiles lie in one line, tile after tile, and
//       each block that the card holds at one time works on a piece of it.
// Change: from step 6: a block walks over its piece from the end. Where a tile goes on in the next
//         piece, it leaves its sums in the workspace. Where it has a tile's last k, it waits for
//         the blocks before it, adds their sums and stores C. Rows that begin anywhere are copied
//         float by float in the background. A tile is 128 x 128 or 64 x 128, as the launcher
//         reckons.
// Limit: the multiply-adds.
#include <type_traits>

#include "tile/host/launch.hpp"
#include "tile/ptx/semaphore.cuh"
#include "word_tiles.cuh"

namespace matmul {
namespace {

constexpr int kPartVectors = kThreadM * kThreadN / kVector;  // of a thread's sums

/// The block's threads leave their sums in the order in which they have them.
template <int kBlockThreads>
__device__ void leave_sums(const Sums& sums, float4* part) {
#pragma unroll
  for (int i = 0; i < kPartVectors; ++i) {
    part[i * kBlockThreads + threadIdx.x] =
        load_vector(&sums.sum[i / (kThreadN / kVector)][i % (kThreadN / kVector) * kVector]);
  }
}
template <int kBlockThreads>
__device__ void add_sums(Sums& sums, const float4* part) {
  constexpr int kTogether = 8;  // so many loads are under way at a time
#pragma unroll
  for (int i0 = 0; i0 < kPartVectors; i0 += kTogether) {
    float4 found[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) found[i] = part[(i0 + i) * kBlockThreads + threadIdx.x];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      constexpr int kVectors = kThreadN / kVector;  // of a row
      float* to = &sums.sum[(i0 + i) / kVectors][(i0 + i) % kVectors * kVector];
      to[0] += found[i].x, to[1] += found[i].y, to[2] += found[i].z, to[3] += found[i].w;
    }
  }
}

/// The iteration of the line at which a piece begins.
__device__ unsigned begin_of(const StreamPlan& plan, unsigned piece) {
  return piece * plan.length + min(piece, plan.longer);
}

template <int kM, bool kWords, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(kM, kStreamThreads / kM)
    matmul_stream_k(Operand<float> a,    // [m][k]
                    Operand<float> b,    // [k][n]
                    Output<float> c,     // [m][n]
                    float4* parts,       // [pieces][sums of a tile]
                    unsigned* counters,  // [1 + pieces], zeros; or null if no tile is cut
                    std::int64_t m, std::int64_t n, std::int64_t k, StreamPlan plan) {
  constexpr int kBlockThreads = kM, kPart = kPartVectors * kBlockThreads;
  using ALoader = std::conditional_t<kWords, WordLoader<kAAlongK, kM, kBlockThreads>,
                                     TileLoader<kAAlongK, kM, kBlockThreads>>;
  using BLoader = std::conditional_t<kWords, WordLoader<kBAlongK, kTileN, kBlockThreads>,
                                     TileLoader<kBAlongK, kTileN, kBlockThreads>>;
  __shared__ alignas(16) TileOf<kM> a_smem[2];  // [buffer][part of k][rows of C]
  __shared__ alignas(16) Tile b_smem[2];        // [buffer][part of k][columns of C]
  __shared__ unsigned piece_smem;
  // A block waits for blocks of lower pieces only, and these have begun before it.
  if (threadIdx.x == 0) piece_smem = counters ? atomicAdd(counters, 1u) : blockIdx.x;
  __syncthreads();  // the piece's number is there
  const unsigned piece = piece_smem, first = begin_of(plan, piece);
  const ThreadPosition at;

  for (unsigned end = begin_of(plan, piece + 1); end > first;) {
    const unsigned tile = (end - 1) / plan.tile, tile_begin = tile * plan.tile;
    const unsigned begin = max(first, tile_begin);
    const std::int64_t k_begin = std::int64_t{begin - tile_begin} * kTileK,
                       k_end = min(std::int64_t{end - tile_begin} * kTileK, k);
    const Corner corner = corner_in_groups<kM, kTileN, 8 * kTileM / kM>(tile, m, n);
    ALoader a_loader(a.data + k_begin * a.col_stride, kAAlongK ? a.row_stride : a.col_stride,
                     corner.row, m, k_end - k_begin);
    BLoader b_loader(b.data + k_begin * b.row_stride, kBAlongK ? b.col_stride : b.row_stride,
                     corner.col, n, k_end - k_begin);
    const auto fetch = [&](int buffer) {
      if constexpr (kWords) {
        a_loader.fetch(a_smem[buffer]);
        b_loader.fetch(b_smem[buffer]);
      } else {
        a_loader.fetch();
        b_loader.fetch();
      }
    };
    const auto put = [&](int buffer) {
      if constexpr (kWords) {
        tile::ptx::cp_async_wait_all();
      } else {
        a_loader.put(a_smem[buffer]);
        b_loader.put(b_smem[buffer]);
      }
    };

    __syncthreads();  // all threads have read the last tiles of the tile of C before
    fetch(0);
    put(0);
    __syncthreads();  // the first tiles are complete before a thread reads them

    Sums sums;
    Factors factors[2];  // of this k and of the next
    factors[0].load(a_smem[0], b_smem[0], 0, at);
    int buffer = 0;
    for (std::int64_t k0 = k_begin; k0 < k_end; k0 += kTileK) {
      fetch(buffer ^ 1);  // after the last tile this gives zeros, without a load
#pragma unroll
      for (int l = 0; l < kTileK; ++l) {
        if (l == kTileK - 1) {  // the next k is in the next tile
          buffer ^= 1;
          put(buffer);
          // The next tile is complete before a thread reads it; and every thread has read all of
          // this one before one of them, in the next iteration, stores over it.
          __syncthreads();
        }
        factors[(l + 1) % 2].load(a_smem[buffer], b_smem[buffer], (l + 1) % kTileK, at);
        sums.add_products(factors[l % 2]);
      }
    }

    if (end < tile_begin + plan.tile) {  // the next piece goes on with this tile
      leave_sums<kBlockThreads>(sums, parts + piece * kPart);
      __syncthreads();  // all of them are there
      if (threadIdx.x == 0) tile::ptx::semaphore_add(&counters[1 + piece]);
    } else {
      for (unsigned other = piece; begin_of(plan, other) > tile_begin;) {
        --other;
        if (threadIdx.x == 0) tile::ptx::semaphore_wait(&counters[1 + other], 1);
        __syncthreads();  // the other block's sums are there
        add_sums<kBlockThreads>(sums, parts + other * kPart);
      }
      sums.store(c, corner, at, m, n);
    }
    end = begin;
  }
}

}  // namespace

tile::Status stream_k(const Problem& p, const Buffers& buffers, void* stream) {
  int sms = 0;  // multiprocessors
  TILE_TRY(tile::count_multiprocessors(&sms));
  const StreamPlan plan = stream_plan(p, sms);
  auto* const counters = plan.is_cut() ? static_cast<unsigned*>(buffers.workspace) : nullptr;
  auto* const parts = reinterpret_cast<float4*>(counters + stream_counters(plan));
  if (counters) {
    TILE_RETURN_IF_CUDA_ERROR(cudaMemsetAsync(counters, 0, stream_counters(plan) * sizeof(unsigned),
                                              static_cast<cudaStream_t>(stream)));
  }
  const auto begins_at_16_bytes = [](const void* data, std::int64_t ld) {
    return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && ld % kVector == 0;
  };
  const bool words = !begins_at_16_bytes(buffers.a, p.lda) || !begins_at_16_bytes(buffers.b, p.ldb);
  const auto launch_with = [&](auto rows, auto are_words) {
    return with_directions(p, [&](auto a_along_k, auto b_along_k) {
      constexpr int kM = rows.value;
      return tile::launch(matmul_stream_k<kM, are_words.value, a_along_k.value, b_along_k.value>,
                          "matmul_stream_k", plan.pieces, kM, 0, stream, op_a<float>(p, buffers),
                          op_b<float>(p, buffers), output_c<float>(p, buffers, true), parts,
                          counters, p.m, p.n, terms(p), plan);
    });
  };
  const auto launch = [&](auto rows) {
    return words ? launch_with(rows, std::true_type{}) : launch_with(rows, std::false_type{});
  };
  return plan.rows == kTileM ? launch(std::integral_constant<int, kTileM>{})
                             : launch(std::integral_constant<int, kTileM / 2>{});
}

}  // namespace matmul
