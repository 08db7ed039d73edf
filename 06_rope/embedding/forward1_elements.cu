// Embedding, step 1: a thread for each element.
// Idea: the table's row of a token's position is added to the token's hidden state. Neighbouring
//       threads have neighbouring elements of a row, so that both are read in whole lines.
// Limit: a thread moves two bytes at a time, and needs two divisions to find its token.
#include "embedding/embedding.hpp"
#include "rotary/launch.hpp"
#include "rotary/rotary.cuh"

namespace rope {
namespace {

constexpr int kThreads = 256;

// snippet-begin kernel
template <class T>
__global__ void embedding_elements(const T* x,      // [batch][length][dim], or null
                                   const T* table,  // [positions][dim]
                                   T* y,            // [batch][length][dim], may be x
                                   Positions positions, std::int64_t all, int dim) {
  const std::int64_t at = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= all) return;
  const std::int64_t of_all = at / dim;
  const int col = static_cast<int>(at % dim);
  const int token = static_cast<int>(of_all % positions.length);
  const int position = positions.of(static_cast<int>(of_all / positions.length), token);
  // y = x + table[position], and NaN for a token without a position in the table.
  float sum = NAN;
  if (position >= 0) {
    sum = static_cast<float>(table[std::int64_t{position} * dim + col]);
    if (x) sum += static_cast<float>(x[at]);
  }
  y[at] = static_cast<T>(sum);
}
// snippet-end kernel

}  // namespace

tile::Status elements(const EmbeddingProblem& p, const EmbeddingBuffers& b, void* stream) {
  const std::int64_t all = p.batch * p.length * p.dim;
  unsigned blocks = 0;
  TILE_TRY(tile::blocks_for("batch, length and dim", all, kThreads, &blocks));
  return tile::with_element_type(p.type, [&](auto element) {
    using T = decltype(element);
    return tile::launch(embedding_elements<T>, "embedding_elements", blocks, kThreads, 0, stream,
                        static_cast<const T*>(b.x), static_cast<const T*>(b.table),
                        static_cast<T*>(b.y), positions_of(p, b), all, p.dim);
  });
}

}  // namespace rope
