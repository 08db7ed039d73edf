// Step 8: clusters that stay.
// Idea: a cluster that starts anew for each row loads nothing until it has started, and its
//       multiprocessors wait for each other twice a row. One that stays loads the next row into the
//       places of this one while it writes it.
// Change: as many clusters as the card holds take rows from a queue, a counter in global memory;
//         and their blocks exchange messages (03_softmax/cluster_mail.cuh) instead of meeting at a
//         barrier. Forward only: backward and rows that fit into one block are step 7's.
// Limit: memory, at the speed of a copy, for rows of up to 512 KiB; up to 2 MiB the shares leave
//        room for few blocks.
#include "parts.cuh"
#include "shares.cuh"
#include "tile/cluster.cuh"
#include "cluster_mail.cuh"
#include "stream_memory.hpp"

namespace softmax {
namespace {

constexpr int kMostThreads = 512;
constexpr int kChunks = 16;  // of a thread

// snippet-begin kernel
template <class T, bool kPlain>
__global__ void __launch_bounds__(kMostThreads)
    softmax_queue(tile::Rows<const T> x,  // [rows][cols]
                  tile::Rows<T> y,        // [rows][cols]
                  Options options, unsigned long long* rows_taken) {
  using Part = tile::SharedSlice<T, kChunks>;
  extern __shared__ __align__(16) unsigned char row_smem[];  // a share of a row of x
  __shared__ tile::Mailbox<tile::MaxSum> boxes_smem[2];
  using Mail = tile::ClusterMail<tile::MaxSum>;
  const tile::MergeMaxSum merge{options.factor};

  std::int64_t row = Mail::first_row();
  Columns columns = columns_of_row<kPlain>(options, row);
  const Part part(x[row], columns.visible, tile::columns_in_cluster<Part::kChunkWidth>(), -INFINITY,
                  row_smem, tile::columns_in_block<Part::kChunkWidth>());
  Mail mail(boxes_smem, rows_taken);
  while (row < options.rows) {
    mail.ask_for_row();
    tile::ptx::cp_async_wait_all();
    mail.send(reduce_lanes(reduce_part<kPlain>(part, columns, options), merge));
    std::int64_t next = 0;
    const tile::MaxSum seen = mail.receive(merge, &next);

    const Normalize<kPlain> normalize(options, seen);
    const Columns next_columns = columns_of_row<kPlain>(options, next);
    const T* next_x = x[next];
    T* this_y = y[row];
    // Chunks that the next row does not see keep what they have: it looks at each element's column,
    // or all rows see as much.
#pragma unroll Part::kUnroll
    for (int i = 0; i < kChunks; ++i) {
      store_chunk(part, i, this_y, columns, normalize, options);
      part.copy(i, next_x, next_columns.visible);
    }
    row = next;
    columns = next_columns;
  }
}
// snippet-end kernel

/// How a cluster shares a row: blocks of as few threads as 16 of them allow, so that many are on a
/// multiprocessor and wait at different times.
struct Shape {
  bool fits;
  unsigned blocks;
  int threads;
  std::size_t shared_bytes;
};

Shape shape_of(const Problem& p, const Buffers& b) {
  const auto width = static_cast<std::int64_t>(16 / tile::size_bytes(p.type));
  if (!vectors_fit(p, b)) return {};
  for (int threads = 128; threads <= kMostThreads; threads *= 2) {
    const std::int64_t most = width * kChunks * threads;  // columns of a block
    const std::int64_t blocks = (p.cols + most - 1) / most;
    if (blocks > tile::kMostBlocksOfCluster) continue;
    return {true, static_cast<unsigned>(blocks), threads,
            static_cast<std::size_t>(threads) * kChunks * 16};
  }
  return {};
}

}  // namespace

tile::Status queue(const Problem& problem, const Buffers& buffers, void* stream) {
  if (tile::Status s = validate(problem, buffers); !s.ok()) return s;
  const Shape shape = shape_of(problem, buffers);
  // From here on a row of step 6 leaves room for one block on a multiprocessor.
  constexpr std::int64_t kLongRow = 64 * 1024;  // bytes
  const bool is_long =
      problem.cols * static_cast<std::int64_t>(tile::size_bytes(problem.type)) > kLongRow;
  if (problem.direction != tile::Direction::forward || !is_long || !shape.fits) {
    return cluster(problem, buffers, stream);
  }
  return launch_on_rows(
      problem, buffers, 1, [&]<class T>(const Arguments<T>& a, unsigned rows) -> tile::Status {
        const auto launch = [&](auto* kernel) -> tile::Status {
          int clusters = 0;
          if (tile::Status s = tile::clusters_at_once(kernel, "softmax_queue", shape.threads,
                                                      shape.blocks, shape.shared_bytes, &clusters);
              !s.ok())
            return s;
          tile::StreamMemory rows_taken;
          if (tile::Status s = rows_taken.allocate(sizeof(unsigned long long), stream); !s.ok()) {
            return s;
          }
          const unsigned blocks = std::min(static_cast<unsigned>(clusters), rows) * shape.blocks;
          return tile::launch_in_clusters(
              kernel, "softmax_queue", blocks, shape.threads, shape.blocks, shape.shared_bytes,
              stream, a.x, a.y, a.options, static_cast<unsigned long long*>(rows_taken.data()));
        };
        const bool plain = !problem.causal && !problem.log;
        return plain ? launch(softmax_queue<T, true>) : launch(softmax_queue<T, false>);
      });
}

}  // namespace softmax
