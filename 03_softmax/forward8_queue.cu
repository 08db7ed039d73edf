// Forward, step 8: persistent clusters.
// Idea: a cluster that starts for each row loads nothing until it has started, and its
//       multiprocessors wait for each other twice a row. A persistent cluster loads the next row
//       over this one while it writes this one's results.
// Change: as many clusters as the card holds take rows from a queue, a counter in global memory.
//         Their blocks exchange messages instead of waiting at a barrier, where each thread would
//         wait until all its writes are visible to the other blocks, also the previous row's
//         results (docs/notes/03_softmax.md). A message makes only itself visible.
// Limit: memory, at the speed of a copy, for rows of up to 512 KiB; up to 2 MiB there is room for
//        few blocks. Step 7 or an earlier one takes rows of up to 64 KiB.
#include "softmax.cuh"
#include "tile/host/launch.hpp"
#include "tile/host/stream_memory.hpp"
#include "tile/ptx/resident_threads.cuh"
#include "tile/ptx/store_async.cuh"
#include "tile/shared_slice.cuh"

namespace softmax {
namespace {

// Three such blocks: 40 registers a thread. With ptxas's own choice, 32, it takes 2 % longer.
constexpr int kMaxThreads = 512;
constexpr int kChunks = 16;  // of 16 bytes, of a thread
constexpr int kMaxWarps = kMaxThreads / tile::kWarp * tile::kMaxBlocksOfCluster;

/// Where the messages for one row arrive, in the shared memory of each block.
struct Mailbox {
  MaxSum values[kMaxWarps];  // of all warps of the cluster
  std::int64_t next_row;
  tile::ptx::Mbarrier arrived;
};

/// The messages of a cluster. Each block has two mailboxes in shared memory, and all blocks have as
/// many whole warps. For each row all threads call ask_for_row(), send() and receive(), in this
/// order. A cluster that is faster than others takes more rows. So rows that are under way at the
/// same time are neighbours.
///
/// Two mailboxes are enough. A warp sends for row i + 2 only when it has received for row i + 1. By
/// then all warps have sent for row i + 1, each after it had read its messages for row i.
class ClusterMail {
 public:
  /// `rows_taken` lies in global memory and is 0 when the kernel begins. Waits until all blocks
  /// have begun: no message may be sent to a block before that.
  __device__ __forceinline__ ClusterMail(Mailbox* boxes, unsigned long long* rows_taken)
      : boxes_(boxes), rows_taken_(rows_taken) {  // [2]
    if (threadIdx.x == 0) {
      tile::ptx::mbarrier_init(&boxes[0].arrived, 1);
      tile::ptx::mbarrier_init(&boxes[1].arrived, 1);
    }
    tile::ptx::cluster_sync();
  }

  /// Takes the row after this one. The answer takes as long as a load; send() waits for it.
  __device__ __forceinline__ void ask_for_row() {
    if (is_first() && lane() == 0) {
      next_ = static_cast<std::int64_t>(atomicAdd(rows_taken_, 1)) +
              static_cast<std::int64_t>(gridDim.x / tile::ptx::cluster_size());
    }
  }

  // snippet-begin send
  /// Sends this warp's pair, which all its lanes have, to all blocks.
  __device__ __forceinline__ void send(MaxSum value) {
    const auto warps = static_cast<int>(blockDim.x) / tile::kWarp;
    const auto blocks = static_cast<int>(tile::ptx::cluster_size());
    Mailbox& box = boxes_[turn_ & 1];
    if (threadIdx.x == 0) {
      const int bytes = blocks * warps * static_cast<int>(sizeof(MaxSum)) + 8;  // 8 of next_row
      tile::ptx::mbarrier_arrive_expect(&box.arrived, static_cast<unsigned>(bytes));
    }
    if (is_first()) next_ = __shfl_sync(tile::kAllLanes, next_, 0);
    __syncwarp();  // all lanes have read what the warp received last: its message says so, too
    if (lane() >= blocks) return;
    const auto to = static_cast<unsigned>(lane());
    const int warp = static_cast<int>(threadIdx.x) / tile::kWarp;
    MaxSum* mine = box.values + static_cast<int>(tile::ptx::cluster_rank()) * warps + warp;
    tile::ptx::store_async(mine, value, &box.arrived, to);
    if (is_first()) tile::ptx::store_async(&box.next_row, next_, &box.arrived, to);
  }

  /// The reduction over all warps of the cluster, in every thread and to the same bits.
  __device__ __forceinline__ MaxSum receive(MergeMaxSum merge, std::int64_t* next_row) {
    Mailbox& box = boxes_[turn_ & 1];
    tile::ptx::mbarrier_wait_cluster(&box.arrived, turn_ >> 1 & 1);
    ++turn_;
    *next_row = box.next_row;
    const int count = static_cast<int>(tile::ptx::cluster_size() * blockDim.x) / tile::kWarp;
    return reduce_lanes(merge_some(box.values, lane(), count, merge), merge);
  }
  // snippet-end send

 private:
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % tile::kWarp; }
  /// Whether this is the warp that asks for the cluster's rows.
  __device__ static bool is_first() {
    return tile::ptx::cluster_rank() == 0 && threadIdx.x < tile::kWarp;
  }

  Mailbox* boxes_;  // [2]
  unsigned long long* rows_taken_;
  std::int64_t next_ = 0;
  unsigned turn_ = 0;
};

// snippet-begin kernel
template <class T, bool kPlain, bool kWhole>
__global__ void __launch_bounds__(kMaxThreads, tile::resident_blocks(3, kMaxThreads))
    softmax_queue(tile::Rows<const T> x,             // [rows][cols]
                  tile::Rows<T> y,                   // [rows][cols]
                  Params params,                     // sizes, scale, options
                  unsigned long long* rows_taken) {  // 0 at first
  using Slice = tile::SharedSlice<T, kChunks>;
  constexpr int kWidth = Slice::kChunkWidth;
  extern __shared__ __align__(16) unsigned char row_smem[];  // a block's columns of x
  __shared__ Mailbox boxes_smem[2];
  const auto blocks = static_cast<int>(tile::ptx::cluster_size());
  const auto rank = static_cast<int>(tile::ptx::cluster_rank());
  const tile::ChunkColumns<kWidth> in_smem{static_cast<int>(threadIdx.x),
                                           static_cast<int>(blockDim.x)};
  const tile::ChunkColumns<kWidth> columns{rank * in_smem.threads + in_smem.thread,
                                           blocks * in_smem.threads};
  const MergeMaxSum merge{params.factor};
  const auto all = static_cast<int>(params.cols);

  std::int64_t row = blockIdx.x / tile::ptx::cluster_size();  // one of those that exist
  int visible = static_cast<int>(params.visible<kPlain>(row));
  const T* x_row = x[row];
  tile::RowWithEnds<kWhole, T> ends(x_row, all, columns.thread);
  const int cols = ends.cols;  // of each row
  x_row += ends.begin, visible -= ends.begin;
  float x_end = ends.load(x_row, visible, -INFINITY);
  const Slice x_slice(x_row, kWhole ? visible : min(visible, cols), columns, -INFINITY, row_smem,
                      in_smem);
  ClusterMail mail(boxes_smem, rows_taken);
  float value[kWidth];  // a chunk of x, then of y
  while (row < params.rows) {
    mail.ask_for_row();
    tile::ptx::cp_async_wait_all();

    // Maximum and sum of this thread's own elements.
    MaxSum own{x_end, 0};
#pragma unroll Slice::kUnroll
    for (int i = 0; i < kChunks; ++i) {
      own.max = fmaxf(own.max, max_visible<kPlain>(x_slice, i, visible));
    }
    const float reference = finite_reference(own.max);
    if (x_end != -INFINITY) own.sum = tile::ptx::exp2_approx(params.factor * (x_end - reference));
#pragma unroll Slice::kUnroll
    for (int i = 0; i < kChunks; ++i) {
      load_visible<kPlain>(x_slice, i, visible, value);
#pragma unroll
      for (const float each : value) {
        own.sum += tile::ptx::exp2_approx(params.factor * (each - reference));
      }
    }
    mail.send(reduce_lanes(own, merge));
    std::int64_t next = 0;
    const MaxSum seen = mail.receive(merge, &next);

    // y = exp(z - max) / sum; and the next row's chunks over this one's. Hidden chunks keep old
    // elements: with options each element's column is tested, without them none is hidden.
    const Normalize<kPlain> normalize(params, seen);
    int next_visible = next < params.rows ? static_cast<int>(params.visible<kPlain>(next)) : 0;
    x_row = x[next];
    const tile::RowWithEnds<kWhole, T> next_ends(x_row, all, columns.thread);
    x_row += next_ends.begin, next_visible -= next_ends.begin;
    const int next_cols = kWhole ? next_visible : min(next_visible, cols);
    T* y_row = y[row] + ends.begin;
#pragma unroll Slice::kUnroll
    for (int i = 0; i < kChunks; ++i) {
      const int col = columns.column(i);
      if (col < cols) {
        x_slice.chunk(i).to_floats(value);
#pragma unroll
        for (int e = 0; e < kWidth; ++e) {
          value[e] = kPlain || col + e < visible ? normalize(value[e]) : params.hidden();
        }
        Slice::Chunk::from_floats(value).store(y_row + col);
      }
      x_slice.copy(i, x_row, next_cols);
    }
    ends.store(y_row, all, kPlain || ends.mine < visible ? normalize(x_end) : params.hidden());
    row = next, visible = next_visible, ends = next_ends;
    x_end = ends.load(x_row, visible, -INFINITY);
  }
}
// snippet-end kernel

/// The blocks of a row have as few threads as 16 blocks allow. So many fit on a multiprocessor, and
/// wait at different times. For rows that begin anywhere 512 threads are too many (an H200).
ClusterPlan plan_of(const ForwardProblem& p, bool whole) {
  const std::int64_t all = chunks_of(p, whole);
  for (int threads = 128; threads <= (whole ? kMaxThreads : 256); threads *= 2) {
    const std::int64_t most = std::int64_t{kChunks} * threads;
    const std::int64_t blocks = (all + most - 1) / most;
    if (blocks > tile::kMaxBlocksOfCluster) continue;
    return {static_cast<unsigned>(blocks), threads, kChunks, most * 16};
  }
  return {};
}

template <class T, bool kPlain, bool kWhole>
tile::Status launch(const ForwardProblem& problem, const ForwardBuffers& buffers, void* stream) {
  const auto kernel = softmax_queue<T, kPlain, kWhole>;
  const ClusterPlan plan = plan_of(problem, kWhole);
  int clusters = 0;
  TILE_TRY(tile::clusters_at_once(kernel, "softmax_queue", plan.threads, plan.blocks, plan.bytes,
                                  &clusters));
  tile::StreamMemory rows_taken;
  TILE_TRY(rows_taken.allocate(sizeof(unsigned long long), stream));
  const auto some = static_cast<unsigned>(std::min<std::int64_t>(clusters, problem.rows));
  return tile::launch_in_clusters(
      kernel, "softmax_queue", some * plan.blocks, plan.threads, plan.blocks, plan.bytes, stream,
      tile::Rows<const T>{static_cast<const T*>(buffers.x), problem.ldx},
      tile::Rows<T>{static_cast<T*>(buffers.y), problem.ldy}, params_of(problem),
      static_cast<unsigned long long*>(rows_taken.data()));
}

}  // namespace

tile::Status takes_queue(const ForwardProblem& p, const ForwardBuffers& b, const tile::Device& on) {
  TILE_TRY(check_alike(p, b));
  const bool whole = check_chunks(p, b).ok();
  const auto bytes = p.cols * static_cast<std::int64_t>(tile::size_bytes(p.type));
  // Measured on an H200: whole chunks are faster here if step 6 has one row on a multiprocessor.
  const bool is_short = whole ? bytes <= 64 * 1024 : block_plan(p, false).fits(on);
  if (!is_short && plan_of(p, whole).blocks > 0) return {};
  const char* why = is_short ? " are as fast in one block" : " do not fit into a cluster";
  return tile::unsupported("cols", std::to_string(p.cols) + why);
}

tile::Status queue(const ForwardProblem& problem, const ForwardBuffers& buffers, void* stream) {
  return tile::with_element_type(problem.type, [&](auto element) {
    return with_kernel_kind(problem, buffers, [&](auto plain, auto whole) {
      return launch<decltype(element), plain, whole>(problem, buffers, stream);
    });
  });
}

}  // namespace softmax
