// Embedding backward, step 1: every token adds to its position's row.
// Idea: the forward pass read a row of the table for each token. The gradient takes the same way
//       back: each token adds its dy to the row of its position, with atomics, in fp32 in the
//       workspace. A second kernel rounds the sums.
// Limit: the order in which tokens of a position are added, and so the rounding of their sum,
//        differs from run to run. Sums are cleared, added to and read again, in fp32. And if
//        hundreds of tokens have the same position, as padding does, their atomics contend for the
//        same addresses.
#include "embedding/embedding.hpp"
#include "rotary/launch.hpp"
#include "rotary/rotary.cuh"

namespace rope {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void embedding_backward_atomics(const T* dy,  // [batch][length][dim]
                                           float* sums,  // [positions][dim], zero at first
                                           Positions positions, std::int64_t all, int dim) {
  const std::int64_t at = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= all) return;
  const std::int64_t of_all = at / dim;
  const int col = static_cast<int>(at % dim);
  const int token = static_cast<int>(of_all % positions.length);
  const int position = positions.of(static_cast<int>(of_all / positions.length), token);
  if (position < 0) return;  // not in the table
  // dtable[position] += dy
  atomicAdd(&sums[std::int64_t{position} * dim + col], static_cast<float>(dy[at]));
}

template <class T>
__global__ void embedding_backward_atomics_round(const float* sums,  // [all]
                                                 T* dtable,          // [all]
                                                 std::int64_t all) {
  const std::int64_t at = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at < all) dtable[at] = static_cast<T>(sums[at]);
}

}  // namespace

tile::Status takes_atomics(const EmbeddingProblem&, const EmbeddingBackwardBuffers& b,
                           const tile::Device&) {
  if (!b.workspace) return tile::unsupported("workspace", "is null");
  return {};
}

tile::Status atomics(const EmbeddingProblem& p, const EmbeddingBackwardBuffers& b, void* stream) {
  const std::int64_t all = p.batch * p.length * p.dim, of_table = p.table_positions * p.dim;
  unsigned blocks = 0, table_blocks = 0;
  TILE_TRY(tile::blocks_for("batch, length and dim", all, kThreads, &blocks));
  TILE_TRY(tile::blocks_for("table_positions and dim", of_table, kThreads, &table_blocks));
  auto* sums = static_cast<float*>(b.workspace);
  TILE_RETURN_IF_CUDA_ERROR(cudaMemsetAsync(sums, 0, static_cast<std::size_t>(sums_bytes(p)),
                                            static_cast<cudaStream_t>(stream)));
  return tile::with_element_type(p.type, [&](auto element) -> tile::Status {
    using T = decltype(element);
    TILE_TRY(tile::launch(embedding_backward_atomics<T>, "embedding_backward_atomics", blocks,
                          kThreads, 0, stream, static_cast<const T*>(b.dy), sums,
                          positions_of(p, b), all, p.dim));
    return tile::launch(embedding_backward_atomics_round<T>, "embedding_backward_atomics_round",
                        table_blocks, kThreads, 0, stream, sums, static_cast<T*>(b.dtable),
                        of_table);
  });
}

}  // namespace rope
