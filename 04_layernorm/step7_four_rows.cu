// Step 7: forward, a thread has its columns of four rows.
// Idea: gamma and beta are the same for every row, so that a thread with the same columns of four
//       rows reads them once. A shuffle takes as long for a number that is needed as for one that
//       is not: the sums of four rows are added up together, in fewer shuffles than four sums.
// Change: rows of 64 bytes to 4 KiB. A thread has 16 bytes of each of its rows, a row two to eight
//         warps or a part of one. mean and rstd of a block's rows are saved together.
// Limit: memory. Longer rows, shorter ones, and those that no instruction of 16 bytes can read, go
//        the way of step 3, which takes any.
#include "layernorm.cuh"
#include "vectors.cuh"

namespace layernorm {
namespace {

constexpr int kRows = 4;               // of a thread
constexpr int kFewestThreads = kRows;  // of a row: a lane for the sum of each
// Of a row: the partial sums of so many warps, kRows of each, are one for each lane.
constexpr int kMostThreads = tile::kWarp / kRows * tile::kWarp;

// snippet-begin lanes
/// The sums over a group of `lanes` lanes, 4 at least, a power of two: its lane i gets the one of
/// row i / (lanes / 4). A lane gives away what it has of two rows for as much of the other two, in
/// the next round of one for the other, and has a single number for the rounds that remain.
__device__ __forceinline__ float exchange_and_add(const float (&own)[kRows], int lane, int lanes) {
  int distance = lanes / 2;
  auto exchange = [&](float lower, float upper) {
    const bool is_upper = (lane & distance) != 0;
    const float given = is_upper ? lower : upper;
    return (is_upper ? upper : lower) + __shfl_xor_sync(tile::kAllLanes, given, distance);
  };
  const float first = exchange(own[0], own[2]), second = exchange(own[1], own[3]);
  distance /= 2;
  return tile::reduce_lanes(exchange(first, second), tile::Add{}, distance);
}
// snippet-end lanes

/// Replaces what each thread has of its rows by the sums over the threads of these rows, to the
/// same bits in all of them. kParts: a row's threads are blockDim.x neighbouring lanes; otherwise
/// those of the block, and `partial` is of shared memory, which nobody has used before.
template <bool kParts>
__device__ __forceinline__ void add_up(float (&rows)[kRows], float* partial) {  // [warps][kRows]
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  const int lane = thread % tile::kWarp;
  const int lanes = kParts ? threads : tile::kWarp;
  const int lanes_of_sum = lanes / kRows;
  float sum = exchange_and_add(rows, lane, lanes);
  if constexpr (!kParts) {
    if (lane % lanes_of_sum == 0) {
      partial[thread / tile::kWarp * kRows + lane / lanes_of_sum] = sum;
    }
    __syncthreads();  // the sums of all warps are there
    // A lane each. Lanes that are kRows apart have sums of the same row.
    sum = lane < threads / tile::kWarp * kRows ? partial[lane] : 0;
#pragma unroll
    for (int distance = kRows; distance < tile::kWarp; distance *= 2) {
      sum += __shfl_xor_sync(tile::kAllLanes, sum, distance);
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    rows[i] = __shfl_sync(tile::kAllLanes, sum, kParts ? i * lanes_of_sum : i, lanes);
  }
}

// A multiprocessor has registers for 1,024 threads with 64 each: four chunks as floats take 32 of
// them. So many threads have 64 KiB of x on their way.
// snippet-begin kernel
template <class T, bool kParts>
__global__ void __launch_bounds__(kMostThreads, 1024 / kMostThreads)
    layernorm_four_rows(Arguments<T> a) {
  constexpr int kWidth = 16 / sizeof(T);
  using Chunk = tile::Chunk<T, kWidth>;
  __shared__ float sum_smem[tile::kWarp], squares_smem[tile::kWarp];  // [warps][kRows]
  // A thread's rows are as far apart as a block has groups of threads, so that neighbouring groups
  // read neighbouring rows.
  const int apart = kParts ? static_cast<int>(blockDim.y) : 1;
  const std::int64_t first =
      std::int64_t{blockIdx.x} * (kRows * apart) + (kParts ? threadIdx.y : 0);
  const int left = static_cast<int>(min(a.rows - first, std::int64_t{kRows * apart}));
  const int col = static_cast<int>(threadIdx.x) * kWidth;
  const bool has_columns = col < a.cols;

  Chunk chunk[kRows];
  // From row to row it is an addition, and ptxas keeps it one. What Rows and RowWalk do to keep it
  // from multiplying anew only costs here, 3 to 4 % (docs/notes/04_layernorm.md).
  const T* x = a.x.data + first * a.x.ld + col;
#pragma unroll
  for (int i = 0; i < kRows; ++i, x += apart * a.x.ld) {
    chunk[i] = Chunk::filled(0);
    if (has_columns && i * apart < left) chunk[i] = Chunk::load(x);
  }
  Parameters<Chunk> parameters;
  if (has_columns) parameters = Parameters<Chunk>(a, col);

  float value[kRows][kWidth], mean[kRows] = {}, rstd[kRows] = {};
#pragma unroll
  for (int i = 0; i < kRows; ++i) chunk[i].to_floats(value[i]);
  if (a.centred) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (const float v : value[i]) mean[i] += v;
    }
    add_up<kParts>(mean, sum_smem);
#pragma unroll
    for (float& m : mean) m *= a.per_col;
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (float& v : value[i]) {
      v -= mean[i];
      if (has_columns) rstd[i] += v * v;
    }
  }
  add_up<kParts>(rstd, squares_smem);
  // Neighbouring threads save those of neighbouring rows, before y takes the way to the L2.
  const int saved = static_cast<int>(threadIdx.x);
  float saved_mean = 0, saved_rstd = 0;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    rstd[i] = a.rstd_of(rstd[i]);
    if (saved == i) saved_mean = mean[i], saved_rstd = rstd[i];
  }
  if (saved < kRows && saved * apart < left) a.save(first + saved * apart, saved_mean, saved_rstd);

  float gamma[kWidth], beta[kWidth];
  parameters.gamma.to_floats(gamma);
  parameters.beta.to_floats(beta);
  T* y = a.y.data + first * a.y.ld + col;
#pragma unroll
  for (int i = 0; i < kRows; ++i, y += apart * a.y.ld) {
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      value[i][e] = gamma[e] * (value[i][e] * rstd[i]) + beta[e];
    }
    if (has_columns && i * apart < left) Chunk::from_floats(value[i]).store(y);
  }
}
// snippet-end kernel

}  // namespace

tile::Status four_rows(const Problem& problem, const Buffers& buffers, void* stream) {
  if (tile::Status s = forward_only(problem); !s.ok()) return s;
  if (tile::Status s = validate(problem, buffers); !s.ok()) return s;
  const std::int64_t chunks =
      problem.cols * static_cast<std::int64_t>(tile::size_bytes(problem.type)) / 16;
  if (!vectors_fit(problem, buffers) || chunks < kFewestThreads || chunks > kMostThreads) {
    return registers(problem, buffers, stream);
  }
  const bool parts = chunks <= tile::kWarp;
  unsigned threads = parts ? kFewestThreads : tile::kWarp;
  while (threads < chunks) threads += parts ? threads : tile::kWarp;
  const unsigned groups = parts ? tile::kThreadsOfShortRows / threads : 1;
  return with_arguments(problem, buffers, [&]<class T>(const Arguments<T>& a) -> tile::Status {
    unsigned blocks = 0;
    if (tile::Status s = tile::blocks_for("rows", a.rows, kRows * groups, &blocks); !s.ok()) {
      return s;
    }
    const auto kernel = parts ? layernorm_four_rows<T, true> : layernorm_four_rows<T, false>;
    kernel<<<blocks, dim3(threads, groups), 0, static_cast<cudaStream_t>(stream)>>>(a);
    return tile::launch_status("layernorm_four_rows");
  });
}

}  // namespace layernorm
