// LayerNorm and RMSNorm along the rows of a matrix, forward and backward: the problems and the two
// ladders.
#pragma once

#include <cstdint>
#include <string_view>

#include "tile/host/step.hpp"

namespace layernorm {

inline constexpr std::string_view kName = "04_layernorm";  // the folder's
inline constexpr std::string_view kTitle =
    "a variance in one pass, and gradients that sum over all rows";

/// layer: Ba, Kiros and Hinton, "Layer Normalization" (2016), arXiv 1607.06450.
/// rms: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019), arXiv 1910.07467, whose
/// mean is taken to be 0.
enum class Norm { layer, rms };

// ---- Forward ----

/// Each row by itself, with n = cols:
///
///     mean = sum x / n  (rms: 0)          rstd = 1 / sqrt(sum (x - mean)^2 / n + eps)
///     xhat = (x - mean) rstd              y = gamma xhat + beta
struct ForwardProblem {
  tile::DType type;
  std::int64_t rows, cols;
  Norm norm = Norm::layer;
  float eps = 1e-5f;                    // finite and not negative
  std::int64_t ldx = cols, ldy = cols;  // elements from one row of x to the next, and of y
};

/// Device pointers to the first elements, aligned to an element. y may be x with the same rows;
/// otherwise what is written overlaps nothing else.
struct ForwardBuffers {
  const void* x = nullptr;
  const void* gamma = nullptr;  // [cols] of the problem's type; null: all ones
  const void* beta = nullptr;   // [cols] of the same type; null: all zeros. layer only
  void* y = nullptr;
  float* mean = nullptr;      // [rows], for the backward pass; null if not needed. layer only
  float* rstd = nullptr;      // [rows], for the backward pass; null if not needed
  void* workspace = nullptr;  // aligned to 16 bytes; its contents do not matter
  std::int64_t workspace_bytes = 0;  // with less than a step needs, an earlier step runs
};

/// What is checked before any step. The Status names the argument that is wrong.
tile::Status validate(const ForwardProblem& problem, const ForwardBuffers& buffers);

/// The same checks, except for the element type. With fp64, mean and rstd are fp64.
tile::Status validate_matrices(const ForwardProblem& problem, const ForwardBuffers& buffers);

/// Checks the sizes and options only.
tile::Status validate_sizes(const ForwardProblem& problem);

inline bool is_empty(const ForwardProblem& p) { return p.rows == 0 || p.cols == 0; }

/// Whether chunks of 16 bytes fill all rows, and every chunk is aligned; if not, the Status says
/// which argument is in the way.
tile::Status check_chunks(const ForwardProblem& problem, const ForwardBuffers& buffers);

// The steps. Each computes y, mean and rstd in the given stream (a cudaStream_t).
using ForwardStep = tile::Status(const ForwardProblem&, const ForwardBuffers&, void* stream);
ForwardStep two_pass, welford, registers, four_rows, cluster, split, ends, persistent;

/// How threads keep a row that begins anywhere in step `ends`.
struct EndsPlan {
  int threads;        // of a row
  int chunks;         // of a thread, besides its share of the ends; 0 if no block holds the row
  bool several_rows;  // in a block: a row has a warp or a part of it
};
EndsPlan ends_plan(const ForwardProblem& problem);

/// How steps `persistent` forward and `exchange` backward share rows: blocks keep a part of many
/// rows in a ring in shared memory.
struct SharedRowsShape {
  int threads;      // of a block, those that compute
  int least, most;  // chunks of 16 bytes of a thread, in each tensor
  int stages;       // rows of which a block has a part
  int tensors;      // of which it has it
  int blocks;       // of a row at most
  std::int64_t static_bytes;
};
inline constexpr SharedRowsShape kForwardParts{.threads = 17 * 32,
                                               .least = 3,
                                               .most = 4,
                                               .stages = 7,
                                               .tensors = 1,
                                               .blocks = 5 * 32,
                                               .static_bytes = 1536};
inline constexpr SharedRowsShape kBackwardParts{.threads = 12 * 32,
                                                .least = 2,
                                                .most = 3,
                                                .stages = 6,
                                                .tensors = 2,
                                                .blocks = 5 * 32,
                                                .static_bytes = 1024};

/// How blocks share rows: as many as `blocks` have a row, and `groups` of them have a row each at
/// one time.
struct SharedRowsPlan {
  int blocks;  // 0 if no number of blocks does
  int groups;
  int room;       // chunks of a row that a block has at most
  int of_thread;  // of these: all threads have as many, or one less
};
SharedRowsPlan persistent_plan(const ForwardProblem& problem, const tile::Device& device);

/// Whether a step from `registers` to the one before `split` takes this problem.
bool is_read_once(const ForwardProblem& problem, const ForwardBuffers& buffers);

// snippet-begin moments
/// What is kept of some numbers: how many they are, their mean, and the sum of (x - mean)^2.
struct Moments {
  float count, mean, squares;
};
// snippet-end moments

/// The workspace of step `split`: moments of rows and of pieces of rows.
std::int64_t split_bytes(const ForwardProblem& problem);

// What the steps' own kernels take.
using ForwardTakes = tile::Status(const ForwardProblem&, const ForwardBuffers&,
                                  const tile::Device&);
ForwardTakes takes_registers, takes_four_rows, takes_cluster, takes_split, takes_ends,
    takes_persistent;

// ---- Backward ----

/// From the gradient dy of a loss with respect to y, the forward pass's mean and rstd, and with
/// w = gamma dy:
///
///     dx = rstd (w - sum w / n - xhat sum (w xhat) / n)        (rms: without sum w / n)
///     dgamma = sum over rows of dy xhat                 dbeta = sum over rows of dy
struct BackwardProblem {
  tile::DType type;
  std::int64_t rows, cols;
  Norm norm = Norm::layer;
  std::int64_t ldx = cols, lddy = cols, lddx = cols;  // elements from one row to the next
};

/// Device pointers to the first elements, aligned to an element. dx may be x or dy with the same
/// rows; otherwise what is written overlaps nothing else.
struct BackwardBuffers {
  const void* x = nullptr;
  const void* gamma = nullptr;  // [cols] of the problem's type; null: all ones
  const float* mean = nullptr;  // [rows]. layer only
  const float* rstd = nullptr;  // [rows]
  const void* dy = nullptr;
  void* dx = nullptr;
  void* dgamma = nullptr;     // [cols] of the problem's type; null if not needed
  void* dbeta = nullptr;      // [cols], the same. layer only
  void* workspace = nullptr;  // workspace_bytes(problem), aligned to 16 bytes; contents as above
};

/// What is checked before any step. The Status names the argument that is wrong.
tile::Status validate(const BackwardProblem& problem, const BackwardBuffers& buffers);

/// The same checks, except for the element type and the workspace. With fp64, mean and rstd are
/// fp64.
tile::Status validate_matrices(const BackwardProblem& problem, const BackwardBuffers& buffers);

/// Checks the sizes and options only.
tile::Status validate_sizes(const BackwardProblem& problem);

/// Without rows dgamma and dbeta must still be set to zeros.
inline bool is_empty(const BackwardProblem& p) { return p.cols == 0; }

tile::Status check_chunks(const BackwardProblem& problem, const BackwardBuffers& buffers);

/// Whether rows can be copied in chunks of 16 bytes: check_chunks() takes them; or the rows of x,
/// dy and dx begin alike, and before each is the end of another, which its first chunk then has,
/// too.
tile::Status check_rows_begin_alike(const BackwardProblem& problem, const BackwardBuffers& buffers);

/// How many partial sums of dgamma, and of dbeta, a step may keep for each column: more than an
/// H200 runs blocks at one time, but no more than 2^22 for all columns. Up to 2^21 columns there
/// are nine at least: in step `exchange` two groups of blocks have rows that begin in eight ways.
constexpr std::int64_t max_partial_sums(std::int64_t cols) {
  constexpr std::int64_t kAll = std::int64_t{1} << 22, kMax = 2048;
  const std::int64_t fit = kAll / (cols > 0 ? cols : 1);
  const std::int64_t least = cols <= std::int64_t{1} << 21 ? 9 : 1;
  return fit < least ? least : fit < kMax ? fit : kMax;
}

/// The bytes of fp32 partial sums of columns, with 12 more in each row, so that it may begin where
/// its columns are aligned, and has a number for that. INT64_MAX if they overflow.
constexpr std::int64_t column_sums_bytes(const BackwardProblem& p) {
  if (p.cols <= 0) return 0;
  std::int64_t bytes = 2 * max_partial_sums(p.cols) * static_cast<std::int64_t>(sizeof(float));
  return __builtin_mul_overflow(bytes, p.cols + 12, &bytes) ? INT64_MAX : bytes;
}

/// Whether rows are long enough for step `split`: at least half of a block's 256 threads have a
/// chunk.
constexpr bool has_pieces(const BackwardProblem& p) {
  return p.cols >= 2048 / static_cast<std::int64_t>(tile::size_bytes(p.type));
}

/// The sums over a row that dx needs, of w = gamma dy and of w xhat.
struct RowSums {
  float w, w_xhat;
};

/// The bytes of workspace that all steps need: partial sums of columns, and for step `split` the
/// sums of each row and of each 4 KiB of it. INT64_MAX if they overflow.
constexpr std::int64_t workspace_bytes(const BackwardProblem& p) {
  const std::int64_t of_columns = column_sums_bytes(p);
  if (p.rows <= 0 || !has_pieces(p)) return of_columns;
  const auto element = static_cast<std::int64_t>(tile::size_bytes(p.type));
  std::int64_t bytes = (p.cols / (4096 / element) + 2) * std::int64_t{sizeof(RowSums)};
  if (__builtin_mul_overflow(bytes, p.rows, &bytes) ||
      __builtin_add_overflow(bytes, of_columns, &bytes)) {
    return INT64_MAX;
  }
  return bytes;
}

/// Elements of a row that a thread has in step `cluster`.
inline constexpr int kThreadElements = 32;

/// How threads share a row in step `persistent`.
struct RowShape {
  int lanes;     // of a warp that have a row, beside the rows of others; or 0: all of a block
  int elements;  // of a row that a thread has
  int threads;   // of a block: all, or if they have one row, at most
  int blocks;    // for which a multiprocessor has registers
  bool keeps;    // whether a thread keeps w and xhat of a row, or computes them twice
  int ahead;     // rows that are copied while a block works on another
  bool fp32;     // whether it has rows of fp32, too, whose gamma takes twice the registers
};

/// A thread needs four registers for each of its elements, and some 50 more. Of 512 threads each
/// has 128: enough for 16 elements, and for more without w and xhat of a row.
constexpr RowShape row_shape(int lanes, int elements) {
  if (lanes == 0)
    return {0, elements, 512, 1, elements == 16, elements == 16 ? 2 : 1, elements < 32};
  const int blocks = elements == 8 ? 6 : elements == 16 ? 4 : elements == 24 ? 3 : 2;
  return {lanes, elements, 128, blocks, true, 2, lanes < 32 || elements != 24};
}
/// Of those with lanes the first that holds a row takes it. Rows of more than 1,024 elements have a
/// block, as block_plan() says.
inline constexpr RowShape kRowShapes[] = {
    row_shape(4, 16),  row_shape(16, 8),  row_shape(16, 16), row_shape(16, 24), row_shape(32, 16),
    row_shape(32, 24), row_shape(32, 32), row_shape(0, 16),  row_shape(0, 24),  row_shape(0, 32)};

/// How the blocks of step `persistent` share their rows.
struct BlockPlan {
  static constexpr std::int64_t kStaticBytes = 4 * 1024;  // no less than kernels and CUDA take
  int shape;          // which of kRowShapes, or -1: a row does not fit into a block
  int threads, rows;  // threads of a row; rows that a block has at a time
  std::int64_t shared_bytes;
};
BlockPlan block_plan(const BackwardProblem& problem, const tile::Device& device);
/// Whether a row fits into a block: with 32 elements a thread only if it has whole chunks. The
/// kernel for others would spill, and step `exchange` is faster for them.
bool fits_block(const BackwardProblem& problem, const BackwardBuffers& buffers,
                const tile::Device& device);

SharedRowsPlan exchange_plan(const BackwardProblem& problem, const tile::Device& device);

/// Where rows of x begin: every `period`-th as far after a multiple of 16 bytes, which is at most
/// `lead` elements. If all begin there, 1 and 0.
struct RowStarts {
  std::int64_t period, lead;
};
RowStarts row_starts(const BackwardProblem& problem);

/// How many blocks or clusters walk over the rows in steps `persistent` and `cluster`, each with
/// `rows` of them at a time: a multiple of so many that all rows of a thread begin alike, and at
/// most `most`, unless that is less. Clusters more than the card holds begin when others end.
std::int64_t persistent_count(const BackwardProblem& problem, std::int64_t most, std::int64_t rows);

/// Whether step `persistent` or `cluster` runs this.
bool is_read_once(const BackwardProblem& problem, const BackwardBuffers& buffers);

// The steps. Each computes dx, dgamma and dbeta in the given stream (a cudaStream_t).
using BackwardStep = tile::Status(const BackwardProblem&, const BackwardBuffers&, void* stream);
BackwardStep atomics, two_stage, persistent, cluster, split, exchange;

// What the steps' own kernels take.
using BackwardTakes = tile::Status(const BackwardProblem&, const BackwardBuffers&,
                                   const tile::Device&);
BackwardTakes takes_persistent, takes_cluster, takes_split, takes_exchange;

// ---- The ladders ----

inline constexpr tile::EnumSet<tile::DType> kTypes{tile::DType::fp32, tile::DType::fp16,
                                                   tile::DType::bf16};

// 37 rows of 1003: no multiple of a block, a warp or a chunk.
inline constexpr tile::Shows kShows{{37, 1003}, {32'768, 4096}};

using ForwardLadder = tile::Ladder<ForwardProblem, ForwardBuffers>;
inline constexpr ForwardLadder::Step kForward[] = {
    {.name = "two_pass",
     .idea = "the mean, then the variance around it",
     .types = kTypes,
     .needs = {},
     .takes = nullptr,
     .otherwise = "",
     .shows = kShows,
     .launch = two_pass},
    {.name = "welford",
     .idea = "mean and variance in one pass",
     .types = kTypes,
     .needs = {},
     .takes = nullptr,
     .otherwise = "",
     .shows = kShows,
     .launch = welford},
    {.name = "registers",
     .idea = "the row stays in registers and is read once",
     .types = kTypes,
     .needs = {},
     .takes = takes_registers,
     .otherwise = "welford",
     .shows = kShows,
     .launch = registers},
    {.name = "four_rows",
     .idea = "a thread has its columns of four rows",
     .types = kTypes,
     .needs = {},
     .takes = takes_four_rows,
     .otherwise = "registers",
     .shows = {{37, 1000}, {32'768, 1024}},
     .launch = four_rows},
    {.name = "cluster",
     .idea = "a row in the shared memory of several blocks",
     .types = kTypes,
     .needs = {tile::Feature::cluster},
     .takes = takes_cluster,
     .otherwise = "four_rows",
     .shows = {{3, 33'000}, {4096, 65'536}},
     .launch = cluster},
    {.name = "split",
     .idea = "a row's pieces go to any blocks of the card",
     .types = kTypes,
     .needs = {},
     .takes = takes_split,
     .otherwise = "cluster",
     .shows = {{3, 9001}, {64, 1'000'001}},
     .launch = split,
     .workspace_bytes = split_bytes},
    {.name = "ends",
     .idea = "rows that begin anywhere: whole chunks, and the ends by lanes",
     .types = kTypes,
     .needs = {},
     .takes = takes_ends,
     .otherwise = "split",
     .shows = {{37, 1003}, {50'000, 777}},
     .launch = ends},
    {.name = "persistent",
     .idea = "blocks keep their columns of gamma and beta, and exchange moments",
     .types = kTypes,
     .needs = {tile::Feature::tma},
     .takes = takes_persistent,
     .otherwise = "ends",
     .shows = {{17, 32'901}, {8192, 50'257}},
     .launch = persistent},
};
inline constexpr ForwardLadder kForwardLadder{.name = "forward",
                                              .kernels = "layernorm_",
                                              .steps = kForward,
                                              .validate = validate,
                                              .is_empty = is_empty};

using BackwardLadder = tile::Ladder<BackwardProblem, BackwardBuffers>;
inline constexpr BackwardLadder::Step kBackward[] = {
    {.name = "atomics",
     .idea = "every row adds to dgamma and dbeta",
     .types = kTypes,
     .needs = {},
     .takes = nullptr,
     .otherwise = "",
     .shows = kShows,
     .launch = atomics,
     .workspace_bytes = workspace_bytes},
    {.name = "two_stage",
     .idea = "groups of rows are summed, then the groups, always in the same order",
     .types = kTypes,
     .needs = {},
     .takes = nullptr,
     .otherwise = "",
     .shows = kShows,
     .launch = two_stage,
     .workspace_bytes = workspace_bytes},
    {.name = "persistent",
     .idea = "a block walks over its rows and keeps its sums in registers",
     .types = kTypes,
     .needs = {tile::Feature::cp_async},
     .takes = takes_persistent,
     .otherwise = "two_stage",
     .shows = {{37, 1032}, {32'768, 4096}},
     .launch = persistent,
     .workspace_bytes = workspace_bytes},
    {.name = "cluster",
     .idea = "a row in the shared memory of several blocks",
     .types = kTypes,
     .needs = {tile::Feature::cluster},
     .takes = takes_cluster,
     .otherwise = "persistent",
     .shows = {{3, 17'001}, {8192, 32'768}},
     .launch = cluster,
     .workspace_bytes = workspace_bytes},
    {.name = "split",
     .idea = "rows' pieces go to any blocks of the card",
     .types = kTypes,
     .needs = {},
     .takes = takes_split,
     .otherwise = "cluster",
     .shows = {{2, 140'001}, {64, 1'000'001}},
     .launch = split,
     .workspace_bytes = workspace_bytes},
    {.name = "exchange",
     .idea = "blocks keep their columns of all rows, and exchange sums",
     .types = kTypes,
     .needs = {tile::Feature::tma},
     .takes = takes_exchange,
     .otherwise = "split",
     .shows = {{17, 17'001}, {8192, 50'257}},
     .launch = exchange,
     .workspace_bytes = workspace_bytes},
};
inline constexpr BackwardLadder kBackwardLadder{.name = "backward",
                                                .kernels = "layernorm_backward_",
                                                .steps = kBackward,
                                                .validate = validate,
                                                .is_empty = is_empty};

}  // namespace layernorm
