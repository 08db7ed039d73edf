// Embedding, step 2: 16 bytes at a time.
// Idea: a thread has the same chunk of 16 bytes of a token in several batch entries. Without
//       position ids these tokens have the same position, and one load of the table is enough for
//       all.
// Change: chunks, and several loads under way at once.
// Limit: memory.
#include "embedding/embedding.hpp"
#include "rotary/launch.hpp"
#include "rotary/rotary.cuh"
#include "tile/rows.cuh"

namespace rope {
namespace {

constexpr int kThreads = 256;
constexpr int kEntries = 4;  // batch entries of a thread

// snippet-begin kernel
template <class T>
__global__ void __launch_bounds__(kThreads)
    embedding_vectors(const T* x,      // [batch][length][dim], or null
                      const T* table,  // [positions][dim]
                      T* y,            // [batch][length][dim], may be x
                      Positions positions, unsigned all, int batch, int groups, int dim) {
  constexpr int kWidth = tile::Vector<T>::kCount;
  using Chunk = tile::Chunk<T, kWidth>;
  const unsigned at = blockIdx.x * kThreads + threadIdx.x;
  if (at >= all) return;
  const unsigned chunks = static_cast<unsigned>(dim / kWidth);
  const int col = static_cast<int>(at % chunks) * kWidth;
  const int token = static_cast<int>(at / chunks) % positions.length;
  // The thread's batch entries: first, first + groups, first + 2 groups, …
  const int first = static_cast<int>(at / chunks) / positions.length;
  const std::int64_t begin = (std::int64_t{first} * positions.length + token) * dim + col;
  const std::int64_t step = std::int64_t{groups} * positions.length * dim;

  Chunk of_x[kEntries], of_table[kEntries];
  int position[kEntries];
#pragma unroll
  for (int i = 0; i < kEntries; ++i) {
    position[i] = -1;
    if (first + i * groups >= batch) continue;
    if (x) of_x[i] = Chunk::load(x + begin + i * step);
    position[i] = positions.of(first + i * groups, token);
    if (i > 0 && !positions.ids) {
      of_table[i] = of_table[0];
    } else if (position[i] >= 0) {
      of_table[i] = Chunk::load(table + std::int64_t{position[i]} * dim + col);
    }
  }
  // y = x + table[position], and NaN for a token without a position in the table.
#pragma unroll
  for (int i = 0; i < kEntries; ++i) {
    if (first + i * groups >= batch) continue;
    float sum[kWidth], other[kWidth];
    of_table[i].to_floats(sum);
    of_x[i].to_floats(other);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      if (x) sum[e] += other[e];
      if (position[i] < 0) sum[e] = NAN;
    }
    Chunk::from_floats(sum).store(y + begin + i * step);
  }
}
// snippet-end kernel

std::int64_t groups_of(const EmbeddingProblem& p) { return (p.batch + kEntries - 1) / kEntries; }

/// The number of threads of a launch, or INT64_MAX if it overflows.
std::int64_t threads_of(const EmbeddingProblem& p) {
  const std::int64_t chunks = p.dim * static_cast<std::int64_t>(tile::size_bytes(p.type)) / 16;
  std::int64_t all = 0;
  return __builtin_mul_overflow(groups_of(p) * p.length, chunks, &all) ? INT64_MAX : all;
}

}  // namespace

tile::Status takes_vectors(const EmbeddingProblem& p, const EmbeddingBuffers& b,
                           const tile::Device&) {
  TILE_TRY(check_chunks(p, b));
  if (threads_of(p) > 0x7fffffff) {
    return tile::unsupported("batch, length and dim", "need more than 2^31 - 1 threads");
  }
  return {};
}

tile::Status vectors(const EmbeddingProblem& p, const EmbeddingBuffers& b, void* stream) {
  return tile::with_element_type(p.type, [&](auto element) {
    using T = decltype(element);
    const std::int64_t all = threads_of(p);
    const auto blocks = static_cast<unsigned>((all + kThreads - 1) / kThreads);
    return tile::launch(embedding_vectors<T>, "embedding_vectors", blocks, kThreads, 0, stream,
                        static_cast<const T*>(b.x), static_cast<const T*>(b.table),
                        static_cast<T*>(b.y), positions_of(p, b), all, p.batch, groups_of(p),
                        p.dim);
  });
}

}  // namespace rope
