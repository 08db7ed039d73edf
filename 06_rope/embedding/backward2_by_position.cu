// Embedding backward, step 2: a block for each position, without atomics.
// Idea: a block has a row of dtable, or a part of a long one. It adds up the row's tokens in the
//       order in which they lie in memory, in registers, and writes each element once: zeros if no
//       token has the position. So the bits are the same in every run, and no workspace is needed.
//       Without position ids a batch entry has at most one token at a position, and the block knows
//       which. With ids the block looks at all of them, 1,024 at a time.
// Change: the loop over tokens is in the kernel, and the sums are in registers; chunks of 16 bytes,
//         or single elements where chunks do not fill rows or are not aligned.
// Limit: the ids. Every block reads all of them, from the L2: with 4,096 positions and rows of
//        4,096 elements of bf16, two blocks each, that is four times the bytes of dy. Sorting the
//        tokens by position would cost less, but needs a workspace and three more kernels: a count,
//        sums of the counts, and a distribution that keeps the tokens' order.
#include "embedding/embedding.hpp"
#include "rotary/launch.hpp"
#include "rotary/rotary.cuh"
#include "tile/rows.cuh"

namespace rope {
namespace {

constexpr int kThreads = 256;
// Ids that a thread looks at together: those of a block fill a 32-bit word for each lane of a warp.
constexpr int kIds = tile::kWarp * tile::kWarp / kThreads;
// Rows that a thread loads before it adds the first of them. Where tokens are bytes of a text, a
// quarter may be the same one: its block then waits for memory once for eight rows.
constexpr int kTogether = 8;

// snippet-begin kernel
template <class T, int kWidth>
__global__ void embedding_backward_by_position(const T* dy,  // [batch][length][dim]
                                               T* dtable,    // [positions][dim]
                                               Positions positions, int batch, int dim, int parts) {
  __shared__ unsigned found_smem[tile::kWarp];
  const int lane = static_cast<int>(threadIdx.x) % tile::kWarp;
  const int position = static_cast<int>(blockIdx.x) / parts;
  const int part = static_cast<int>(blockIdx.x) % parts;  // of the position's row
  const std::int64_t col = (std::int64_t{part} * kThreads + threadIdx.x) * kWidth;
  const bool has_columns = col < dim;  // threads without columns still look for tokens
  dy += has_columns ? col : 0;         // and read those of the first

  // dtable[position] = sum over its tokens of dy
  using Chunk = tile::Chunk<T, kWidth>;
  float sum[kWidth] = {};
  auto add = [&](const Chunk& row) {
    float value[kWidth];
    row.to_floats(value);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) sum[e] += value[e];
  };
  if (!positions.ids) {
    const int token = position - positions.first;
    if (token >= 0 && token < positions.length) {
      for (int b = 0; b < batch; ++b) {
        add(Chunk::load(dy + (std::int64_t{b} * positions.length + token) * dim));
      }
    }
  } else {
    const std::int64_t tokens = std::int64_t{batch} * positions.length;
    for (std::int64_t base = 0; base < tokens; base += kIds * kThreads) {
      // Bit i of word w: token base + 32 w + i has this position.
#pragma unroll
      for (int j = 0; j < kIds; ++j) {
        const unsigned id = j * kThreads + threadIdx.x;  // among the ids looked at together
        const bool stands_here = base + id < tokens && positions.ids[base + id] == position;
        const unsigned bits = __ballot_sync(tile::kAllLanes, stands_here);
        if (lane == 0) found_smem[id / tile::kWarp] = bits;
      }
      __syncthreads();  // the words of all warps are there
      const unsigned own = found_smem[lane];
      for (unsigned words = __ballot_sync(tile::kAllLanes, own != 0); words; words &= words - 1) {
        const int word = __ffs(static_cast<int>(words)) - 1;
        unsigned bits = __shfl_sync(tile::kAllLanes, own, word);
        while (bits) {
          Chunk rows[kTogether];
          unsigned left = bits;
#pragma unroll
          for (int i = 0; i < kTogether; ++i, left &= left - 1) {
            const int token = word * tile::kWarp + __ffs(static_cast<int>(left)) - 1;
            if (left) rows[i] = Chunk::load(dy + (base + token) * dim);
          }
#pragma unroll
          for (int i = 0; i < kTogether; ++i, bits &= bits - 1) {
            if (bits) add(rows[i]);
          }
        }
      }
      __syncthreads();  // all warps have read the words: the next ones may come
    }
  }
  if (has_columns) Chunk::from_floats(sum).store(dtable + std::int64_t{position} * dim + col);
}
// snippet-end kernel

}  // namespace

tile::Status by_position(const EmbeddingProblem& p, const EmbeddingBackwardBuffers& b,
                         void* stream) {
  const bool in_chunks = check_chunks(p, b).ok();
  return tile::with_element_type(p.type, [&](auto element) -> tile::Status {
    using T = decltype(element);
    constexpr int kWidth = tile::Vector<T>::kCount;
    const auto kernel = in_chunks ? embedding_backward_by_position<T, kWidth>
                                  : embedding_backward_by_position<T, 1>;
    const int columns = kThreads * (in_chunks ? kWidth : 1);     // of a block
    const std::int64_t parts = (p.dim + columns - 1) / columns;  // of a row
    unsigned blocks = 0;
    TILE_TRY(tile::blocks_for("table_positions and dim", p.table_positions * parts, 1, &blocks));
    return tile::launch(kernel, "embedding_backward_by_position", blocks, kThreads, 0, stream,
                        static_cast<const T*>(b.dy), static_cast<T*>(b.dtable), positions_of(p, b),
                        p.batch, p.dim, parts);
  });
}

}  // namespace rope
