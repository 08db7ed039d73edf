// softmax along the rows of a matrix, forward and backward: the problems and the ladders.
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

#include "tile/host/step.hpp"

namespace softmax {

inline constexpr std::string_view kName = "03_softmax";  // the folder's
inline constexpr std::string_view kTitle =
    "many threads agree on a maximum and a sum, and read a row once";

/// With z = scale x, each row by itself:
///
///     y = exp(z - max z) / sum exp(z - max z)        or, if `log` is set, its logarithm
///
/// A column that is not visible is not read, and has y = 0 (or -infinity). If nothing in a row has
/// a weight, because no column is visible or all that are hold -infinity, all of its y are 0 (or
/// -infinity), as attention needs it for a query without keys; PyTorch gives NaN. A NaN or
/// +infinity makes its whole visible row NaN, and no other.
struct ForwardProblem {
  tile::DType type;
  std::int64_t rows, cols;
  bool log = false;
  /// Row r is query r % queries of a matrix of scores. Query i sees the keys up to its own, the
  /// last query all of them: columns j <= i + cols - queries.
  bool causal = false;
  std::int64_t queries = rows;          // divides rows; used if causal
  float scale = 1;                      // positive and finite
  std::int64_t ldx = cols, ldy = cols;  // elements from one row of x to the next, and of y
};

/// Device pointers to the first elements, aligned to an element. y may be x, with the same rows;
/// otherwise it overlaps nothing of x.
struct ForwardBuffers {
  const void* x;
  void* y;
  void* workspace = nullptr;         // aligned to 16 bytes; its contents do not matter
  std::int64_t workspace_bytes = 0;  // with less than a step needs, an earlier step runs
};

/// From the forward pass's y and the gradient dy of a loss with respect to it:
///
///     dx = scale y (dy - sum y dy)                   or  scale (dy - exp(y) sum dy)
///
/// The options are those of the forward pass. A column that is not visible is not read, and has
/// dx = 0.
struct BackwardProblem {
  tile::DType type;
  std::int64_t rows, cols;
  bool log = false;
  bool causal = false;
  std::int64_t queries = rows;
  float scale = 1;
  std::int64_t ldy = cols, lddy = cols, lddx = cols;
};

/// On the device or on the host, as above. dx may be y or dy.
struct BackwardBuffers {
  const void* y;
  const void* dy;
  void* dx;
  void* workspace = nullptr;
  std::int64_t workspace_bytes = 0;
};

/// What is checked before any step. The Status names the argument that is wrong.
tile::Status validate(const ForwardProblem& problem, const ForwardBuffers& buffers);
tile::Status validate(const BackwardProblem& problem, const BackwardBuffers& buffers);

/// The same checks, except for the element type.
tile::Status validate_matrices(const ForwardProblem& problem, const ForwardBuffers& buffers);
tile::Status validate_matrices(const BackwardProblem& problem, const BackwardBuffers& buffers);

/// Checks the sizes and options only.
tile::Status validate_sizes(const ForwardProblem& problem);
tile::Status validate_sizes(const BackwardProblem& problem);

/// Whether chunks of 16 bytes fill all rows, for the steps that move those.
tile::Status check_chunks(const ForwardProblem& problem, const ForwardBuffers& buffers);
tile::Status check_chunks(const BackwardProblem& problem, const BackwardBuffers& buffers);

/// Whether each row begins alike in all matrices, at the same distance from a multiple of 16 bytes,
/// for the steps that move the chunks of rows that begin anywhere.
tile::Status check_alike(const ForwardProblem& problem, const ForwardBuffers& buffers);
tile::Status check_alike(const BackwardProblem& problem, const BackwardBuffers& buffers);
/// The same, and whether they are two chunks long or longer.
bool begin_alike(const ForwardProblem& problem, const ForwardBuffers& buffers);
bool begin_alike(const BackwardProblem& problem, const BackwardBuffers& buffers);

template <class Problem>
bool is_empty(const Problem& p) {
  return p.rows == 0 || p.cols == 0;
}

/// Neither a mask nor a logarithm: steps from registers on have kernels of their own for that.
template <class Problem>
bool is_plain(const Problem& p) {
  return !p.causal && !p.log;
}

/// Calls `launch` with two constants: whether the problem is plain, and whether chunks fill all
/// rows.
template <class Problem, class Buffers, class Launch>
tile::Status with_kernel_kind(const Problem& p, const Buffers& b, Launch launch) {
  const auto with = [&](auto plain) {
    return check_chunks(p, b).ok() ? launch(plain, std::true_type{})
                                   : launch(plain, std::false_type{});
  };
  return is_plain(p) ? with(std::true_type{}) : with(std::false_type{});
}

/// Chunks of 16 bytes of a row. If they do not fill all rows, those of the row that has the fewest.
template <class Problem>
std::int64_t chunks_of(const Problem& p, bool whole) {
  const auto width = static_cast<std::int64_t>(16 / tile::size_bytes(p.type));
  return (whole ? p.cols : p.cols - width + 1) / width;
}

/// Rows that begin anywhere are as fast in registers up to this many bytes.
inline constexpr std::int64_t kMostEndsBytes = 16 << 10;

/// How a block keeps a row in shared memory, x or both y and dy: its threads, and how many chunks
/// of 16 bytes of each matrix a thread has: 4, or 8 where 4 are too few, where rows are not whole
/// chunks, or with options.
struct BlockPlan {
  static constexpr int kMaxThreads = 1024;
  std::int64_t threads, bytes;
  int chunks;

  bool fits(const tile::Device& device) const {
    constexpr std::int64_t kStaticBytes = 4096;  // more than the kernels declare
    return threads <= kMaxThreads && bytes + kStaticBytes <= device.shared_bytes_of_block;
  }
};
BlockPlan block_plan(const ForwardProblem& problem, bool whole = true);
BlockPlan block_plan(const BackwardProblem& problem, bool whole = true);

/// How a cluster shares a row.
struct ClusterPlan {
  unsigned blocks;  // of a row; 0 if there are none
  int threads;      // of a block
  int chunks;       // of 16 bytes, of a thread, of each matrix
  std::int64_t bytes;
};

/// Whether a step from `registers` to the one before `split` takes this problem, and is faster than
/// teams if there are rows for all clusters: forward, up to 1 MiB of a row (an H200).
bool is_faster_read_once(const ForwardProblem& problem, const ForwardBuffers& buffers);
bool is_faster_read_once(const BackwardProblem& problem, const BackwardBuffers& buffers);

/// The workspace of step `split`.
std::int64_t split_bytes(const ForwardProblem& problem);
std::int64_t split_bytes(const BackwardProblem& problem);

// The steps of both passes, in the given stream (a cudaStream_t), and what they take.
using ForwardStep = tile::Status(const ForwardProblem&, const ForwardBuffers&, void* stream);
using BackwardStep = tile::Status(const BackwardProblem&, const BackwardBuffers&, void* stream);
using ForwardTakes = tile::Status(const ForwardProblem&, const ForwardBuffers&,
                                  const tile::Device&);
using BackwardTakes = tile::Status(const BackwardProblem&, const BackwardBuffers&,
                                   const tile::Device&);
ForwardStep thread_per_row, block_per_row, shuffles, online, registers, shared, cluster, queue,
    split;
BackwardStep thread_per_row, block_per_row, shuffles, registers, shared, cluster, split;
ForwardTakes takes_registers, takes_shared, takes_cluster, takes_queue, takes_split;
BackwardTakes takes_registers, takes_shared, takes_cluster, takes_split;

inline constexpr tile::EnumSet<tile::DType> kTypes{tile::DType::fp32, tile::DType::fp16,
                                                   tile::DType::bf16};
// 37 rows of 1003: no multiple of a block, a warp or a chunk.
inline constexpr tile::Shows kShows{{37, 1003}, {32'768, 4096}};

using ForwardLadder = tile::Ladder<ForwardProblem, ForwardBuffers>;
inline constexpr ForwardLadder::Step kForward[] = {
    {.name = "thread_per_row",
     .idea = "a thread reads its row three times",
     .types = kTypes,
     .needs = {},
     .takes = nullptr,
     .otherwise = "",
     .shows = kShows,
     .launch = thread_per_row},
    {.name = "block_per_row",
     .idea = "a block shares a row, and a tree in shared memory adds up",
     .types = kTypes,
     .needs = {},
     .takes = nullptr,
     .otherwise = "",
     .shows = kShows,
     .launch = block_per_row},
    {.name = "shuffles",
     .idea = "lanes exchange registers",
     .types = kTypes,
     .needs = {},
     .takes = nullptr,
     .otherwise = "",
     .shows = kShows,
     .launch = shuffles},
    {.name = "online",
     .idea = "maximum and sum in one pass",
     .types = kTypes,
     .needs = {},
     .takes = nullptr,
     .otherwise = "",
     .shows = kShows,
     .launch = online},
    {.name = "registers",
     .idea = "the row stays in registers and is read once",
     .types = kTypes,
     .needs = {},
     .takes = takes_registers,
     .otherwise = "online",
     .shows = kShows,
     .launch = registers},
    {.name = "shared",
     .idea = "a long row stays in shared memory, and more blocks are under way",
     .types = kTypes,
     .needs = {tile::Feature::cp_async},
     .takes = takes_shared,
     .otherwise = "registers",
     .shows = {{5, 20'008}, {8192, 32'768}},
     .launch = shared},
    {.name = "cluster",
     .idea = "a row in the shared memory of several blocks",
     .types = kTypes,
     .needs = {tile::Feature::cluster},
     .takes = takes_cluster,
     .otherwise = "shared",
     .shows = {{2, 70'008}, {4096, 131'072}},
     .launch = cluster},
    {.name = "queue",
     .idea = "clusters stay, and take one row after the other",
     .types = kTypes,
     .needs = {tile::Feature::cluster},
     .takes = takes_queue,
     .otherwise = "cluster",
     .shows = {{12, 40'008}, {4096, 131'072}},
     .launch = queue},
    {.name = "split",
     .idea = "a row in the shared memory of as many blocks as it needs",
     .types = kTypes,
     .needs = {tile::Feature::cp_async},
     .takes = takes_split,
     .otherwise = "queue",
     .shows = {{1, 1'050'001}, {64, 2'000'001}},
     .launch = split,
     .workspace_bytes = split_bytes},
};
inline constexpr ForwardLadder kForwardLadder{.name = "forward",
                                              .kernels = "softmax_",
                                              .steps = kForward,
                                              .validate = validate,
                                              .is_empty = is_empty<ForwardProblem>};

using BackwardLadder = tile::Ladder<BackwardProblem, BackwardBuffers>;
inline constexpr BackwardLadder::Step kBackward[] = {
    {.name = "thread_per_row",
     .idea = "a thread reads its rows of y and dy twice",
     .types = kTypes,
     .needs = {},
     .takes = nullptr,
     .otherwise = "",
     .shows = kShows,
     .launch = thread_per_row},
    {.name = "block_per_row",
     .idea = "a block shares a row, and a tree in shared memory adds up",
     .types = kTypes,
     .needs = {},
     .takes = nullptr,
     .otherwise = "",
     .shows = kShows,
     .launch = block_per_row},
    {.name = "shuffles",
     .idea = "lanes exchange registers",
     .types = kTypes,
     .needs = {},
     .takes = nullptr,
     .otherwise = "",
     .shows = kShows,
     .launch = shuffles},
    {.name = "registers",
     .idea = "both rows stay in registers and are read once",
     .types = kTypes,
     .needs = {},
     .takes = takes_registers,
     .otherwise = "shuffles",
     .shows = kShows,
     .launch = registers},
    {.name = "shared",
     .idea = "long rows stay in shared memory, and more blocks are under way",
     .types = kTypes,
     .needs = {tile::Feature::cp_async},
     .takes = takes_shared,
     .otherwise = "registers",
     .shows = {{5, 10'008}, {8192, 16'384}},
     .launch = shared},
    {.name = "cluster",
     .idea = "rows in the shared memory of several blocks",
     .types = kTypes,
     .needs = {tile::Feature::cluster},
     .takes = takes_cluster,
     .otherwise = "shared",
     .shows = {{2, 70'008}, {4096, 131'072}},
     .launch = cluster},
    {.name = "split",
     .idea = "rows in the shared memory of as many blocks as they need",
     .types = kTypes,
     .needs = {tile::Feature::cp_async},
     .takes = takes_split,
     .otherwise = "cluster",
     .shows = {{1, 460'001}, {64, 1'000'001}},
     .launch = split,
     .workspace_bytes = split_bytes},
};
inline constexpr BackwardLadder kBackwardLadder{.name = "backward",
                                                .kernels = "softmax_backward_",
                                                .steps = kBackward,
                                                .validate = validate,
                                                .is_empty = is_empty<BackwardProblem>};

}  // namespace softmax
