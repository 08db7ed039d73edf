// Absolute position embeddings, learned or sinusoidal: the problem and the ladders of both
// passes.
#pragma once

#include <cstdint>

#include "rotary/rotary.hpp"

namespace rope {

/// The table's row of its position is added to each token, once, before the first layer:
///
///     y[b, s, :] = x[b, s, :] + table[position(b, s), :]
///
/// Without x, y is the row itself, to the bit: with token ids as positions and a table of the
/// vocabulary, the token embedding that a model begins with. The table is learned, or holds
/// sinusoids(). Backward, dx is dy and is not computed, and a row of a learned table gets the sum
/// over all tokens at its position, zeros if there are none:
///
///     dtable[p, :] = sum over position(b, s) = p of dy[b, s, :]
struct EmbeddingProblem {
  tile::DType type;
  std::int64_t batch, length, dim;
  std::int64_t table_positions;     // rows of the table; positions are below this
  std::int64_t first_position = 0;  // of a batch entry's first token, unless there are positions
};

/// Device pointers to the first elements, aligned to an element. y may be x; otherwise what is
/// written overlaps nothing else.
struct EmbeddingBuffers {
  const void* x = nullptr;      // [batch][length][dim], or null
  const void* table = nullptr;  // [table_positions][dim] of the problem's type
  void* y = nullptr;            // [batch][length][dim]
  // Of each token, [batch][length]; null: they count from first_position. A token whose position is
  // negative or not below table_positions has a row of NaN: nothing is read outside of the table.
  const int* positions = nullptr;
};

/// Device pointers, as above. What is written overlaps nothing else.
struct EmbeddingBackwardBuffers {
  const void* dy = nullptr;  // [batch][length][dim]
  void* dtable = nullptr;    // [table_positions][dim] of the problem's type
  // As in the forward pass. A token whose position the table does not have adds to no row.
  const int* positions = nullptr;
  // Only step `atomics` needs it: sums_bytes(problem), aligned to 16 bytes. May be null if
  // that step is not to run.
  void* workspace = nullptr;
};

/// What is checked before any step. The Status names the argument that is wrong.
tile::Status validate(const EmbeddingProblem& problem, const EmbeddingBuffers& buffers);
tile::Status validate(const EmbeddingProblem& problem, const EmbeddingBackwardBuffers& buffers);

/// The same checks, except for the element type.
tile::Status validate_tensors(const EmbeddingProblem& problem, const EmbeddingBuffers& buffers);
tile::Status validate_tensors(const EmbeddingProblem& problem,
                              const EmbeddingBackwardBuffers& buffers);

inline bool is_empty(const EmbeddingProblem& p) {
  return p.batch == 0 || p.length == 0 || p.dim == 0;
}
/// Even without tokens the gradient of the table must be set to zeros.
inline bool has_no_table(const EmbeddingProblem& p) { return p.table_positions == 0 || p.dim == 0; }

/// Whether chunks of 16 bytes fill all rows, and every chunk is aligned; if not, the Status says
/// which argument is in the way.
tile::Status check_chunks(const EmbeddingProblem& problem, const EmbeddingBuffers& buffers);
tile::Status check_chunks(const EmbeddingProblem& problem, const EmbeddingBackwardBuffers& buffers);

/// The workspace of step `atomics`: fp32 sums, [table_positions][dim].
constexpr std::int64_t sums_bytes(const EmbeddingProblem& p) {
  return p.table_positions * p.dim * static_cast<std::int64_t>(sizeof(float));
}

// The steps. Each computes y, or dtable, in the given stream (a cudaStream_t).
using EmbeddingStep = tile::Status(const EmbeddingProblem&, const EmbeddingBuffers&, void* stream);
EmbeddingStep elements, vectors;
using EmbeddingBackwardStep = tile::Status(const EmbeddingProblem&, const EmbeddingBackwardBuffers&,
                                           void* stream);
EmbeddingBackwardStep atomics, by_position;

// What their own kernels take.
tile::Status takes_vectors(const EmbeddingProblem&, const EmbeddingBuffers&, const tile::Device&);
tile::Status takes_atomics(const EmbeddingProblem&, const EmbeddingBackwardBuffers&,
                           const tile::Device&);

// ---- The ladders ----

// Batch, length, dimension, 1 for position ids or 0.
inline constexpr tile::Shows kEmbeddingShows{{3, 37, 200, 0}, {4, 4096, 4096, 0}};
inline constexpr tile::Shows kEmbeddingBackwardShows{{3, 37, 200, 1}, {4, 4096, 4096, 1}};

using EmbeddingLadder = tile::Ladder<EmbeddingProblem, EmbeddingBuffers>;
inline constexpr EmbeddingLadder::Step kEmbedding[] = {
    {.name = "elements",
     .idea = "a thread for each element adds the table's row of its token's position",
     .types = kTypes,
     .needs = {},
     .takes = nullptr,
     .otherwise = "",
     .shows = kEmbeddingShows,
     .launch = elements},
    {.name = "vectors",
     .idea = "16 bytes at a time, and one load of the table for several batch entries",
     .types = kTypes,
     .needs = {},
     .takes = takes_vectors,
     .otherwise = "elements",
     .shows = kEmbeddingShows,
     .launch = vectors},
};
inline constexpr EmbeddingLadder kEmbeddingLadder{.name = "embedding",
                                                  .kernels = "embedding_",
                                                  .steps = kEmbedding,
                                                  .validate = validate,
                                                  .is_empty = is_empty};

using EmbeddingBackwardLadder = tile::Ladder<EmbeddingProblem, EmbeddingBackwardBuffers>;
inline constexpr EmbeddingBackwardLadder::Step kEmbeddingBackward[] = {
    {.name = "atomics",
     .idea = "every token adds to its position's row",
     .types = kTypes,
     .needs = {},
     .takes = takes_atomics,
     .otherwise = "",
     .shows = kEmbeddingBackwardShows,
     .launch = atomics,
     .workspace_bytes = sums_bytes},
    {.name = "by_position",
     .idea = "a block for each position adds up its tokens, always in the same order",
     .types = kTypes,
     .needs = {},
     .takes = nullptr,
     .otherwise = "",
     .shows = kEmbeddingBackwardShows,
     .launch = by_position},
};
inline constexpr EmbeddingBackwardLadder kEmbeddingBackwardLadder{.name = "embedding backward",
                                                                  .kernels = "embedding_backward_",
                                                                  .steps = kEmbeddingBackward,
                                                                  .validate = validate,
                                                                  .is_empty = has_no_table};

}  // namespace rope
