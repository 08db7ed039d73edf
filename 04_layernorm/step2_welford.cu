// Step 2: mean and variance in one pass.
// Idea: count, mean and squared distances can be kept up to date with every number, and of two
//       parts of a row they can be merged.
// Change: one loop and one reduction of triples (welford.cuh) in place of two of each. The sums of
//         x and of its square would do with less arithmetic, and fail where the mean is large:
//         their difference is what rounding left over.
// Limit: memory. Every row is read twice, and each load fetches one element.
#include "layernorm.cuh"
#include "welford.cuh"

namespace layernorm {
namespace {

constexpr int kThreads = 256;

// snippet-begin kernel
template <class T>
__global__ void layernorm_welford(Arguments<T> a) {
  __shared__ Moments seen_smem[kThreads / tile::kWarp];
  __shared__ float squares_smem[kThreads / tile::kWarp];
  const std::int64_t row = blockIdx.x;
  const T* x = a.x[row];

  float mean = 0, squares = 0;
  if (a.centred) {
    const MergeMoments merge;
    Moments seen = merge.identity();
    for (std::int64_t col = threadIdx.x; col < a.cols; col += kThreads) {
      seen = merge(seen, static_cast<float>(x[col]));
    }
    seen = tile::reduce_block(seen, merge, seen_smem);
    mean = seen.mean;
    squares = seen.squares;
  } else {
    for (std::int64_t col = threadIdx.x; col < a.cols; col += kThreads) {
      const float value = static_cast<float>(x[col]);
      squares += value * value;
    }
    squares = tile::reduce_block(squares, tile::Add{}, squares_smem);
  }
  const float rstd = a.rstd_of(squares);
  for (std::int64_t col = threadIdx.x; col < a.cols; col += kThreads) {
    const float xhat = (static_cast<float>(x[col]) - mean) * rstd;
    a.y[row][col] = static_cast<T>(a.gamma_of(col) * xhat + a.beta_of(col));
  }
  if (threadIdx.x == 0) a.save(row, mean, rstd);
}
// snippet-end kernel

}  // namespace

tile::Status welford(const Problem& problem, const Buffers& buffers, void* stream) {
  if (tile::Status s = forward_only(problem); !s.ok()) return s;
  return with_arguments(problem, buffers, [&]<class T>(const Arguments<T>& a) -> tile::Status {
    unsigned blocks = 0;
    if (tile::Status s = tile::blocks_for("rows", a.rows, 1, &blocks); !s.ok()) return s;
    layernorm_welford<T><<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(a);
    return tile::launch_status("layernorm_welford");
  });
}

}  // namespace layernorm
