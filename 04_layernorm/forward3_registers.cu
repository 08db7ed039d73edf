// Forward, step 3: a row in registers.
// Idea: with the row in the registers of its threads (chapter 03), a second pass over it costs no
//       memory. So the plain two-pass variance is back, and the row is read once.
// Change: every thread loads its elements at once, 16 bytes with an instruction. A row of up to
//         1,024 elements belongs to a warp or a part of one.
// Limit: memory, at the speed of a copy, for rows of up to 32,768 elements, or 8,192 if chunks of
//        16 bytes do not fill them. gamma and beta are read with every row, from the caches.
#include "layernorm.cuh"
#include "tile/basics.cuh"
#include "tile/host/launch.hpp"
#include "tile/register_slice.cuh"

namespace layernorm {
namespace {

/// Threads of a block at most. 64 registers a thread hold 32 floats and the rest. Used in launch
/// bounds only, which the CPU device ignores.
[[maybe_unused]] constexpr int max_threads(int elements, bool several_rows) {
  if (several_rows) return tile::kThreadsOfSeveralRows;
  return elements == kPacked ? 512 : tile::kMaxThreadsPerBlock;
}

// snippet-begin kernel
template <class T, int kWidth, int kElements, bool kSeveralRows>
__global__ void __launch_bounds__(max_threads(kElements, kSeveralRows),
                                  1024 / max_threads(kElements, kSeveralRows))
    layernorm_registers(tile::Rows<const T> x,  // [rows][cols]
                        const T* gamma,         // [cols], or null: all ones
                        const T* beta,          // [cols], or null: all zeros
                        tile::Rows<T> y,        // [rows][cols]
                        float* mean,            // [rows], or null
                        float* rstd,            // [rows], or null
                        std::int64_t rows, std::int64_t cols,
                        float per_col,  // 1 / cols: a division takes ten instructions
                        float eps,
                        bool centred) {  // RMSNorm is not: its mean is 0
  using Slice = tile::RegisterSlice<T, kWidth, kElements>;
  __shared__ float sum_smem[tile::kMaxThreadsPerBlock / tile::kWarp];
  __shared__ float squares_smem[tile::kMaxThreadsPerBlock / tile::kWarp];
  const tile::ChunkColumns<kWidth> columns{static_cast<int>(threadIdx.x),
                                           static_cast<int>(blockDim.x)};
  const std::int64_t row = tile::row_of_thread<kSeveralRows>();
  // Lanes without a row still take part in shuffles.
  const int row_cols = row < rows ? static_cast<int>(cols) : 0;
  const float origin = centred && row < rows ? static_cast<float>(x[row][0]) : 0;
  SliceValues<Slice, kElements == kPacked> values(Slice(x[row], row_cols, columns, 0), origin);

  // mean = x_0 + sum (x - x_0) / n; row_mean is the second term
  float row_mean = 0;
  if (centred) {
    row_mean =
        tile::reduce_row<kSeveralRows>(values.sum(row_cols), tile::Add{}, sum_smem) * per_col;
  }
  // rstd = 1 / sqrt(sum (x - mean)^2 / n + eps)
  const float squares =
      tile::reduce_row<kSeveralRows>(values.centre(row_mean, row_cols), tile::Add{}, squares_smem);
  const float row_rstd = rsqrtf(squares * per_col + eps);
  // y = gamma xhat + beta
  if (kSeveralRows) __syncwarp();  // all lanes have read x_0, and y may be x
  values.store(gamma, beta, y[row], row_rstd, row_cols);
  if (threadIdx.x != 0 || row >= rows) return;
  if (mean) mean[row] = origin + row_mean;
  if (rstd) rstd[row] = row_rstd;
}
// snippet-end kernel

}  // namespace

tile::Status takes_registers(const ForwardProblem& p, const ForwardBuffers& b,
                             const tile::Device&) {
  if (register_plan(p, b).fits) return {};
  return tile::unsupported("cols", std::to_string(p.cols) + " are more than registers hold");
}

tile::Status registers(const ForwardProblem& p, const ForwardBuffers& b, void* stream) {
  const tile::RowPlan plan = register_plan(p, b);
  unsigned blocks = 0;
  TILE_TRY(tile::blocks_for("rows", p.rows, plan.rows(), &blocks));
  return tile::with_element_type(p.type, [&](auto element) {
    using T = decltype(element);
    auto launch = [&](auto width, auto elements, auto several_rows, auto) {
      return tile::launch(layernorm_registers<T, width, elements, several_rows>,
                          "layernorm_registers", blocks, dim3(plan.threads, plan.rows()), 0, stream,
                          tile::Rows<const T>{static_cast<const T*>(b.x), p.ldx},
                          static_cast<const T*>(b.gamma), static_cast<const T*>(b.beta),
                          tile::Rows<T>{static_cast<T*>(b.y), p.ldy}, b.mean, b.rstd, p.rows,
                          p.cols, static_cast<float>(1 / static_cast<double>(p.cols)), p.eps,
                          p.norm == Norm::layer);
    };
    if constexpr (sizeof(T) == 2) {
      if (plan.elements == kPacked) return tile::with_plan<T, kPacked>(plan, launch);
    }
    return tile::with_plan<T, kFloats>(plan, launch);
  });
}

}  // namespace layernorm
