// Step 5: a row in registers.
// Idea: as many threads share a row as it takes to hold all of it in their registers. Each loads
//       its elements once, 16 bytes with an instruction and all of them at once, and stores once.
// Change: a thread has up to 32 elements (tile/row_plan.hpp). A row of up to 1,024 is a warp's or
//         a part of a warp's, so that it needs no barrier; longer ones are a block's.
// Limit: memory, at the speed of a copy. A block has registers for 32,768 elements forward, 16,384
//        of both inputs backward, and for 8,192 with causal or log, or element by element. Longer
//        rows go the way of step 4.
#include "parts.cuh"
#include "tile/row_plan.hpp"

namespace softmax {
namespace {

/// A thread's part of a row between the read and the write. Its exponentials stay where its numbers
/// were, relative to the greatest of its own; at the end one factor corrects all of them. So one
/// reduction over the row does, and no exponential is computed twice.
template <class T, int kWidth, int kElements, bool kPlain>
class ForwardPart {
 public:
  __device__ __forceinline__ ForwardPart(const T* x, const Columns& columns,
                                         tile::ChunkColumns<kWidth> place)
      : place_(place) {
    const Part part(x, columns.visible, place, -INFINITY);
#pragma unroll
    for (int i = 0; i < Part::kChunks; ++i) {
      load_visible<kPlain>(part, i, columns.visible, value_[i]);
    }
  }

  // snippet-begin part
  /// Maximum and sum of the thread's own numbers.
  __device__ __forceinline__ tile::MaxSum reduce(const Options& options) {
    own_ = {-INFINITY, 0};
#pragma unroll
    for (const auto& chunk : value_) {
#pragma unroll
      for (const float x : chunk) own_.max = fmaxf(own_.max, x);
    }
    const float reference = tile::finite_reference(own_.max);
#pragma unroll
    for (auto& chunk : value_) {
#pragma unroll
      for (float& x : chunk) {
        const float power = tile::ptx::exp2_approx(options.factor * (x - reference));
        own_.sum += power;
        if (kPlain || !options.log) x = power;  // the logarithm is computed from x itself
      }
    }
    return own_;
  }

  /// Writes y. `row` is the reduction over the whole row.
  __device__ __forceinline__ void store(T* y, const Columns& columns, tile::MaxSum row,
                                        const Options& options) const {
    const Normalize<kPlain> normalize(options, row);
    // 2^(f (x - own)) becomes 2^(f (x - row)) / sum; 0 if there are only -infinities here.
    const float correction =
        tile::ptx::exp2_approx(options.factor * (own_.max - normalize.max)) * normalize.last;
#pragma unroll
    for (int i = 0; i < Part::kChunks; ++i) {
      const int col = place_.column(i);
      if (col >= columns.cols) continue;
      float result[kWidth];
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        const float x = value_[i][e];
        result[e] = kPlain || !options.log ? x * correction : normalize(x);
        if (!kPlain && col + e >= columns.visible) result[e] = options.hidden();
      }
      Part::Chunk::from_floats(result).store(y + col);
    }
  }
  // snippet-end part

 private:
  using Part = tile::RegisterSlice<T, kWidth, kElements>;
  tile::ChunkColumns<kWidth> place_;
  tile::MaxSum own_;
  float value_[Part::kChunks][kWidth];  // x, then 2^(factor (x - own max))
};

// snippet-begin kernel
template <class T, int kWidth, int kElements, bool kSeveralRows, bool kPlain>
__global__ void __launch_bounds__(kSeveralRows ? tile::kThreadsOfShortRows : tile::kMaxThreadsPerBlock,
                                  kSeveralRows ? 6 : 1)
    softmax_registers(tile::Rows<const T> x,  // [rows][cols]
                      tile::Rows<T> y,        // [rows][cols]
                      Options options) {
  __shared__ tile::MaxSum seen_smem[tile::kMaxThreadsPerBlock / tile::kWarp];
  const tile::ChunkColumns<kWidth> place{static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x)};
  const std::int64_t row = tile::row_of_thread<kSeveralRows>();
  const Columns columns = columns_of_row<kPlain>(options, row);

  ForwardPart<T, kWidth, kElements, kPlain> part(x[row], columns, place);
  const tile::MaxSum seen = tile::reduce_row<kSeveralRows>(
      part.reduce(options), tile::MergeMaxSum{options.factor}, seen_smem);
  part.store(y[row], columns, seen, options);
}
// snippet-end kernel

template <class T, int kWidth, int kElements, bool kSeveralRows, bool kPlain>
__global__ void __launch_bounds__(kSeveralRows ? tile::kThreadsOfShortRows : tile::kMaxThreadsPerBlock,
                                  kSeveralRows ? 3 : 1)
    softmax_backward_registers(tile::Rows<const T> y,   // [rows][cols]
                               tile::Rows<const T> dy,  // [rows][cols]
                               tile::Rows<T> dx,        // [rows][cols]
                               Options options) {
  using Part = tile::RegisterSlice<T, kWidth, kElements>;
  __shared__ float sum_smem[tile::kMaxThreadsPerBlock / tile::kWarp];
  const tile::ChunkColumns<kWidth> place{static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x)};
  const std::int64_t row = tile::row_of_thread<kSeveralRows>();
  const Columns columns = columns_of_row<kPlain>(options, row);
  const Gradient<kPlain> gradient(options);

  const Part y_part(y[row], columns.visible, place, 0);
  const Part dy_part(dy[row], columns.visible, place, 0);
  const float sum = tile::reduce_row<kSeveralRows>(
      reduce_part<kPlain>(y_part, dy_part, columns, gradient), tile::Add{}, sum_smem);
  store_part<kPlain>(y_part, dy_part, dx[row], columns, sum, gradient);
}

}  // namespace

tile::Status registers(const Problem& problem, const Buffers& buffers, void* stream) {
  if (tile::Status s = validate(problem, buffers); !s.ok()) return s;
  // Backward a thread holds two such parts.
  constexpr int kForward = 32, kBackward = 16;
  const bool forward = problem.direction == tile::Direction::forward;
  const tile::RowPlan plan =
      tile::plan_row(problem.cols, vectors_fit(problem, buffers), !problem.causal && !problem.log,
                     forward ? kForward : kBackward);
  if (!plan.fits) return online(problem, buffers, stream);
  const dim3 block(plan.threads, plan.rows());
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  return launch_on_rows(
      problem, buffers, plan.rows(), [&]<class T>(const Arguments<T>& a, unsigned blocks) {
        if (forward) {
          return tile::with_plan<T, kForward>(
              plan, [&](auto width, auto elements, auto several_rows, auto plain) {
                softmax_registers<T, width, elements, several_rows, plain>
                    <<<blocks, block, 0, cuda_stream>>>(a.x, a.y, a.options);
                return tile::launch_status("softmax_registers");
              });
        }
        return tile::with_plan<T, kBackward>(
            plan, [&](auto width, auto elements, auto several_rows, auto plain) {
              softmax_backward_registers<T, width, elements, several_rows, plain>
                  <<<blocks, block, 0, cuda_stream>>>(a.y_in, a.dy, a.dx, a.options);
              return tile::launch_status("softmax_backward_registers");
            });
      });
}

}  // namespace softmax
