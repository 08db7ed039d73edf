// Refused: the sums are added up as they are
#include "exercises/exercises.hpp"
#include "softmax.cuh"

namespace softmax {
namespace {

constexpr int kThreads = 128;

__global__ void merge_partials_kernel(Partials partials,  // see exercises.hpp for the shapes
                                      float* average) {   // [rows][width]
  const std::int64_t row = blockIdx.x;
  for (std::int64_t col = threadIdx.x; col < partials.width; col += kThreads) {
    float max = -INFINITY;
    for (std::int64_t part = 0; part < partials.parts; ++part) {
      max = fmaxf(max, partials.max[part * partials.rows + row]);
    }
    const float reference = tile::finite_reference(max);
    float sum = 0, weighted = 0;
    for (std::int64_t part = 0; part < partials.parts; ++part) {
      const std::int64_t i = part * partials.rows + row;
      const float factor = expf(partials.max[i] - reference);
      sum += partials.sum[i];
      weighted += factor * partials.weighted[i * partials.width + col];
    }
    average[row * partials.width + col] = sum == 0 ? 0 : weighted / sum;
  }
}

}  // namespace

tile::Status merge_partials(const Partials& partials, float* average) {
  if (partials.rows == 0 || partials.width == 0) return {};
  unsigned blocks = 0;
  if (tile::Status s = tile::blocks_for("rows", partials.rows, 1, &blocks); !s.ok()) return s;
  merge_partials_kernel<<<blocks, kThreads>>>(partials, average);
  return tile::launch_status("merge_partials_kernel");
}

}  // namespace softmax
