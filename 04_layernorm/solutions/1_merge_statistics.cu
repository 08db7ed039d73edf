// Exercise 04.1: statistics from parts
//
// Each row was cut into parts, some long, some short, some empty. Other blocks have stored the
// count, the mean and the squares of each part: what step 2 calls Moments. The row's numbers are
// not read again. Find the mean and rstd of the whole rows. Step 2 merges two parts at a time. Here
// all parts of a row lie ready, and sums of single floats will do. First the mean of the row. Then
// the squares: how far does a part's mean lie from the row's, and what does that add for each of
// its numbers? The numbers may lie far from zero. And 0 times NaN is NaN: use nothing of an empty
// part. Check it with: ./tour exercise 04.1
#include "exercises/exercises.hpp"
#include "tile/basics.cuh"
#include "tile/reduce.cuh"

namespace layernorm {
namespace {

constexpr int kThreads = 128;  // a warp for each row
constexpr int kRows = kThreads / tile::kWarp;

struct RowStatistics {
  float mean = 0, variance = 0;
};

/// A row's, in lane 0 of the warp, whose lanes all call it.
__device__ RowStatistics merge_row(const float* part_count,    // [parts]
                                   const float* part_mean,     // [parts]
                                   const float* part_squares,  // [parts]
                                   std::int64_t parts, int lane) {
  RowStatistics row;
  float count = 0, sum = 0;
  for (std::int64_t i = lane; i < parts; i += tile::kWarp) {
    if (part_count[i] == 0) continue;
    count += part_count[i];
    sum += part_count[i] * part_mean[i];
  }
  count = tile::reduce_lanes(count, tile::Add{});
  sum = tile::reduce_lanes(sum, tile::Add{});
  if (count > 0) {  // alike in all lanes
    row.mean = sum / count;
    float squares = 0;
    for (std::int64_t i = lane; i < parts; i += tile::kWarp) {
      if (part_count[i] == 0) continue;
      // Around a point at this distance from the part's mean, each number's square adds distance^2.
      const float distance = part_mean[i] - row.mean;
      squares += part_squares[i] + part_count[i] * (distance * distance);
    }
    row.variance = tile::reduce_lanes(squares, tile::Add{}) / count;
  }
  return row;
}

__global__ void merge_statistics_kernel(Parts p, float eps,
                                        float* mean,    // [rows]
                                        float* rstd) {  // [rows]
  const int warp = static_cast<int>(threadIdx.x) / tile::kWarp;
  const int lane = static_cast<int>(threadIdx.x) % tile::kWarp;
  const std::int64_t row = std::int64_t{blockIdx.x} * kRows + warp;
  if (row >= p.rows) return;  // a whole warp
  const std::int64_t first = row * p.parts;
  const RowStatistics found =
      merge_row(p.count + first, p.mean + first, p.squares + first, p.parts, lane);
  if (lane != 0) return;
  mean[row] = found.mean;
  rstd[row] = rsqrtf(found.variance + eps);
}

}  // namespace

tile::Status merge_statistics(const Parts& parts, float eps, float* mean, float* rstd) {
  if (parts.rows == 0) return {};
  unsigned blocks = 0;
  TILE_TRY(tile::blocks_for("rows", parts.rows, kRows, &blocks));
  merge_statistics_kernel<<<blocks, kThreads>>>(parts, eps, mean, rstd);
  return tile::launch_status("merge_statistics_kernel");
}

}  // namespace layernorm
