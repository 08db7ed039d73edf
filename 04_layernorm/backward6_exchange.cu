// Backward, step 6: persistent blocks that exchange sums.
// Idea: as in forward step 8, a block has the same columns row after row, so that gamma and its
//       sums of dgamma and dbeta stay in registers, however many blocks a row takes.
// Change: from step 5, a row is read once, by TMA into a ring. Mean and rstd are known, so blocks
//         tell each other two sums of a row in one message, two rows before they write its dx.
//         Rows that begin alike follow one another. When other rows come, a block writes its sums
//         of dgamma and dbeta to the workspace and begins new ones.
// Limit: latency: all warps of a multiprocessor wait for memory or for one another in turn.
#include "row_order.cuh"
#include "row_sums.cuh"
#include "tile/host/chunks.hpp"
#include "tile/host/launch.hpp"
#include "tile/host/stream_memory.hpp"
#include "tile/ptx/mbarrier.cuh"
#include "tile/ptx/semaphore.cuh"
#include "tile/ptx/tagged.cuh"
#include "tile/ptx/tma.cuh"
#include "tile/rows.cuh"

namespace layernorm {
namespace {

using tile::ptx::mbarrier_arrive, tile::ptx::mbarrier_wait;

constexpr int kThreads = kBackwardParts.threads, kWarps = kThreads / tile::kWarp;
constexpr int kStages = kBackwardParts.stages;  // rows of which a block has its part
/// The sums are found for a row that is `kAhead` rows after the one that is written.
constexpr int kAhead = 2, kRing = kAhead + 1;
/// Warps for the exchange, each for every third row.
constexpr int kCouriers = 3;
// When all warps have added up row i, they have written the row kAhead + 1 before it. In its stage
// row i + kCouriers finds its place.
static_assert(kStages == kAhead + 1 + kCouriers);
/// A block sends the sums of row i when it has written row i - kAhead - 1, so when all blocks have
/// sent those. By then they have written row i - 2 kAhead - 2, and need its messages no more.
constexpr int kMail = 2 * kAhead + 2;
constexpr int kAllThreads = kThreads + (1 + kCouriers) * tile::kWarp;
static_assert(kAllThreads <= 512);  // of 128 registers each

/// The matrices and how they are shared.
template <class T>
struct SharedRows {
  tile::Rows<const T> x, dy;    // [rows][cols]
  const T* gamma;               // [cols], or null: all ones
  const float* mean;            // [rows], or null: zeros
  const float* rstd;            // [rows]
  tile::Rows<T> dx;             // [rows][cols]
  float* dgamma_sums;           // [partial sums][ld_sums], of which cols from `leads` on
  float* dbeta_sums;            // the same
  int* leads;                   // [partial sums]
  tile::ptx::TaggedPair* mail;  // [kMail][blocks of the grid], zeros at first
  RowOrder order;
  int cols;
  int blocks;  // that share a row
  int room;    // chunks of a row in a block's shared memory
  int ld_sums;
  float per_col;  // 1 / cols

  __device__ __forceinline__ PartOfRow<T> part(int row, int block) const {
    return {x[row], cols, block, blocks};
  }
};

struct alignas(8) RowMean {
  float mean, rstd;
};
/// What dx takes from the sums over a row: dx = rstd w + of_row + of_xhat xhat.
struct alignas(8) RowTerms {
  float of_row, of_xhat;
};

/// What the warps of a block tell each other. In shared memory.
struct Board {
  tile::ptx::Mbarrier full[kStages];
  RowMean of_stage[kStages];
  tile::ptx::Mbarrier summed[kRing], merged[kRing];
  RowSums of_warp[kRing][kWarps + 1];
  RowTerms of_row[kRing];
};
static_assert(sizeof(Board) <= kBackwardParts.static_bytes);

/// The rows of a group of blocks, which share each of them.
struct Group {
  int begin, count;         // indices in the order of rows
  std::int64_t first_sums;  // the group's first partial sums

  __host__ __device__ static __forceinline__ int first(int rows, int number, int groups) {
    return static_cast<int>(std::int64_t{rows} * number / groups);
  }
  /// How many partial sums come before those of this group: one for each group and each kind of
  /// rows, but only one where both begin with the same row.
  __host__ __device__ static __forceinline__ int sums_before(const RowOrder& order, int number,
                                                             int groups) {
    const int begin = first(order.rows, number, groups);
    int sums = number;
    for (int kind = 1; kind < order.period; ++kind) {
      const int first_row = order.first_index(kind);
      const auto next =
          static_cast<int>((std::int64_t{first_row} * groups + order.rows - 1) / order.rows);
      if (first_row < begin && first(order.rows, next, groups) != first_row) ++sums;
    }
    return sums;
  }
  __device__ __forceinline__ Group(const RowOrder& order, int number, int groups) {
    begin = first(order.rows, number, groups);
    count = first(order.rows, number + 1, groups) - begin;
    first_sums = sums_before(order, number, groups);
  }
};

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
        of_row = reduce_lanes(of_row, AddRowSums{});
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
    const std::int64_t to = sums * p.ld_sums + lead + col;
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      if (k == kChunks - 1 && !has_last) break;
      store_floats(p.dgamma_sums + to + k * kThreads * kWidth, dgamma[k]);
      store_floats(p.dbeta_sums + to + k * kThreads * kWidth, dbeta[k]);
    }
    if (block == 0 && thread == 0) p.leads[sums] = lead;
    ++sums;
    done = end;
  }
}

/// A warp that has the elements before and after a row's chunks, a lane each.
template <class T>
__device__ __forceinline__ void compute_ends(const SharedRows<T>& p, Group group, int block,
                                             Board& board) {
  struct Element {
    float distance, dy, rstd;  // distance: x - mean
  };
  const int lane = static_cast<int>(threadIdx.x) % tile::kWarp;
  std::int64_t sums = group.first_sums;
  for (int done = 0; done < group.count;) {
    const auto run = p.order.run(group.begin + done);
    const int end = done + min(run.left, group.count - done);
    const PartOfRow<T> part = p.part(run.row, block);
    int col = p.cols;
    if (block == 0 && lane < part.head) col = lane;
    if (block == p.blocks - 1 && lane >= 8 && lane < 8 + part.tail)
      col = p.cols - part.tail + lane - 8;
    const bool has = col < p.cols;
    const float weight = has && p.gamma ? static_cast<float>(p.gamma[col]) : 1;
    float dgamma = 0, dbeta = 0;
    const auto load = [&](int i) {
      const int row = run.row + (i - done) * p.order.period;
      const float mean = p.mean ? p.mean[row] : 0, rstd = p.rstd[row];
      const float x = has ? static_cast<float>(p.x[row][col]) : mean;
      const float dy = has ? static_cast<float>(p.dy[row][col]) : 0;
      return Element{x - mean, dy, rstd};
    };
    Element ahead = load(done), held[kAhead + 1] = {};  // those of rows i to i + kAhead
    for (int i = done - kAhead; i < end; ++i) {
#pragma unroll
      for (int k = 0; k < kAhead; ++k) held[k] = held[k + 1];
      if (const int next = i + kAhead; next < end) {
        const Element now = held[kAhead] = ahead;
        if (next + 1 < end) ahead = load(next + 1);
        const float w = weight * now.dy, xhat = now.distance * now.rstd;
        dgamma += now.dy * xhat, dbeta += now.dy;
        const RowSums of_row = reduce_lanes(RowSums{w, w * xhat}, AddRowSums{});
        if (lane == 0) {
          board.of_warp[next % kRing][kWarps] = of_row;
          mbarrier_arrive(&board.summed[next % kRing]);
        }
      }
      if (i < done) continue;
      const Element now = held[0];
      mbarrier_wait(&board.merged[i % kRing], i / kRing & 1);
      const RowTerms terms = board.of_row[i % kRing];
      if (!has) continue;
      const float value =
          now.rstd * (weight * now.dy) + (terms.of_xhat * (now.distance * now.rstd) + terms.of_row);
      p.dx[run.row + (i - done) * p.order.period][col] = static_cast<T>(value);
    }
    const std::int64_t to = sums++ * p.ld_sums + part.lead() + col;
    if (has) p.dgamma_sums[to] = dgamma, p.dbeta_sums[to] = dbeta;
    done = end;
  }
}

/// One thread starts to load a part of this row, index i of the group's.
template <class T>
__device__ __forceinline__ void load_part(const SharedRows<T>& p, int i, int row,
                                          const PartOfRow<T>& part, RowMean of_row, uint4* parts,
                                          Board& board) {
  const int stage = i % kStages;
  const auto bytes = static_cast<unsigned>(part.count) * 16;
  uint4* to = parts + stage * 2 * p.room;
  board.of_stage[stage] = of_row;
  tile::ptx::mbarrier_arrive_expect(&board.full[stage], 2 * bytes);
  tile::ptx::bulk_load(tile::ptx::SharedAddress(to), p.x[row] + part.col, bytes,
                       &board.full[stage]);
  tile::ptx::bulk_load(tile::ptx::SharedAddress(to + p.room), p.dy[row] + part.col, bytes,
                       &board.full[stage]);
}

/// The sums over a row, from the messages of its blocks, in the same order each time. All lanes
/// call it.
__device__ __forceinline__ RowSums receive(tile::ptx::TaggedPair* from,  // [blocks]
                                           int blocks, unsigned tag, int lane) {
  constexpr int kOfLane = kBackwardParts.blocks / tile::kWarp;
  RowSums sums;
  while (true) {
    bool all_came = true;
    sums = {0, 0};
#pragma unroll
    for (int j = 0; j < kOfLane; ++j) {  // all of them are on their way at one time
      float2 values = make_float2(0, 0);
      if (const int block = lane + j * tile::kWarp; block < blocks) {
        all_came &= tile::ptx::load_tagged(&from[block], tag, &values);
      }
      sums = AddRowSums{}(sums, {values.x, values.y});
    }
    if (__all_sync(tile::kAllLanes, all_came)) break;
    tile::ptx::pause_polling();
  }
  return reduce_lanes(sums, AddRowSums{});
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
    sums = reduce_lanes(sums, AddRowSums{});
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
  // Measured on an H200: step 3 is slower where a thread computes w and xhat twice and rows begin
  // anywhere, and faster where they are whole chunks.
  const BlockPlan held = block_plan(p, device);
  if (held.fits && (held.max_threads == kKeeping || check_chunks(p, b).ok())) {
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
                             .dgamma_sums = sums.dgamma,
                             .dbeta_sums = sums.dbeta,
                             .leads = sums.leads,
                             .mail = static_cast<tile::ptx::TaggedPair*>(mail.data()),
                             .order = order,
                             .cols = static_cast<int>(p.cols),
                             .blocks = plan.blocks,
                             .room = plan.room,
                             .ld_sums = static_cast<int>(sums.ld),
                             .per_col = static_cast<float>(1 / static_cast<double>(p.cols))};
    return tile::launch_together(
        plan.of_thread == 2 ? layernorm_backward_exchange<T, 2> : layernorm_backward_exchange<T, 3>,
        "layernorm_backward_exchange", static_cast<unsigned>(grid), kAllThreads,
        static_cast<std::size_t>(kStages * 2 * plan.room) * 16, stream, rows);
  }));
  return sum_partial_sums(p, b, sums, stream);
}

}  // namespace layernorm
