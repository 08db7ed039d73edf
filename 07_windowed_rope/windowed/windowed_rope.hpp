// Attention with two scores, forward and backward: what is computed, and the ladders.
#pragma once

#include <cstdint>
#include <string_view>

#include "tile/host/attention.hpp"
#include "tile/host/step.hpp"

namespace windowed_rope {

inline constexpr std::string_view kName = "07_windowed_rope";  // the folder's
inline constexpr std::string_view kTitle = "near keys by one rotation, far keys by another";

using tile::AttentionBackward, tile::AttentionForward;
using tile::kUnlimited, tile::packed_strides, tile::Strides;

// For each batch entry and head, with the rows of the tensors as vectors: q1, k1 are a call's q and
// k, for near keys, and q2, k2 its q_far and k_far, for far ones.
//
//     s_ij = scale q1_i k1_j   if |i + keys - queries - j| < window,   else scale q2_i k2_j
//     s_ij is multiplied by the distance factor of |i + keys - queries - j|, if there is one
//     p_ij = exp(s_ij - lse_i)        lse_i = log sum_j exp(s_ij)        o_i = sum_j p_ij v_j
//
// `right` is 0, which is causal, or without an end. The window hides no key. A query that sees no
// key has o = 0 and lse = -infinity, as have the rows of queries that do not exist. Lengths of a
// batch entry's own give the position of a query, too.
//
// Backward, from the gradient dout of a loss with respect to o:
//
//     delta_i = dout_i o_i            ds_ij = p_ij (dout_i v_j - delta_i)
//     ds_ij is multiplied by the distance factor, as the score was
//     dq1_i = scale sum_j ds_ij k1_j  and  dk1_j = scale sum_i ds_ij q1_i  over what is near
//     dq2_i = scale sum_j ds_ij k2_j  and  dk2_j = scale sum_i ds_ij q2_i  over what is far
//     dv_j = sum_i p_ij dout_i        over both
//
// dq1, dk1, dq2 and dk2 are a call's dq, dk, dq_far and dk_far; dk1, dk2 and dv are sums over the
// heads that share them. The gradients of queries and keys that do not exist are 0.

/// What is checked before any step. The Status names the argument that is wrong.
tile::Status validate(const AttentionForward& p);
tile::Status validate(const AttentionBackward& p);

/// The same checks, except for the element type.
tile::Status validate_tensors(const AttentionForward& p);
tile::Status validate_tensors(const AttentionBackward& p);

/// Checks the sizes and options only. Strides are checked together with their tensors.
tile::Status validate_sizes(const AttentionForward& p);
tile::Status validate_sizes(const AttentionBackward& p);

inline bool is_empty(const AttentionForward& p) {
  return p.batch == 0 || p.heads == 0 || p.queries == 0;
}
/// Even without queries the gradients of keys must be set to zeros, and without keys those of
/// queries.
inline bool is_empty(const AttentionBackward& p) {
  return p.batch == 0 || p.heads == 0 || (p.queries == 0 && p.keys == 0);
}

// The device memory that steps need besides their arguments: all scores, 4 bytes each; two matrices
// of them; two numbers for each query; and these, as wgmma adds them, with a sum for each element
// of dq and dq_far.
std::int64_t scores_bytes(const AttentionForward& p);
std::int64_t scores_bytes(const AttentionBackward& p);
std::int64_t stats_bytes(const AttentionBackward& p);
std::int64_t stats_and_sums_bytes(const AttentionBackward& p);

/// Refuses a distance factor, for the steps that have none.
tile::Status check_no_distance_factor(const tile::Attention& p);

/// Whether every row consists of aligned chunks of 16 bytes; if not, the Status says which argument
/// is in the way, or that there is a distance factor: only step `tiles` has one.
tile::Status check_chunks(const AttentionForward& p);
tile::Status check_chunks(const AttentionBackward& p);

// The steps. Each computes its outputs in the given stream (a cudaStream_t).
using ForwardStep = tile::Status(const AttentionForward&, void* stream);
ForwardStep scores, tiles, mma, two_visits, wgmma, persistent;
/// Steps `one_pass` and `wgmma` leave the sums of dq and dq_far in the workspace if dq has no data.
using BackwardStep = tile::Status(const AttentionBackward&, void* stream);
BackwardStep scores, tiles, mma, one_pass, wgmma;

// What their own kernels take.
using ForwardTakes = tile::Status(const AttentionForward&, const tile::Device&);
ForwardTakes takes_scores, takes_tiles, takes_mma, takes_two_visits, takes_wgmma, takes_persistent;
using BackwardTakes = tile::Status(const AttentionBackward&, const tile::Device&);
BackwardTakes takes_scores, takes_tiles, takes_mma, takes_one_pass, takes_wgmma;

// ---- The ladders ----

inline constexpr tile::EnumSet<tile::DType> kTypes{tile::DType::fp32, tile::DType::fp16,
                                                   tile::DType::bf16};
inline constexpr tile::EnumSet<tile::DType> k16Bits{tile::DType::fp16, tile::DType::bf16};
// Batch, heads, heads of k and v, queries, keys, head dimension, window, and whether causal. In the
// small problem two heads share one of k and v, no length is a multiple of a tile, and there are
// fewer queries than keys.
inline constexpr tile::Shows kShows{{2, 4, 2, 75, 150, 64, 50, 1},
                                    {1, 32, 32, 8192, 8192, 64, 2048, 1}};

using ForwardLadder = tile::Ladder<AttentionForward>;
inline constexpr ForwardLadder::Step kForward[] = {
    {.name = "scores",
     .idea = "three kernels: one of two scores for each key, their softmax, and the second product",
     .types = kTypes,
     .needs = {},
     .takes = takes_scores,
     .otherwise = "",
     .shows = {{2, 4, 2, 75, 150, 64, 50, 1}, {1, 32, 32, 2048, 2048, 64, 512, 1}},
     .launch = scores,
     .workspace_bytes = scores_bytes},
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
    {.name = "persistent",
     .idea = "chapter 05's last loop through both parts: turns, a queue, outputs by TMA",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async, tile::Feature::tma,
               tile::Feature::wgmma},
     .takes = takes_persistent,
     .otherwise = "wgmma",
     .shows = kShows,
     .launch = persistent},
};
inline constexpr ForwardLadder kForwardLadder{.name = "windowed",
                                              .kernels = "windowed_",
                                              .steps = kForward,
                                              .validate = validate,
                                              .is_empty = is_empty};

using BackwardLadder = tile::Ladder<AttentionBackward>;
inline constexpr BackwardLadder::Step kBackward[] = {
    {.name = "scores",
     .idea = "the formulas: weights and their gradients in memory, each sent to its pair",
     .types = kTypes,
     .needs = {},
     .takes = takes_scores,
     .otherwise = "",
     .shows = {{2, 4, 2, 75, 150, 64, 50, 1}, {1, 32, 32, 2048, 2048, 64, 512, 1}},
     .launch = scores,
     .workspace_bytes = scores_bytes},
    {.name = "tiles",
     .idea = "weights are computed again, by tiles of one kind at a time",
     .types = kTypes,
     .needs = {},
     .takes = takes_tiles,
     .otherwise = "scores",
     .shows = kShows,
     .launch = tiles,
     .workspace_bytes = stats_bytes},
    {.name = "mma",
     .idea = "tensor cores; a part of the keys after the other, each with its own gradient",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma},
     .takes = takes_mma,
     .otherwise = "tiles",
     .shows = kShows,
     .launch = mma,
     .workspace_bytes = stats_bytes},
    {.name = "one_pass",
     .idea = "chapter 05's fastest loop for each part, and two sums in memory, for dq1 and dq2",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async},
     .takes = takes_one_pass,
     .otherwise = "mma",
     .shows = kShows,
     .launch = one_pass,
     .workspace_bytes = stats_and_sums_bytes},
    {.name = "wgmma",
     .idea = "chapter 05's last loop from far queries to near ones, with both keys in the block",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async, tile::Feature::tma,
               tile::Feature::wgmma},
     .takes = takes_wgmma,
     .otherwise = "one_pass",
     .shows = kShows,
     .launch = wgmma,
     .workspace_bytes = stats_and_sums_bytes},
};
inline constexpr BackwardLadder kBackwardLadder{.name = "windowed backward",
                                                .kernels = "windowed_backward_",
                                                .steps = kBackward,
                                                .validate = validate,
                                                .is_empty = is_empty};

}  // namespace windowed_rope
