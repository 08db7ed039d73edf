// Step 3: a row in registers.
// Idea: with the row in the registers of its threads (chapter 03, step 5), a second pass over it
//       costs no memory. So the plain two-pass variance is back, and the row is read once.
// Change: every thread loads its elements at once, 16 bytes with an instruction. Rows of up to
//         1,024 elements are a warp's or a part of a warp's.
// Limit: memory, at the speed of a copy, for rows of up to 32,768 elements, or 8,192 if they cannot
//        be read in chunks of 16 bytes; longer ones go the way of step 2. gamma and beta are read
//        with every row, from the caches.
#include "layernorm.cuh"
#include "tile/row_plan.hpp"
#include "vectors.cuh"

namespace layernorm {
namespace {

/// Threads of a block at most, and blocks that a multiprocessor must have registers for. 64
/// registers a thread hold 32 floats and the rest.
template <int kElements, bool kSeveralRows>
struct Block {
  static constexpr int kThreads = kSeveralRows          ? tile::kThreadsOfShortRows
                                  : kElements == kWords ? 512
                                                        : tile::kMaxThreadsPerBlock;
  static constexpr int kAtOnce = 1024 / kThreads;
};

// snippet-begin kernel
template <class T, int kWidth, int kElements, bool kSeveralRows>
__global__ void __launch_bounds__(Block<kElements, kSeveralRows>::kThreads,
                                  Block<kElements, kSeveralRows>::kAtOnce)
    layernorm_registers(Arguments<T> a) {
  using Part = tile::RegisterSlice<T, kWidth, kElements>;
  using Values = std::conditional_t<kElements == kWords, Words<Part>, Floats<Part>>;
  __shared__ float sum_smem[tile::kMaxThreadsPerBlock / tile::kWarp];
  __shared__ float squares_smem[tile::kMaxThreadsPerBlock / tile::kWarp];
  const tile::ChunkColumns<kWidth> place{static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x)};
  const std::int64_t row = tile::row_of_thread<kSeveralRows>();
  // Lanes without a row still take part in shuffles.
  const int cols = row < a.rows ? static_cast<int>(a.cols) : 0;
  Values x(Part(a.x[row], cols, place, 0));

  float mean = 0;
  if (a.centred) {
    mean = tile::reduce_row<kSeveralRows>(x.sum(), tile::Add{}, sum_smem) * a.per_col;
  }
  const float squares =
      tile::reduce_row<kSeveralRows>(x.centre(mean, cols), tile::Add{}, squares_smem);
  const float rstd = a.rstd_of(squares);
  store_part<Part>(x, a, a.y[row], 0, cols, rstd, place);
  if (threadIdx.x == 0 && row < a.rows) a.save(row, mean, rstd);
}
// snippet-end kernel

}  // namespace

tile::Status registers(const Problem& problem, const Buffers& buffers, void* stream) {
  if (tile::Status s = forward_only(problem); !s.ok()) return s;
  if (tile::Status s = validate(problem, buffers); !s.ok()) return s;
  const tile::RowPlan plan = forward_plan(problem, buffers);
  if (!plan.fits) return welford(problem, buffers, stream);
  return with_arguments(problem, buffers, [&]<class T>(const Arguments<T>& a) -> tile::Status {
    unsigned blocks = 0;
    if (tile::Status s = tile::blocks_for("rows", a.rows, plan.rows(), &blocks); !s.ok()) return s;
    auto launch = [&](auto width, auto elements, auto several_rows, auto) {
      layernorm_registers<T, width, elements, several_rows>
          <<<blocks, dim3(plan.threads, plan.rows()), 0, static_cast<cudaStream_t>(stream)>>>(a);
      return tile::launch_status("layernorm_registers");
    };
    if constexpr (sizeof(T) == 2) {
      if (plan.elements == kWords) return tile::with_plan<T, kWords>(plan, launch);
    }
    return tile::with_plan<T, kFloats>(plan, launch);
  });
}

}  // namespace layernorm
