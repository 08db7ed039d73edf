// Rotary position embeddings of q and k: the problem and the ladder.
#pragma once

#include <cstdint>
#include <string_view>

#include "tile/host/rotary.hpp"
#include "tile/host/step.hpp"
#include "tile/host/strides.hpp"

namespace rope {

inline constexpr std::string_view kName = "06_rope";  // the folder's
inline constexpr std::string_view kTitle = "rotary embeddings: a position is an angle";

using tile::packed_strides;
using tile::Strides;

using Layout = tile::RotaryLayout;

/// backward: from the gradients with respect to the results to those with respect to q and k.
enum class Pass { forward, backward };

/// Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021), arXiv
/// 2104.09864. In each head's row of q and of k pair i = (x, y) is rotated by the angle p f_i,
/// where p is the position of the row's token:
///
///     x' = a (x cos(p f_i) - y sin(p f_i))         y' = a (y cos(p f_i) + x sin(p f_i))
///
/// a, the attention factor, is 1 except for some ways of scaling. Backward is the transpose, a
/// rotation by -p f_i, times the same a. Elements from rotary_dim on are copied.
struct RotaryProblem {
  tile::DType type;
  std::int64_t batch, length, heads, kv_heads, head_dim;  // without k: kv_heads = 0
  std::int64_t rotary_dim = head_dim;                     // even, at most head_dim
  Layout layout = Layout::half_split;
  Pass pass = Pass::forward;
  std::int64_t first_position = 0;   // of a batch entry's first token, unless there are positions
  std::int64_t table_positions = 0;  // positions are below this
  double attention_factor = 1;       // a; the tables contain it already
  Strides q = packed_strides(length, heads, head_dim);
  Strides k = packed_strides(length, kv_heads, head_dim);
  Strides q_out = packed_strides(length, heads, head_dim);
  Strides k_out = packed_strides(length, kv_heads, head_dim);
};

/// Device pointers to the first elements, aligned to an element. q_out may be q with the same
/// strides, and k_out k; otherwise what is written overlaps nothing else.
struct RotaryBuffers {
  const void* q = nullptr;  // [batch][length][heads][head_dim]; backward: the gradient of q_out
  const void* k = nullptr;  // [batch][length][kv_heads][head_dim]; backward: the gradient of k_out
  void* q_out = nullptr;
  void* k_out = nullptr;
  // a cos(p f_i) and a sin(p f_i), [table_positions][rotary_dim / 2]; null if only step `sincos` is
  // to run, which computes them.
  const float* cos = nullptr;
  const float* sin = nullptr;
  const double* frequencies = nullptr;  // f_i, [rotary_dim / 2]; null if step `sincos` need not run
  // Of each token, [batch][length]; null: they count from first_position. A token whose position is
  // negative or not below table_positions has rows of NaN: nothing is read outside of the tables.
  const int* positions = nullptr;
};

/// What is checked before any step. The Status names the argument that is wrong.
tile::Status validate(const RotaryProblem& problem, const RotaryBuffers& buffers);

/// Checks the sizes and options only. Strides are checked together with their tensors.
tile::Status validate_sizes(const RotaryProblem& problem);

/// The same checks, except for the element type.
tile::Status validate_tensors(const RotaryProblem& problem, const RotaryBuffers& buffers);

inline bool is_empty(const RotaryProblem& p) {
  return p.batch == 0 || p.length == 0 || p.heads + p.kv_heads == 0;
}

/// Whether every row, and every row of the tables, begins at a multiple of 16 bytes; if not, the
/// Status says which argument is in the way.
tile::Status check_chunks(const RotaryProblem& problem, const RotaryBuffers& buffers);

/// Whether the tables that steps `tables` and `vectors` read are there.
tile::Status check_has_tables(const RotaryProblem& problem, const RotaryBuffers& buffers);

// The steps. Each computes q_out and k_out in the given stream (a cudaStream_t).
using RotaryStep = tile::Status(const RotaryProblem&, const RotaryBuffers&, void* stream);
RotaryStep sincos, tables, vectors;

// What their own kernels take.
using RotaryTakes = tile::Status(const RotaryProblem&, const RotaryBuffers&, const tile::Device&);
RotaryTakes takes_sincos, takes_tables, takes_vectors;

// ---- The ladder ----

inline constexpr tile::EnumSet<tile::DType> kTypes{tile::DType::fp32, tile::DType::fp16,
                                                   tile::DType::bf16};
// Batch, length, heads, heads of k, head dimension, rotary dimension, 1 for interleaved or 0. In
// the small problem two heads of q share one of k, and a quarter of the row is not rotated.
inline constexpr tile::Shows kShows{{2, 37, 4, 2, 64, 48, 0}, {4, 4096, 32, 8, 128, 128, 0}};

using RotaryLadder = tile::Ladder<RotaryProblem, RotaryBuffers>;
inline constexpr RotaryLadder::Step kRotary[] = {
    {.name = "sincos",
     .idea = "a thread for each pair computes its angle, sine and cosine",
     .types = kTypes,
     .needs = {},
     .takes = takes_sincos,
     .otherwise = "",
     .shows = kShows,
     .launch = sincos},
    {.name = "tables",
     .idea = "sines and cosines from tables, built once",
     .types = kTypes,
     .needs = {},
     .takes = takes_tables,
     .otherwise = "sincos",
     .shows = kShows,
     .launch = tables},
    {.name = "vectors",
     .idea = "16 bytes at a time, q and k in one launch, several heads to a thread",
     .types = kTypes,
     .needs = {},
     .takes = takes_vectors,
     .otherwise = "tables",
     .shows = kShows,
     .launch = vectors},
};
inline constexpr RotaryLadder kRotaryLadder{.name = "rotary",
                                            .kernels = "rotary_",
                                            .steps = kRotary,
                                            .validate = validate,
                                            .is_empty = is_empty};

}  // namespace rope
