// Attention, forward and backward: the problems, the ladders and the references.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "harness/attention_reference.hpp"
#include "tile/host/step.hpp"
#include "tile/host/strides.hpp"
#include "tile/mask.hpp"

namespace flash_attention {

inline constexpr std::string_view kName = "05_flash_attention";  // the folder's
inline constexpr std::string_view kTitle = "two products and a softmax, and no score in memory";

using tile::kMaxLength;
using tile::Mask;
using tile::packed_strides;
using tile::Strides;

/// The size of a window without an end.
inline constexpr std::int64_t kUnlimited = kMaxLength;

/// For each batch entry and head, with the rows of q, k, v and o as vectors:
///
///     s_ij = scale q_i k_j           where query i sees key j
///     p_ij = exp(s_ij - lse_i)       lse_i = log sum_j exp(s_ij)
///     o_i  = sum_j p_ij v_j
///
/// Query i stands beside key i + keys - queries, and sees `left` keys before and `right` after it
/// (tile/mask.hpp). A query that sees no key has o = 0 and lse = -infinity. heads / kv_heads heads
/// of q share one of k and v. A batch entry may have lengths of its own: queries and keys beyond
/// them do not exist, and the rows of such queries are o = 0 and lse = -infinity.
struct ForwardProblem {
  tile::DType type;
  std::int64_t batch, heads, queries, keys, head_dim;
  std::int64_t kv_heads = heads;  // divides heads
  std::int64_t left = kUnlimited, right = kUnlimited;
  float scale = 1;  // positive and finite; 1 / sqrt(head_dim) is usual
  Strides q = packed_strides(queries, heads, head_dim);
  Strides k = packed_strides(keys, kv_heads, head_dim);
  Strides v = packed_strides(keys, kv_heads, head_dim);
  Strides o = packed_strides(queries, heads, head_dim);
};

/// Device pointers to the first elements, aligned to an element. What is written overlaps nothing
/// else.
struct ForwardBuffers {
  const void* q = nullptr;             // [batch][queries][heads][head_dim]
  const void* k = nullptr;             // [batch][keys][kv_heads][head_dim]
  const void* v = nullptr;             // [batch][keys][kv_heads][head_dim]
  void* o = nullptr;                   // [batch][queries][heads][head_dim]
  float* lse = nullptr;                // [batch][heads][queries]; null if not needed
  const int* query_lengths = nullptr;  // [batch], each at most queries; null: all are there
  const int* key_lengths = nullptr;    // [batch], each at most keys; null: all are there
  void* workspace = nullptr;           // aligned to 16 bytes; holds nothing before or after
  std::int64_t workspace_bytes = 0;    // see workspace_bytes()
};

/// What is checked before any step. The Status names the argument that is wrong.
tile::Status validate(const ForwardProblem& problem, const ForwardBuffers& buffers);

/// The same checks, except for the element type.
tile::Status validate_tensors(const ForwardProblem& problem, const ForwardBuffers& buffers);

/// Checks the sizes and options only. Strides are checked together with their tensors.
tile::Status validate_sizes(const ForwardProblem& problem);

inline bool is_empty(const ForwardProblem& p) {
  return p.batch == 0 || p.heads == 0 || p.queries == 0;
}

/// Step `split_keys`: how many queries it takes, elements of K in a tile, and among how many blocks
/// the keys of a head are divided. There are 264 blocks in all, two for each multiprocessor of an
/// H200, but at most one for each pair of tiles. The number does not depend on the card, and so the
/// result does not.
inline constexpr int kMostSplitQueries = 16, kSplitTileElements = 4096;
std::int64_t key_splits(const ForwardProblem& problem);

/// The device memory that the step of this name needs besides its arguments, if the sizes are
/// valid: in step `scores` 4 bytes for each query and key, in step `split_keys` each part of a
/// row's output with its lse, in the others none.
std::int64_t workspace_bytes(const ForwardProblem& problem, std::string_view step);

/// Whether the workspace is as large as that.
tile::Status check_workspace(const ForwardProblem& problem, const ForwardBuffers& buffers,
                             std::string_view step);

/// Whether every row consists of aligned chunks of 16 bytes; if not, the Status says which argument
/// is in the way.
tile::Status check_chunks(const ForwardProblem& problem, const ForwardBuffers& buffers);

// The steps. Each computes o and lse in the given stream (a cudaStream_t).
using ForwardStep = tile::Status(const ForwardProblem&, const ForwardBuffers&, void* stream);
ForwardStep scores, tiles, mma, pipeline, warp_tiles, lazy, interleaved, split_keys, wgmma;

// What their own kernels take.
using ForwardTakes = tile::Status(const ForwardProblem&, const ForwardBuffers&,
                                  const tile::Device&);
ForwardTakes takes_scores, takes_tiles, takes_mma, takes_pipeline, takes_split_keys, takes_wgmma;

// ---- Backward ----

/// From the gradient dout of a loss with respect to o, with p_ij and the options as above:
///
///     delta_i = dout_i o_i             ds_ij = p_ij (dout_i v_j - delta_i)
///     dq_i = scale sum_j ds_ij k_j     dk_j = scale sum_i ds_ij q_i     dv_j = sum_i p_ij dout_i
///
/// dk and dv are sums over the heads that share them. The gradients of queries and keys that do not
/// exist are 0.
struct BackwardProblem {
  tile::DType type;
  std::int64_t batch, heads, queries, keys, head_dim;
  std::int64_t kv_heads = heads;  // divides heads
  std::int64_t left = kUnlimited, right = kUnlimited;
  float scale = 1;  // positive and finite
  Strides q = packed_strides(queries, heads, head_dim);
  Strides k = packed_strides(keys, kv_heads, head_dim);
  Strides v = packed_strides(keys, kv_heads, head_dim);
  Strides o = packed_strides(queries, heads, head_dim);
  Strides dout = packed_strides(queries, heads, head_dim);
  Strides dq = packed_strides(queries, heads, head_dim);
  Strides dk = packed_strides(keys, kv_heads, head_dim);
  Strides dv = packed_strides(keys, kv_heads, head_dim);
};

/// Device pointers to the first elements, aligned to an element. What is written overlaps nothing
/// else; but dq, dk and dv may be interleaved, as in one tensor of [batch][length][heads].
struct BackwardBuffers {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  const void* o = nullptr;             // from the forward pass
  const float* lse = nullptr;          // [batch][heads][queries], from the forward pass too
  const void* dout = nullptr;          // [batch][queries][heads][head_dim]
  void* dq = nullptr;                  // [batch][queries][heads][head_dim]
  void* dk = nullptr;                  // [batch][keys][kv_heads][head_dim]
  void* dv = nullptr;                  // [batch][keys][kv_heads][head_dim]
  const int* query_lengths = nullptr;  // [batch], each at most queries; null: all are there
  const int* key_lengths = nullptr;    // [batch], each at most keys; null: all are there
  void* workspace = nullptr;           // aligned to 16 bytes; holds nothing before or after
  std::int64_t workspace_bytes = 0;    // see workspace_bytes()
};

/// What is checked before any step. The Status names the argument that is wrong.
tile::Status validate(const BackwardProblem& problem, const BackwardBuffers& buffers);
tile::Status validate_tensors(const BackwardProblem& problem, const BackwardBuffers& buffers);
tile::Status validate_sizes(const BackwardProblem& problem);

/// Even without queries dk and dv must be set to zeros, and without keys dq.
inline bool is_empty(const BackwardProblem& p) {
  return p.batch == 0 || p.heads == 0 || (p.queries == 0 && p.keys == 0);
}

/// Two numbers a query, for the softmax and for delta; in step `one_pass` a sum for each element of
/// dq; in step `scores` two matrices of all scores.
std::int64_t workspace_bytes(const BackwardProblem& problem, std::string_view step);
tile::Status check_workspace(const BackwardProblem& problem, const BackwardBuffers& buffers,
                             std::string_view step);

tile::Status check_chunks(const BackwardProblem& problem, const BackwardBuffers& buffers);

// The steps. Each computes dq, dk and dv in the given stream (a cudaStream_t).
using BackwardStep = tile::Status(const BackwardProblem&, const BackwardBuffers&, void* stream);
BackwardStep scores, tiles, mma, pipeline, one_pass;

// What their own kernels take.
using BackwardTakes = tile::Status(const BackwardProblem&, const BackwardBuffers&,
                                   const tile::Device&);
BackwardTakes takes_scores, takes_tiles, takes_mma, takes_pipeline, takes_one_pass;

// ---- The ladders ----

inline constexpr tile::EnumSet<tile::DType> kTypes{tile::DType::fp32, tile::DType::fp16,
                                                   tile::DType::bf16};
inline constexpr tile::EnumSet<tile::DType> k16Bits{tile::DType::fp16, tile::DType::bf16};
// Batch, heads, heads of k and v, queries, keys, head dimension, and whether causal. In the small
// problem two heads share one of k and v, no length is a multiple of a tile, and there are fewer
// queries than keys.
inline constexpr tile::Shows kShows{{2, 4, 2, 75, 150, 64, 1}, {2, 32, 32, 8192, 8192, 64, 1}};

using ForwardLadder = tile::Ladder<ForwardProblem, ForwardBuffers>;
inline constexpr ForwardLadder::Step kForward[] = {
    {.name = "scores",
     .idea = "three kernels: all scores to memory, their softmax, and the second product",
     .types = kTypes,
     .needs = {},
     .takes = takes_scores,
     .otherwise = "",
     .shows = {{2, 4, 2, 75, 150, 64, 1}, {2, 32, 32, 2048, 2048, 64, 1}},
     .launch = scores},
    {.name = "tiles",
     .idea = "a block keeps a tile of queries, and the softmax is corrected as keys go by",
     .types = kTypes,
     .needs = {},
     .takes = takes_tiles,
     .otherwise = "",
     .shows = kShows,
     .launch = tiles},
    {.name = "mma",
     .idea = "both products on tensor cores, the weights between them in registers",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma},
     .takes = takes_mma,
     .otherwise = "tiles",
     .shows = kShows,
     .launch = mma},
    {.name = "pipeline",
     .idea = "the next tile of keys is copied meanwhile, and only visible tiles are visited",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async},
     .takes = takes_pipeline,
     .otherwise = "mma",
     .shows = kShows,
     .launch = pipeline},
    {.name = "warp_tiles",
     .idea = "32 queries to a warp, which use what it loads twice",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async},
     .takes = takes_pipeline,
     .otherwise = "mma",
     .shows = kShows,
     .launch = warp_tiles},
    {.name = "lazy",
     .idea = "a reference of the exponentials that moves only when it must",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async},
     .takes = takes_pipeline,
     .otherwise = "mma",
     .shows = kShows,
     .launch = lazy},
    {.name = "interleaved",
     .idea = "exponentials of some keys among the products of the next",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async},
     .takes = takes_mma,
     .otherwise = "mma",
     .shows = kShows,
     .launch = interleaved},
    {.name = "split_keys",
     .idea = "few queries: the keys divided among blocks, the heads that share them in one product",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async},
     .takes = takes_split_keys,
     .otherwise = "interleaved",
     .shows = {{2, 8, 2, 3, 700, 64, 1}, {1, 32, 8, 1, 65536, 128, 0}},
     .launch = split_keys},
    {.name = "wgmma",
     .idea = "a warpgroup copies, others multiply the next scores and the last output at one time",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async, tile::Feature::tma,
               tile::Feature::wgmma},
     .takes = takes_wgmma,
     .otherwise = "split_keys",
     .shows = kShows,
     .launch = wgmma},
};
inline constexpr ForwardLadder kForwardLadder{.name = "forward",
                                              .kernels = "attention_",
                                              .steps = kForward,
                                              .validate = validate,
                                              .is_empty = is_empty};

using BackwardLadder = tile::Ladder<BackwardProblem, BackwardBuffers>;
inline constexpr BackwardLadder::Step kBackward[] = {
    {.name = "scores",
     .idea = "the formulas: weights and their gradients in memory, and four products of them",
     .types = kTypes,
     .needs = {},
     .takes = takes_scores,
     .otherwise = "",
     .shows = {{2, 4, 2, 75, 150, 64, 1}, {2, 32, 32, 2048, 2048, 64, 1}},
     .launch = scores},
    {.name = "tiles",
     .idea = "weights are computed again: once by each tile of keys, once by each of queries",
     .types = kTypes,
     .needs = {},
     .takes = takes_tiles,
     .otherwise = "",
     .shows = kShows,
     .launch = tiles},
    {.name = "mma",
     .idea = "all seven products on tensor cores",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma},
     .takes = takes_mma,
     .otherwise = "tiles",
     .shows = kShows,
     .launch = mma},
    {.name = "pipeline",
     .idea = "the next tile is copied meanwhile, 32 rows to a warp; each run gives the same bits",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async},
     .takes = takes_pipeline,
     .otherwise = "mma",
     .shows = kShows,
     .launch = pipeline},
    {.name = "one_pass",
     .idea = "the tile that has dS adds its part of dQ to a sum in memory",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async},
     .takes = takes_one_pass,
     .otherwise = "mma",
     .shows = kShows,
     .launch = one_pass},
};
inline constexpr BackwardLadder kBackwardLadder{.name = "backward",
                                                .kernels = "attention_backward_",
                                                .steps = kBackward,
                                                .validate = validate,
                                                .is_empty = is_empty};

// ---- The references ----

using ForwardInputs = tile::AttentionInputs;
using ForwardExpected = tile::AttentionExpected;

/// o and lse in double, and how far a correct kernel may be from them, of the rows with these
/// numbers: row batch_entry * queries + query. Empty means all rows.
ForwardExpected reference(const ForwardProblem& problem, const ForwardInputs& inputs,
                          std::span<const std::int64_t> rows = {});

using BackwardInputs = tile::AttentionGradientInputs;
using BackwardExpected = tile::AttentionGradients;

/// dq of query_rows, dk and dv of key_rows; empty means all rows.
BackwardExpected reference(const BackwardProblem& problem, const BackwardInputs& inputs,
                           std::span<const std::int64_t> query_rows = {},
                           std::span<const std::int64_t> key_rows = {});

}  // namespace flash_attention
