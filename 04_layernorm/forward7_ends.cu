// Forward, step 7: rows that begin anywhere.
// Idea: a row that begins anywhere is a head of less than 16 bytes, chunks that are aligned in
//       memory, and a tail. The chunks move as in step 3, and nothing within a chunk is masked.
//       Each element of head and tail belongs to a lane of its own, beside that lane's chunks.
// Change: from step 3, the ends (tile::RowEnds); and gamma and beta, which begin at a chunk
//         where the row does not. A thread loads the two chunks in which its columns of gamma lie.
//         Which half of which word it takes is the same for the whole row, so it is a constant in
//         each of eight branches. The parts of a warp have rows that begin alike.
// Limit: memory, for rows of 1,024 to 32,768 elements; instructions in shorter ones.
#include "layernorm.cuh"
#include "tile/basics.cuh"
#include "tile/host/chunks.hpp"
#include "tile/host/launch.hpp"
#include "tile/register_slice.cuh"

namespace layernorm {
namespace {

/// Threads of a block at most. 64 registers a thread hold 32 floats and the rest, or nearly: a lane
/// with four chunks and an end has 72.
[[maybe_unused]] constexpr int max_threads(int elements, bool several_rows) {
  if (several_rows) return tile::kThreadsOfSeveralRows;
  return elements == kPacked ? 512 : tile::kMaxThreadsPerBlock;
}

/// The order of short rows: every eighth row begins alike, at the latest. So `run` of these follow
/// one another, then as many that begin otherwise. Then the warps of a multiprocessor mostly need
/// the same branch of store_shifted(), whose code its cache holds, and the parts of a warp always.
struct RowOrder {
  static constexpr int kPeriod = 8;
  int log2_run;

  __host__ __device__ std::int64_t rows_together() const {
    return std::int64_t{kPeriod} << log2_run;
  }
  __device__ std::int64_t row(std::int64_t index) const {
    const std::int64_t first = index & -rows_together();
    const auto rest = static_cast<int>(index - first), run = 1 << log2_run;
    return first + (rest & (run - 1)) * kPeriod + (rest >> log2_run);
  }
};

// snippet-begin shifts
/// Elements from kShift on of the two chunks at `from`; `fill` if there are none.
template <int kShift, class T, int kWidth>
__device__ __forceinline__ void load_from(const T* from, float fill, float (&value)[kWidth]) {
  using Chunk = tile::Chunk<T, kWidth>;
  float two[2][kWidth];
  (from ? Chunk::load(from) : Chunk::filled(fill)).to_floats(two[0]);
  if (kShift > 0) (from ? Chunk::load(from + kWidth) : Chunk::filled(fill)).to_floats(two[1]);
#pragma unroll
  for (int e = 0; e < kWidth; ++e) value[e] = two[(kShift + e) / kWidth][(kShift + e) % kWidth];
}

/// y = gamma (x - mean) rstd + beta in the first `cols` columns of a slice, before which gamma and
/// beta begin `shift` elements. In each branch the compiler knows the shift, and takes the right
/// halves of words without an instruction. Rows of many shifts share a multiprocessor, and the code
/// of their branches its cache. So a branch has one loop if gamma and beta are given, and asks in
/// each chunk whether the thread has it.
template <int kShift = 0, class Slice, bool kPacked, class T>
__device__ __forceinline__ void store_shifted(int shift, const SliceValues<Slice, kPacked>& values,
                                              tile::ChunkColumns<Slice::kChunkWidth> columns,
                                              const T* gamma,  // [shift + cols], or null
                                              const T* beta,   // [shift + cols], or null
                                              T* y,            // [cols]
                                              float rstd, int cols) {
  constexpr int kWidth = Slice::kChunkWidth;
  if constexpr (kShift + 1 < kWidth) {
    if (shift != kShift) {
      return store_shifted<kShift + 1>(shift, values, columns, gamma, beta, y, rstd, cols);
    }
  }
  const auto store = [&](auto has_both) {  // gamma and beta
    constexpr bool kBoth = decltype(has_both)::value;
#pragma unroll
    for (int i = 0; i < Slice::kChunks; ++i) {
      const int col = columns.column(i);
      if (col >= cols) continue;
      float value[kWidth], weight[kWidth], bias[kWidth];
      values.load(i, value);
      load_from<kShift>(kBoth || gamma ? gamma + col : nullptr, 1, weight);
      load_from<kShift>(kBoth || beta ? beta + col : nullptr, 0, bias);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) value[e] = weight[e] * (value[e] * rstd) + bias[e];
      Slice::Chunk::from_floats(value).store(y + col);
    }
  };
  (gamma && beta) ? store(std::true_type{}) : store(std::false_type{});
}
// snippet-end shifts

// snippet-begin kernel
template <class T, int kElements, bool kSeveralRows, int kLanes>
__global__ void __launch_bounds__(max_threads(kElements, kSeveralRows),
                                  (kSeveralRows && kElements * sizeof(T) == 64 ? 896 : 1024) /
                                      max_threads(kElements, kSeveralRows))
    layernorm_ends(tile::Rows<const T> x,  // [rows][cols]
                   const T* gamma,         // [cols], or null: all ones
                   const T* beta,          // [cols], or null: all zeros
                   tile::Rows<T> y,        // [rows][cols]
                   float* mean,            // [rows], or null
                   float* rstd,            // [rows], or null
                   std::int64_t rows, std::int64_t cols,
                   float per_col,  // 1 / cols: a division takes ten instructions
                   float eps,
                   bool centred,  // RMSNorm is not: its mean is 0
                   RowOrder order) {
  using Ends = tile::RowEnds<T>;
  using Slice = tile::RegisterSlice<T, Ends::kWidth, kElements>;
  constexpr int kEnds = Ends::of_lane(kLanes);
  __shared__ float sum_smem[tile::kWarp], squares_smem[tile::kWarp];
  const int thread = static_cast<int>(threadIdx.x);
  const tile::ChunkColumns<Ends::kWidth> columns{
      thread, kSeveralRows ? kLanes : static_cast<int>(blockDim.x)};
  const std::int64_t row =
      kElements == kPacked ? blockIdx.x : order.row(tile::row_of_thread<kSeveralRows>());
  const T* x_row = x[row];
  // Lanes without a row still take part in shuffles.
  const int row_cols = row < rows ? static_cast<int>(cols) : 0;
  const Ends ends(x_row, row_cols);
  const int whole = ends.chunks * Ends::kWidth;  // columns in chunks
  const float origin = centred && row_cols > 0 ? static_cast<float>(x_row[0]) : 0;
  SliceValues<Slice, kElements == kPacked> values(Slice(x_row + ends.head, whole, columns, 0),
                                                  origin);
  // This thread's elements of head and tail: x - x_0, then x - mean.
  int end_col[kEnds];
  float end[kEnds], ends_sum = 0, ends_squares = 0;
#pragma unroll
  for (int i = 0; i < kEnds; ++i) {
    end_col[i] = thread < kLanes ? ends.column(thread + i * kLanes) : row_cols;
    end[i] = end_col[i] < row_cols ? static_cast<float>(x_row[end_col[i]]) - origin : 0;
    ends_sum += end[i];
  }

  // mean = x_0 + sum (x - x_0) / n; row_mean is the second term
  float row_mean = 0;
  if (centred) {
    row_mean = tile::reduce_row<kSeveralRows>(values.sum(whole) + ends_sum, tile::Add{}, sum_smem,
                                              kLanes) *
               per_col;
  }
  // rstd = 1 / sqrt(sum (x - mean)^2 / n + eps)
#pragma unroll
  for (int i = 0; i < kEnds; ++i) {
    end[i] -= row_mean;
    if (end_col[i] < row_cols) ends_squares += end[i] * end[i];
  }
  const float squares = tile::reduce_row<kSeveralRows>(
      values.centre(row_mean, whole) + ends_squares, tile::Add{}, squares_smem, kLanes);
  const float row_rstd = rsqrtf(squares * per_col + eps);
  // y = gamma xhat + beta
  if (kSeveralRows) __syncwarp();  // all lanes have read x_0, and y may be x
  T* y_row = y[row];
#pragma unroll
  for (int i = 0; i < kEnds; ++i) {
    const int col = end_col[i];
    if (col >= row_cols) continue;
    const float weight = gamma ? static_cast<float>(gamma[col]) : 1;
    const float shift = beta ? static_cast<float>(beta[col]) : 0;
    y_row[col] = static_cast<T>(weight * (end[i] * row_rstd) + shift);
  }
  store_shifted(ends.head, values, columns, gamma, beta, y_row + ends.head, row_rstd, whole);
  if (thread != 0 || row >= rows) return;
  if (mean) mean[row] = origin + row_mean;
  if (rstd) rstd[row] = row_rstd;
}
// snippet-end kernel

}  // namespace

tile::Status takes_ends(const ForwardProblem& p, const ForwardBuffers& b, const tile::Device&) {
  const std::string cols = std::to_string(p.cols);
  const auto width = static_cast<std::int64_t>(16 / tile::size_bytes(p.type));
  if (check_chunks(p, b).ok()) return tile::unsupported("cols", cols + " fill chunks of 16 bytes");
  if (p.cols < 2 * width) return tile::unsupported("cols", cols + " are less than two chunks");
  TILE_TRY(tile::check_alike(p.type, b.x, p.ldx, "y", b.y, "ldy", p.ldy));
  for (const auto& [name, data] : {std::pair{"gamma", b.gamma}, std::pair{"beta", b.beta}}) {
    if (reinterpret_cast<std::uintptr_t>(data) % 16 == 0) continue;
    return tile::unsupported(name, "is not aligned to 16 bytes");
  }
  if (ends_plan(p).chunks > 0) return {};
  return tile::unsupported("cols", cols + " are more than registers hold");
}

tile::Status ends(const ForwardProblem& p, const ForwardBuffers& b, void* stream) {
  const EndsPlan plan = ends_plan(p);
  const int rows_of_block = plan.several_rows ? tile::kThreadsOfSeveralRows / plan.threads : 1;
  // Measured on an H200: long runs cost where two rows share a sector that the L2 no longer has,
  // and where rows are so long that a few of them fill a multiprocessor.
  RowOrder order{2};
  const bool is_short = p.cols * static_cast<std::int64_t>(tile::size_bytes(p.type)) <= 4096;
  while (is_short && order.log2_run < 6 && order.rows_together() < p.rows) ++order.log2_run;
  const std::int64_t rows = (p.rows + order.rows_together() - 1) & -order.rows_together();
  unsigned blocks = 0;
  TILE_TRY(tile::blocks_for("rows", rows, rows_of_block, &blocks));
  return tile::with_element_type(p.type, [&](auto element) {
    using T = decltype(element);
    constexpr int kWidth = 16 / sizeof(T);
    const auto launch = [&]<int kElements, bool kSeveralRows, int kLanes>() {
      return tile::launch(layernorm_ends<T, kElements, kSeveralRows, kLanes>, "layernorm_ends",
                          blocks, dim3(plan.threads, rows_of_block), 0, stream,
                          tile::Rows<const T>{static_cast<const T*>(b.x), p.ldx},
                          static_cast<const T*>(b.gamma), static_cast<const T*>(b.beta),
                          tile::Rows<T>{static_cast<T*>(b.y), p.ldy}, b.mean, b.rstd, p.rows,
                          p.cols, static_cast<float>(1 / static_cast<double>(p.cols)), p.eps,
                          p.norm == Norm::layer, order);
    };
    if (plan.several_rows) {
      if (plan.threads == 8) return launch.template operator()<3 * kWidth, true, 8>();
      if (plan.threads == 16) {
        return plan.chunks == 2 ? launch.template operator()<2 * kWidth, true, 16>()
                                : launch.template operator()<4 * kWidth, true, 16>();
      }
      if (plan.chunks == 2) return launch.template operator()<2 * kWidth, true, 32>();
      return plan.chunks == 3 ? launch.template operator()<3 * kWidth, true, 32>()
                              : launch.template operator()<4 * kWidth, true, 32>();
    }
    if constexpr (sizeof(T) == 2) {
      if (plan.chunks * kWidth == kPacked) return launch.template operator()<kPacked, false, 32>();
    }
    return plan.chunks * kWidth == 24 ? launch.template operator()<24, false, 32>()
                                      : launch.template operator()<kFloats, false, 32>();
  });
}

}  // namespace layernorm
