// Backward, step 6: persistent blocks that exchange sums.
// Idea: as in forward step 8, blocks exchange through global memory what they find in their parts
//       of a row, while other rows are under way. So any number of them can share a row.
// Change: from step 4, parts of rows come by TMA into a ring. Mean and rstd are known, so blocks
//         tell each other two sums of a row in one message, two rows before they write its dx.
//         Rows that begin alike follow one another. When other rows come, a block writes its sums
//         of dgamma and dbeta to the workspace and begins new ones.
// Limit: latency: all warps of a multiprocessor wait for memory or for one another in turn.
#include "sum_parts.cuh"
#include "tile/host/chunks.hpp"
#include "tile/host/launch.hpp"
#include "tile/host/stream_memory.hpp"

namespace layernorm {
namespace {

using namespace exchanged;  // NOLINT(google-build-using-namespace)

constexpr int kAllThreads = kThreads + (1 + kCouriers) * tile::kWarp;
static_assert(kAllThreads <= 512);  // of 128 registers each

/// Stores a chunk's floats where they are aligned to 16 bytes.
template <int kWidth>
__device__ __forceinline__ void store_floats(float* to, const float (&values)[kWidth]) {
#pragma unroll
  for (int e = 0; e < kWidth; e += 4) {
    *reinterpret_cast<float4*>(to + e) =
        make_float4(values[e], values[e + 1], values[e + 2], values[e + 3]);
  }
}

/// Warps that add up their chunks of a part, and write those of the row kAhead before that.
template <class T, int kChunks>
__device__ __forceinline__ void compute(const SharedRows<T>& p, Group group, int block,
                                        const uint4* parts,  // [kStages][x, dy][room]
                                        Board& board) {
  constexpr int kWidth = 16 / sizeof(T);
  using Chunk = tile::Chunk<T, kWidth>;
  const int thread = static_cast<int>(threadIdx.x);
  std::int64_t sums = group.first_sums;
  for (int done = 0; done < group.count;) {  // rows that begin alike
    const auto run = p.order.run(group.begin + done);
    const int end = done + min(run.left, group.count - done);
    const PartOfRow<T> part = p.part(run.row, block);
    const bool has_last = thread + (kChunks - 1) * kThreads < part.count;
    const int col = part.col + thread * kWidth;
    Chunk gamma[kChunks];
    float dgamma[kChunks][kWidth] = {}, dbeta[kChunks][kWidth] = {};
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      float weight[kWidth];
      const bool has = p.gamma && (k < kChunks - 1 || has_last);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        weight[e] = has ? static_cast<float>(p.gamma[col + k * kThreads * kWidth + e]) : 1;
      }
      gamma[k] = Chunk::from_floats(weight);
    }
    T* dx = p.dx[run.row] + col;
    const std::int64_t dx_step = p.order.period * p.dx.ld;
    for (int i = done - kAhead; i < end; ++i) {
      if (const int next = i + kAhead; next < end) {
        const int stage = next % kStages, ring = next % kRing;
        mbarrier_wait(&board.full[stage], next / kStages & 1);
        const RowMean row = board.of_stage[stage];
        const uint4* here = parts + stage * 2 * p.room + thread;
        RowSums of_row{0, 0};
#pragma unroll
        for (int k = 0; k < kChunks; ++k) {
          if (k == kChunks - 1 && !has_last) break;
          float x[kWidth], dy[kWidth], weight[kWidth];
          Chunk{here[k * kThreads]}.to_floats(x);
          Chunk{here[k * kThreads + p.room]}.to_floats(dy);
          gamma[k].to_floats(weight);
#pragma unroll
          for (int e = 0; e < kWidth; ++e) {
            const float xhat = (x[e] - row.mean) * row.rstd, w = weight[e] * dy[e];
            of_row.w += w;
            of_row.w_xhat += w * xhat;
            dgamma[k][e] += dy[e] * xhat;
            dbeta[k][e] += dy[e];
          }
        }
        of_row = add_lanes(of_row);
        __syncwarp();  // all lanes have read the part that was written last
        if (thread % tile::kWarp == 0) {
          board.of_warp[ring][thread / tile::kWarp] = of_row;
          mbarrier_arrive(&board.summed[ring]);
        }
      }
      if (i < done) continue;
      const int stage = i % kStages, ring = i % kRing;
      mbarrier_wait(&board.merged[ring], i / kRing & 1);
      const RowMean row = board.of_stage[stage];
      const RowTerms terms = board.of_row[ring];
      const uint4* here = parts + stage * 2 * p.room + thread;
#pragma unroll
      for (int k = 0; k < kChunks; ++k) {
        if (k == kChunks - 1 && !has_last) break;
        float x[kWidth], dy[kWidth], weight[kWidth];
        Chunk{here[k * kThreads]}.to_floats(x);
        Chunk{here[k * kThreads + p.room]}.to_floats(dy);
        gamma[k].to_floats(weight);
#pragma unroll
        for (int e = 0; e < kWidth; ++e) {
          const float xhat = (x[e] - row.mean) * row.rstd;
          x[e] = row.rstd * (weight[e] * dy[e]) + (terms.of_xhat * xhat + terms.of_row);
        }
        Chunk::from_floats(x).store(dx + k * kThreads * kWidth);
      }
      dx += dx_step;
    }
    // Shifted so that chunks are aligned, as they are in the rows.
    const int lead = part.lead();
    const std::int64_t to = sums * p.sums.ld + lead + col;
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      if (k == kChunks - 1 && !has_last) break;
      store_floats(p.sums.dgamma + to + k * kThreads * kWidth, dgamma[k]);
      store_floats(p.sums.dbeta + to + k * kThreads * kWidth, dbeta[k]);
    }
    if (block == 0 && thread == 0) p.sums.leads[sums] = lead;
    ++sums;
    done = end;
  }
}

/// A warp that loads parts of every third row, sends their sums and receives those of the row.
template <class T>
__device__ __forceinline__ void carry(const SharedRows<T>& p, Group group, int courier, int block,
                                      uint4* parts, Board& board) {
  const int lane = static_cast<int>(threadIdx.x) % tile::kWarp;
  const auto row_mean = [&](int row) { return RowMean{p.mean ? p.mean[row] : 0, p.rstd[row]}; };
  for (int i = courier; i < min(group.count, 2 * kCouriers); i += kCouriers) {
    const int row = p.order.row(group.begin + i);
    if (lane == 0) load_part(p, i, row, p.part(row, block), row_mean(row), parts, board);
  }
  for (int i = courier; i < group.count; i += kCouriers) {
    const int ring = i % kRing, next = i + kCouriers;
    const int next_row = p.order.row(group.begin + min(next, group.count - 1));
    const PartOfRow<T> next_part = p.part(next_row, block);
    const RowMean next_mean = row_mean(next_row);
    const float rstd = p.rstd[p.order.row(group.begin + i)];

    mbarrier_wait(&board.summed[ring], i / kRing & 1);
    RowSums sums{0, 0};
    if (lane <= kWarps) sums = board.of_warp[ring][lane];
    sums = add_lanes(sums);
    const unsigned tag = static_cast<unsigned>(i) + 1;
    tile::ptx::TaggedPair* mail = p.mail + i % kMail * static_cast<int>(gridDim.x) + blockIdx.x;
    if (lane == 0) {
      tile::ptx::store_tagged(mail, sums.w, sums.w_xhat, tag);
      if (next >= 2 * kCouriers && next < group.count) {
        load_part(p, next, next_row, next_part, next_mean, parts, board);
      }
    }
    __syncwarp();
    sums = receive(mail - block, p.blocks, tag, lane);
    if (lane == 0) {
      board.of_row[ring] = {p.mean ? -rstd * (sums.w * p.per_col) : 0,
                            -rstd * (sums.w_xhat * p.per_col)};
      mbarrier_arrive(&board.merged[ring]);
    }
  }
}

template <class T, int kChunks>
__global__ void __launch_bounds__(kAllThreads, 1) layernorm_backward_exchange(SharedRows<T> p) {
  extern __shared__ __align__(128) uint4 parts_smem[];  // [kStages][x, dy][room]
  __shared__ Board board;
  // Blocks that share rows follow one another, and so do the rows of such a group.
  const int block = static_cast<int>(blockIdx.x) % p.blocks;
  const bool has_ends = block == 0 || block == p.blocks - 1;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / tile::kWarp;
  if (thread == 0) {
    for (auto& full : board.full) tile::ptx::mbarrier_init(&full, 1);
    for (auto& summed : board.summed) tile::ptx::mbarrier_init(&summed, kWarps + has_ends);
    for (auto& merged : board.merged) tile::ptx::mbarrier_init(&merged, 1);
    for (auto& sums : board.of_warp) sums[kWarps] = {0, 0};
  }
  __syncthreads();  // the mbarriers are there
  const Group group(p.order, static_cast<int>(blockIdx.x) / p.blocks,
                    static_cast<int>(gridDim.x) / p.blocks);
  if (warp < kWarps) {
    compute<T, kChunks>(p, group, block, parts_smem, board);
  } else if (warp > kWarps) {
    carry(p, group, warp - kWarps - 1, block, parts_smem, board);
  } else if (has_ends) {
    compute_ends(p, group, block, board);
  }
}

}  // namespace

tile::Status takes_exchange(const BackwardProblem& p, const BackwardBuffers& b,
                            const tile::Device& device) {
  if (fits_block(p, b, device)) {
    return tile::unsupported("cols", std::to_string(p.cols) + " fit into a block");
  }
  TILE_TRY(tile::check_alike(p.type, b.x, p.ldx, "dy", b.dy, "lddy", p.lddy));
  TILE_TRY(tile::check_alike(p.type, b.x, p.ldx, "dx", b.dx, "lddx", p.lddx));
  if (exchange_plan(p, device).blocks > 0) return {};
  return tile::unsupported("rows", "are none, or cols more than the card's blocks hold");
}

tile::Status exchange(const BackwardProblem& p, const BackwardBuffers& b, void* stream) {
  const SharedRowsPlan plan = exchange_plan(p, tile::device());
  const int grid = plan.blocks * plan.groups;
  const RowOrder order{static_cast<int>(p.rows), static_cast<int>(row_starts(p).period)};
  const std::int64_t count = Group::sums_before(order, plan.groups, plan.groups);
  tile::StreamMemory mail;
  TILE_TRY(mail.allocate(sizeof(tile::ptx::TaggedPair) * static_cast<std::size_t>(kMail * grid),
                         stream));
  const ColumnSums sums = shifted_sums(p, b, count);
  TILE_TRY(tile::with_element_type(p.type, [&](auto element) {
    using T = decltype(element);
    const SharedRows<T> rows{.x = {static_cast<const T*>(b.x), p.ldx},
                             .dy = {static_cast<const T*>(b.dy), p.lddy},
                             .gamma = static_cast<const T*>(b.gamma),
                             .mean = b.mean,
                             .rstd = b.rstd,
                             .dx = {static_cast<T*>(b.dx), p.lddx},
                             .sums = sums,
                             .mail = static_cast<tile::ptx::TaggedPair*>(mail.data()),
                             .order = order,
                             .cols = static_cast<int>(p.cols),
                             .blocks = plan.blocks,
                             .room = plan.room,
                             .per_col = static_cast<float>(1 / static_cast<double>(p.cols))};
    return tile::launch_together(
        plan.of_thread == 2 ? layernorm_backward_exchange<T, 2> : layernorm_backward_exchange<T, 3>,
        "layernorm_backward_exchange", static_cast<unsigned>(grid), kAllThreads,
        static_cast<std::size_t>(kStages * 2 * plan.room) * 16, stream, rows);
  }));
  return sum_partial_sums(p, b, sums, stream);
}

}  // namespace layernorm
