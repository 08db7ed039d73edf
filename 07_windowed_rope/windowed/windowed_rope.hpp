// Attention with two scores, forward and backward: the problems, the ladders and the references.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "harness/attention_reference.hpp"
#include "tile/host/step.hpp"
#include "tile/host/strides.hpp"
#include "windowed/window.hpp"

namespace windowed_rope {

inline constexpr std::string_view kName = "07_windowed_rope";  // the folder's
inline constexpr std::string_view kTitle = "near keys by one rotation, far keys by another";

using tile::packed_strides;
using tile::Strides;

/// The size of a window without an end.
inline constexpr std::int64_t kUnlimited = tile::kMaxLength;

/// For each batch entry and head, with the rows of the tensors as vectors:
///
///     s_ij = scale q1_i k1_j   if |i + keys - queries - j| < window,   else scale q2_i k2_j
///     s_ij is multiplied by the distance factor of |i + keys - queries - j|, if there is one
///     p_ij = exp(s_ij - lse_i)        lse_i = log sum_j exp(s_ij)        o_i = sum_j p_ij v_j
///
/// Query i stands beside key i + keys - queries. If it is causal, it sees the keys up to there,
/// otherwise all; the window hides none. A query that sees no key has o = 0 and lse = -infinity.
/// heads / kv_heads heads of q1 and q2 share one of k1, k2 and v. A batch entry may have lengths of
/// its own, which then give the position of a query, too: queries and keys beyond them do not
/// exist, and the rows of such queries are o = 0 and lse = -infinity.
struct ForwardProblem {
  tile::DType type;
  std::int64_t batch, heads, queries, keys, head_dim;
  std::int64_t kv_heads = heads;     // divides heads
  std::int64_t window = kUnlimited;  // 0 or less: every key is far; the largest: every key is near
  bool causal = true;
  float scale = 1;                            // positive and finite; 1 / sqrt(head_dim) is usual
  tile::DistanceFactor distance_factor = {};  // only step `tiles` has one
  Strides q1 = packed_strides(queries, heads, head_dim);
  Strides k1 = packed_strides(keys, kv_heads, head_dim);
  Strides q2 = packed_strides(queries, heads, head_dim);
  Strides k2 = packed_strides(keys, kv_heads, head_dim);
  Strides v = packed_strides(keys, kv_heads, head_dim);
  Strides o = packed_strides(queries, heads, head_dim);
};

/// Device pointers to the first elements, aligned to an element. What is written overlaps nothing
/// else.
struct ForwardBuffers {
  const void* q1 = nullptr;            // [batch][queries][heads][head_dim]
  const void* k1 = nullptr;            // [batch][keys][kv_heads][head_dim]
  const void* q2 = nullptr;            // as q1
  const void* k2 = nullptr;            // as k1
  const void* v = nullptr;             // as k1
  void* o = nullptr;                   // as q1
  float* lse = nullptr;                // [batch][heads][queries]; null if not needed
  const int* query_lengths = nullptr;  // [batch], each at most queries; null: all are there
  const int* key_lengths = nullptr;    // [batch], each at most keys; null: all are there
  void* workspace = nullptr;           // aligned to 16 bytes; holds nothing before or after
  std::int64_t workspace_bytes = 0;    // see workspace_bytes()
};

/// From the gradient dout of a loss with respect to o, with p_ij and the options as above:
///
///     delta_i = dout_i o_i            ds_ij = p_ij (dout_i v_j - delta_i)
///     ds_ij is multiplied by the distance factor, as the score was
///     dq1_i = scale sum_j ds_ij k1_j  and  dk1_j = scale sum_i ds_ij q1_i  over what is near
///     dq2_i = scale sum_j ds_ij k2_j  and  dk2_j = scale sum_i ds_ij q2_i  over what is far
///     dv_j = sum_i p_ij dout_i        over both
///
/// dk1, dk2 and dv are sums over the heads that share them. The gradients of queries and keys that
/// do not exist are 0.
struct BackwardProblem {
  tile::DType type;
  std::int64_t batch, heads, queries, keys, head_dim;
  std::int64_t kv_heads = heads;  // divides heads
  std::int64_t window = kUnlimited;
  bool causal = true;
  float scale = 1;  // positive and finite
  tile::DistanceFactor distance_factor = {};
  Strides q1 = packed_strides(queries, heads, head_dim);
  Strides k1 = packed_strides(keys, kv_heads, head_dim);
  Strides q2 = packed_strides(queries, heads, head_dim);
  Strides k2 = packed_strides(keys, kv_heads, head_dim);
  Strides v = packed_strides(keys, kv_heads, head_dim);
  Strides o = packed_strides(queries, heads, head_dim);
  Strides dout = packed_strides(queries, heads, head_dim);
  Strides dq1 = packed_strides(queries, heads, head_dim);
  Strides dk1 = packed_strides(keys, kv_heads, head_dim);
  Strides dq2 = packed_strides(queries, heads, head_dim);
  Strides dk2 = packed_strides(keys, kv_heads, head_dim);
  Strides dv = packed_strides(keys, kv_heads, head_dim);
};

/// Device pointers to the first elements, aligned to an element. What is written overlaps nothing
/// else; but gradients may be interleaved, as in one tensor of [batch][length][heads].
struct BackwardBuffers {
  const void* q1 = nullptr;
  const void* k1 = nullptr;
  const void* q2 = nullptr;
  const void* k2 = nullptr;
  const void* v = nullptr;
  const void* o = nullptr;             // from the forward pass
  const float* lse = nullptr;          // [batch][heads][queries], from the forward pass too
  const void* dout = nullptr;          // [batch][queries][heads][head_dim]
  void* dq1 = nullptr;                 // [batch][queries][heads][head_dim]
  void* dk1 = nullptr;                 // [batch][keys][kv_heads][head_dim]
  void* dq2 = nullptr;                 // as dq1
  void* dk2 = nullptr;                 // as dk1
  void* dv = nullptr;                  // as dk1
  const int* query_lengths = nullptr;  // [batch], each at most queries; null: all are there
  const int* key_lengths = nullptr;    // [batch], each at most keys; null: all are there
  void* workspace = nullptr;           // aligned to 16 bytes; holds nothing before or after
  std::int64_t workspace_bytes = 0;    // see workspace_bytes()
};

/// What is checked before any step. The Status names the argument that is wrong.
tile::Status validate(const ForwardProblem& problem, const ForwardBuffers& buffers);
tile::Status validate(const BackwardProblem& problem, const BackwardBuffers& buffers);

/// The same checks, except for the element type.
tile::Status validate_tensors(const ForwardProblem& problem, const ForwardBuffers& buffers);
tile::Status validate_tensors(const BackwardProblem& problem, const BackwardBuffers& buffers);

/// Checks the sizes and options only. Strides are checked together with their tensors.
tile::Status validate_sizes(const ForwardProblem& problem);
tile::Status validate_sizes(const BackwardProblem& problem);

inline bool is_empty(const ForwardProblem& p) {
  return p.batch == 0 || p.heads == 0 || p.queries == 0;
}
/// Even without queries the gradients of keys must be set to zeros, and without keys those of
/// queries.
inline bool is_empty(const BackwardProblem& p) {
  return p.batch == 0 || p.heads == 0 || (p.queries == 0 && p.keys == 0);
}

/// The device memory that the step of this name needs besides its arguments, if the sizes are
/// valid. Forward, step `scores`: 4 bytes for each query and key; the others none. Backward: two
/// numbers for each query, in step `one_pass` also a sum for each element of dq1 and dq2; in step
/// `scores` two matrices of all scores.
std::int64_t workspace_bytes(const ForwardProblem& problem, std::string_view step);
std::int64_t workspace_bytes(const BackwardProblem& problem, std::string_view step);

/// Whether the workspace is as large as that.
tile::Status check_workspace(const ForwardProblem& problem, const ForwardBuffers& buffers,
                             std::string_view step);
tile::Status check_workspace(const BackwardProblem& problem, const BackwardBuffers& buffers,
                             std::string_view step);

/// Refuses a distance factor, for the steps that have none.
template <class Problem>
tile::Status check_no_distance_factor(const Problem& p) {
  if (p.distance_factor.part == 0) return {};
  return tile::unsupported("distance_factor", "only step tiles has one");
}

/// Whether every row consists of aligned chunks of 16 bytes; if not, the Status says which argument
/// is in the way, or that there is a distance factor: only step `tiles` has one.
tile::Status check_chunks(const ForwardProblem& problem, const ForwardBuffers& buffers);
tile::Status check_chunks(const BackwardProblem& problem, const BackwardBuffers& buffers);

// The steps. Each computes its outputs in the given stream (a cudaStream_t).
using ForwardStep = tile::Status(const ForwardProblem&, const ForwardBuffers&, void* stream);
ForwardStep scores, tiles, mma, two_visits, wgmma;
using BackwardStep = tile::Status(const BackwardProblem&, const BackwardBuffers&, void* stream);
BackwardStep scores, tiles, mma, one_pass;

// What their own kernels take.
using ForwardTakes = tile::Status(const ForwardProblem&, const ForwardBuffers&,
                                  const tile::Device&);
ForwardTakes takes_scores, takes_tiles, takes_mma, takes_two_visits, takes_wgmma;
using BackwardTakes = tile::Status(const BackwardProblem&, const BackwardBuffers&,
                                   const tile::Device&);
BackwardTakes takes_scores, takes_tiles, takes_mma, takes_one_pass;

// ---- The ladders ----

inline constexpr tile::EnumSet<tile::DType> kTypes{tile::DType::fp32, tile::DType::fp16,
                                                   tile::DType::bf16};
inline constexpr tile::EnumSet<tile::DType> k16Bits{tile::DType::fp16, tile::DType::bf16};
// Batch, heads, heads of k and v, queries, keys, head dimension, window, and whether causal. In the
// small problem two heads share one of k and v, no length is a multiple of a tile, and there are
// fewer queries than keys.
inline constexpr tile::Shows kShows{{2, 4, 2, 75, 150, 64, 50, 1},
                                    {1, 32, 32, 8192, 8192, 64, 2048, 1}};

using ForwardLadder = tile::Ladder<ForwardProblem, ForwardBuffers>;
inline constexpr ForwardLadder::Step kForward[] = {
    {.name = "scores",
     .idea = "three kernels: one of two scores for each key, their softmax, and the second product",
     .types = kTypes,
     .needs = {},
     .takes = takes_scores,
     .otherwise = "",
     .shows = {{2, 4, 2, 75, 150, 64, 50, 1}, {1, 32, 32, 2048, 2048, 64, 512, 1}},
     .launch = scores},
    {.name = "tiles",
     .idea = "tiles with near keys, with far keys, and with both, which are loaded twice",
     .types = kTypes,
     .needs = {},
     .takes = takes_tiles,
     .otherwise = "scores",
     .shows = kShows,
     .launch = tiles},
    {.name = "mma",
     .idea = "tensor cores; in mixed tiles both products, and a choice for each score",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma},
     .takes = takes_mma,
     .otherwise = "tiles",
     .shows = kShows,
     .launch = mma},
    {.name = "two_visits",
     .idea = "far keys first, then near ones: chapter 05's fastest loop, once for each",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async},
     .takes = takes_two_visits,
     .otherwise = "mma",
     .shows = kShows,
     .launch = two_visits},
    {.name = "wgmma",
     .idea = "the same by TMA and wgmma: chapter 05's last loop, and one ring for both parts",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async, tile::Feature::tma,
               tile::Feature::wgmma},
     .takes = takes_wgmma,
     .otherwise = "two_visits",
     .shows = kShows,
     .launch = wgmma},
};
inline constexpr ForwardLadder kForwardLadder{.name = "windowed",
                                              .kernels = "windowed_",
                                              .steps = kForward,
                                              .validate = validate,
                                              .is_empty = is_empty};

using BackwardLadder = tile::Ladder<BackwardProblem, BackwardBuffers>;
inline constexpr BackwardLadder::Step kBackward[] = {
    {.name = "scores",
     .idea = "the formulas: weights and their gradients in memory, each sent to its pair",
     .types = kTypes,
     .needs = {},
     .takes = takes_scores,
     .otherwise = "",
     .shows = {{2, 4, 2, 75, 150, 64, 50, 1}, {1, 32, 32, 2048, 2048, 64, 512, 1}},
     .launch = scores},
    {.name = "tiles",
     .idea = "weights are computed again, by tiles of one kind at a time",
     .types = kTypes,
     .needs = {},
     .takes = takes_tiles,
     .otherwise = "scores",
     .shows = kShows,
     .launch = tiles},
    {.name = "mma",
     .idea = "tensor cores; a part of the keys after the other, each with its own gradient",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma},
     .takes = takes_mma,
     .otherwise = "tiles",
     .shows = kShows,
     .launch = mma},
    {.name = "one_pass",
     .idea = "chapter 05's fastest loop for each part, and two sums in memory, for dq1 and dq2",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async},
     .takes = takes_one_pass,
     .otherwise = "mma",
     .shows = kShows,
     .launch = one_pass},
};
inline constexpr BackwardLadder kBackwardLadder{.name = "windowed backward",
                                                .kernels = "windowed_backward_",
                                                .steps = kBackward,
                                                .validate = validate,
                                                .is_empty = is_empty};

// ---- The references ----

/// o and lse in double, and how far a correct kernel may be from them, of these inputs and their
/// `far` ones, of the rows with these numbers: row batch_entry * queries + query. Empty means all
/// rows.
tile::AttentionExpected reference(const ForwardProblem& problem, const tile::AttentionInputs& in,
                                  std::span<const std::int64_t> rows = {});

/// dq1 and dq2 (far_dq) of query_rows, dk1, dk2 and dv of key_rows; empty means all.
tile::AttentionGradients reference(const BackwardProblem& problem,
                                   const tile::AttentionGradientInputs& in,
                                   std::span<const std::int64_t> query_rows = {},
                                   std::span<const std::int64_t> key_rows = {});

}  // namespace windowed_rope
