// Forward, step 8: persistent blocks, each with its columns.
// Idea: gamma and beta of a long row are as many bytes as x and y. A block that has the same
//       columns row after row reads its part of gamma and beta once, and keeps it in registers.
// Change: from step 7, as many blocks as the card holds, a few to a row, with a ring of parts of
//         rows in shared memory. Blocks tell each other the moments of their parts through global
//         memory (row_parts.cuh). That takes some two microseconds, so they do it three rows before
//         they write a row. Rows that begin alike follow one another, because the beginning of a
//         row shifts gamma and beta.
// Limit: latency: all warps of a multiprocessor wait for memory or for one another in turn.
#include <numeric>

#include "row_parts.cuh"
#include "tile/host/chunks.hpp"
#include "tile/host/launch.hpp"
#include "tile/host/stream_memory.hpp"

namespace layernorm {
namespace {

/// Warps for the exchange, each for every third row: a row's takes as long as two rows.
constexpr int kCouriers = 3;
// When all warps have added up row i, they have written the row kAhead + 1 before it. In its stage
// row i + kCouriers finds its place.
static_assert(kStages == kAhead + 1 + kCouriers);
constexpr int kThreads = kForwardParts.threads, kAllThreads = kThreads + kCouriers * tile::kWarp;
static_assert(kAllThreads <= 640);  // of 96 registers each

/// Warps that add up their chunks of a part, and write those of the row kAhead before that.
template <class T, int kChunks>
__device__ __forceinline__ void compute(const SharedRows<T>& p, int count, const uint4* parts,
                                        Board<T>& board) {
  constexpr int kWidth = 16 / sizeof(T);
  using Chunk = tile::Chunk<T, kWidth>;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % tile::kWarp;
  const int last = thread + (kChunks - 1) * kThreads;
  Chunk gamma[kChunks], beta[kChunks];
  int first_col = -1;  // of gamma and beta
  for (int i = -kAhead; i < count; ++i) {
    if (const int next = i + kAhead; next < count) {
      const int stage = next % kStages, ring = next % kRing;
      tile::ptx::mbarrier_wait(&board.full[stage], next / kStages & 1);
      const uint4* part = parts + stage * p.room;
      const Moments mine = add_up<T, kChunks>(part, thread, last < board.count[stage], p.centred);
      __syncwarp();  // all lanes have read the part that was written last
      if (lane == 0) {
        board.of_warp[ring][thread / tile::kWarp] = mine;
        tile::ptx::mbarrier_arrive(&board.summed[ring]);
      }
    }
    if (i < 0) continue;
    const int stage = i % kStages, ring = i % kRing;
    const int chunks = last < board.count[stage] ? kChunks : kChunks - 1;
    if (board.col[stage] != first_col) {
      first_col = board.col[stage];
#pragma unroll
      for (int k = 0; k < kChunks; ++k) {
        const int col = first_col + (thread + k * kThreads) * kWidth;
        float weight[kWidth], bias[kWidth];
#pragma unroll
        for (int e = 0; e < kWidth; ++e) {
          weight[e] = p.gamma && k < chunks ? static_cast<float>(p.gamma[col + e]) : 1;
          bias[e] = p.beta && k < chunks ? static_cast<float>(p.beta[col + e]) : 0;
        }
        gamma[k] = Chunk::from_floats(weight), beta[k] = Chunk::from_floats(bias);
      }
    }
    tile::ptx::mbarrier_wait(&board.merged[ring], i / kRing & 1);
    const RowMoments row = board.of_row[ring];
    const float shift = row.mean * row.rstd;
    T* y = board.y[stage];
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      if (k >= chunks) break;
      const int chunk = thread + k * kThreads;
      float value[kWidth], weight[kWidth], bias[kWidth];
      Chunk{parts[stage * p.room + chunk]}.to_floats(value);
      gamma[k].to_floats(weight), beta[k].to_floats(bias);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        value[e] = weight[e] * ((value[e] - row.origin) * row.rstd - shift) + bias[e];
      }
      Chunk::from_floats(value).store(y + chunk * kWidth);
    }
  }
}

/// A warp that loads parts of every third row, sends their moments and receives those of the row.
/// It also has the elements before and after the row's chunks, a lane each.
template <class T>
__device__ __forceinline__ void carry(const SharedRows<T>& p, int begin, int count, int courier,
                                      int block, uint4* parts, Board<T>& board) {
  const int lane = static_cast<int>(threadIdx.x) % tile::kWarp;
  for (int i = courier; i < min(count, 2 * kCouriers); i += kCouriers) {
    const int row = p.order.row(begin + i);
    if (lane == 0)
      load_part(p, i, row, PartOfRow<T>(p.x[row], p.cols, block, p.blocks), parts, board);
  }
  for (int i = courier; i < count; i += kCouriers) {
    const int row = p.order.row(begin + i), ring = i % kRing;
    const int next = i + kCouriers, next_row = p.order.row(begin + min(next, count - 1));
    const PartOfRow<T> part(p.x[row], p.cols, block, p.blocks);
    const PartOfRow<T> next_part(p.x[next_row], p.cols, block, p.blocks);
    static_assert(kWarps + 7 <= 24 && part.kWidth <= 8);  // these lanes have no warp's moments
    int col = p.cols;
    if (block == 0 && lane >= kWarps && lane < kWarps + part.head) col = lane - kWarps;
    if (block == p.blocks - 1 && lane >= 24 && lane < 24 + part.tail) {
      col = p.cols - part.tail + lane - 24;
    }
    const bool has_end = col < p.cols;
    const float x = has_end ? static_cast<float>(p.x[row][col]) : 0;
    const float weight = has_end && p.gamma ? static_cast<float>(p.gamma[col]) : 1;
    const float bias = has_end && p.beta ? static_cast<float>(p.beta[col]) : 0;

    tile::ptx::mbarrier_wait(&board.summed[ring], i / kRing & 1);
    const auto* part_x = reinterpret_cast<const T*>(parts + i % kStages * p.room);
    const float first_x = p.centred ? static_cast<float>(*part_x) : 0;
    Moments seen{0, 0, 0};
    if (lane < kWarps) seen = board.of_warp[ring][lane];
    if (has_end) seen = {1, p.centred ? x - first_x : 0, p.centred ? 0 : x * x};
    seen = merge_lanes(seen);
    const unsigned tag = static_cast<unsigned>(i) + 1;
    Message* mail = p.mail + i % kMail * static_cast<int>(gridDim.x) + blockIdx.x;
    if (lane == 0) {
      send(mail, first_x, seen, tag);
      if (next >= 2 * kCouriers && next < count) {
        load_part(p, next, next_row, next_part, parts, board);
      }
    }
    __syncwarp();
    float origin;
    seen = receive(mail - block, p.blocks, tag, lane, &origin);
    const float rstd = rsqrtf(seen.squares * p.per_col + p.eps);
    if (lane == 0) {
      board.of_row[ring] = {origin, seen.mean, rstd};
      tile::ptx::mbarrier_arrive(&board.merged[ring]);
    }
    if (has_end) {
      p.y[row][col] = static_cast<T>(weight * ((x - origin - seen.mean) * rstd) + bias);
    }
    if (block != 0 || lane != 0) continue;
    if (p.mean) p.mean[row] = origin + seen.mean;
    if (p.rstd) p.rstd[row] = rstd;
  }
}

template <class T, int kChunks>
__global__ void __launch_bounds__(kAllThreads, 1) layernorm_persistent(SharedRows<T> p) {
  extern __shared__ __align__(128) uint4 parts_smem[];  // [kStages][room]
  __shared__ Board<T> board;
  if (threadIdx.x == 0) init(board);
  __syncthreads();  // the mbarriers are there
  // Blocks that share rows follow one another, and so do the rows of such a group.
  const std::int64_t groups = static_cast<int>(gridDim.x) / p.blocks;
  const int group = static_cast<int>(blockIdx.x) / p.blocks;
  const int block = static_cast<int>(blockIdx.x) % p.blocks;
  const auto begin = static_cast<int>(p.order.rows * group / groups);
  const int count = static_cast<int>(p.order.rows * (group + 1) / groups) - begin;
  const int courier = (static_cast<int>(threadIdx.x) - kThreads) / tile::kWarp;
  if (static_cast<int>(threadIdx.x) < kThreads) {
    compute<T, kChunks>(p, count, parts_smem, board);
  } else {
    carry(p, begin, count, courier, block, parts_smem, board);
  }
}

}  // namespace

tile::Status takes_persistent(const ForwardProblem& p, const ForwardBuffers& b,
                              const tile::Device& device) {
  if (ends_plan(p).chunks > 0) {
    return tile::unsupported("cols", std::to_string(p.cols) + " are held by a block");
  }
  TILE_TRY(tile::check_alike(p.type, b.x, p.ldx, "y", b.y, "ldy", p.ldy));
  if (persistent_plan(p, device).blocks > 0) return {};
  return tile::unsupported("cols",
                           std::to_string(p.cols) + " are more than the card's blocks hold");
}

tile::Status persistent(const ForwardProblem& p, const ForwardBuffers& b, void* stream) {
  const SharedRowsPlan plan = persistent_plan(p, tile::device());
  const int grid = plan.blocks * plan.groups;
  tile::StreamMemory mail;
  TILE_TRY(mail.allocate(sizeof(Message) * static_cast<std::size_t>(kMail * grid), stream));
  return tile::with_element_type(p.type, [&](auto element) {
    using T = decltype(element);
    const auto width = static_cast<std::int64_t>(16 / sizeof(T));
    const SharedRows<T> rows{
        .x = {static_cast<const T*>(b.x), p.ldx},
        .gamma = static_cast<const T*>(b.gamma),
        .beta = static_cast<const T*>(b.beta),
        .y = {static_cast<T*>(b.y), p.ldy},
        .mean = b.mean,
        .rstd = b.rstd,
        .mail = static_cast<Message*>(mail.data()),
        .order = {static_cast<int>(p.rows), static_cast<int>(width / std::gcd(p.ldx, width))},
        .cols = static_cast<int>(p.cols),
        .blocks = plan.blocks,
        .room = plan.room,
        .per_col = static_cast<float>(1 / static_cast<double>(p.cols)),
        .eps = p.eps,
        .centred = p.norm == Norm::layer};
    return tile::launch_together(
        plan.of_thread == 3 ? layernorm_persistent<T, 3> : layernorm_persistent<T, 4>,
        "layernorm_persistent", static_cast<unsigned>(grid), kAllThreads,
        static_cast<std::size_t>(kStages * plan.room) * 16, stream, rows);
  });
}

}  // namespace layernorm
