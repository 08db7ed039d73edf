// Refused: all parts count the same
#include "exercises/exercises.hpp"
#include "softmax.cuh"

namespace softmax {
namespace {

constexpr int kThreads = 128;

__global__ void merge_partials_kernel(Partials partials,  // see exercises.hpp for the shapes
                                      float* average) {   // [rows][width]
  const std::int64_t row = blockIdx.x;
  for (std::int64_t col = threadIdx.x; col < partials.width; col += kThreads) {
    float total = 0;
    for (std::int64_t part = 0; part < partials.parts; ++part) {
      const std::int64_t i = part * partials.rows + row;
      if (partials.sum[i] != 0) {
        total += partials.weighted[i * partials.width + col] / partials.sum[i];
      }
    }
    average[row * partials.width + col] = total / partials.parts;
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
