// Exercise 04.3: GroupNorm
//
// Images have channels, and each channel has a number for every position. GroupNorm (Wu and He
// 2018, arXiv 1803.08494) puts neighbouring channels into groups. Each group of each image is
// shifted and scaled for itself, over all its channels and positions: 6 channels in 2 groups have a
// mean and an rstd of channels 0 to 2, and others of channels 3 to 5. Then every channel has its
// own gamma and beta.
// Write the kernel: a block for each group of each image. It is LayerNorm with other rows. Where
// does a block's group lie in [batch][channels][positions]? To which channel does a number belong?
// Check it with: ./tour exercise 04.3
#include "exercises/exercises.hpp"
#include "tile/basics.cuh"
#include "tile/reduce.cuh"

namespace layernorm {
namespace {

constexpr int kThreads = 256;

__global__ void group_norm_kernel(const float* x,      // [batch][channels][positions]
                                  const float* gamma,  // [channels]
                                  const float* beta,   // [channels]
                                  float* y,            // [batch][channels][positions]
                                  std::int64_t channels, std::int64_t positions,
                                  std::int64_t groups, float eps) {
  // TODO: Which image and which group are this block's? The numbers may lie far from zero.
}

}  // namespace

tile::Status group_norm(const Grouped& shape, const float* x, const float* gamma, const float* beta,
                        float* y) {
  if (shape.groups < 1 || shape.channels % shape.groups != 0) {
    return tile::invalid_argument("groups", "the channels cannot be divided among them");
  }
  if (shape.batch == 0 || shape.numbers() == 0) return {};
  unsigned blocks = 0;
  TILE_TRY(tile::blocks_for("batch and groups", shape.batch * shape.groups, 1, &blocks));
  group_norm_kernel<<<blocks, kThreads>>>(x, gamma, beta, y, shape.channels, shape.positions,
                                          shape.groups, shape.eps);
  return tile::launch_status("group_norm_kernel");
}

}  // namespace layernorm
