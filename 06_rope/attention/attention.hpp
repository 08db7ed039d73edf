// Attention of q and k that are rotated, forward and backward: the ladders.
#pragma once

#include <cstdint>

#include "rotary/rotary.hpp"
#include "tile/host/attention.hpp"

namespace rope {

using tile::AttentionBackward;
using tile::AttentionForward;

// Chapter 05's attention, of as many keys as queries. R rotates rows of q and k by their positions
// before they are multiplied (RotaryProblem):
//
//     s_ij = scale (R_i q_i) (R_j k_j)       p_ij = exp(s_ij - lse_i)       o_i = sum_j p_ij v_j
//
// lse_i is log sum_j exp(s_ij). A query sees all keys, or those up to its own: `right` is 0 then.
// There is no other window, no second pair of q and k, no distance factor, and no length of a batch
// entry's own.
//
// Backward, from the gradient dout of a loss with respect to o:
//
//     delta_i = dout_i o_i                     ds_ij = p_ij (dout_i v_j - delta_i)
//     dq_i = scale R_i^T sum_j ds_ij R_j k_j   dk_j = scale R_j^T sum_i ds_ij R_i q_i
//     dv_j = sum_i p_ij dout_i
//
// dk and dv are sums over the heads that share them, too.

/// What is checked before any step. The Status names the argument that is wrong.
tile::Status validate(const AttentionForward& call);
tile::Status validate(const AttentionBackward& call);

/// Checks the sizes and options only. Strides are checked together with their tensors.
tile::Status validate_sizes(const AttentionForward& call);
tile::Status validate_sizes(const AttentionBackward& call);

/// The same checks, except for the element type. With frequencies (for the reference) the tables
/// may be null.
tile::Status validate_tensors(const AttentionForward& call, const double* frequencies = nullptr);
tile::Status validate_tensors(const AttentionBackward& call, const double* frequencies = nullptr);

inline bool is_empty(const AttentionForward& p) {
  return p.batch == 0 || p.queries == 0 || p.heads == 0;
}
inline bool is_empty(const AttentionBackward& p) {
  return p.batch == 0 || p.queries == 0 || p.heads == 0;
}

/// The workspaces of the steps: rotated copies of q and k, tile::RowStats of each query, and both.
std::int64_t rotated_bytes(const AttentionForward& call);
std::int64_t stats_bytes(const AttentionBackward& call);
std::int64_t composed_bytes(const AttentionBackward& call);

/// The checks that all steps share: aligned chunks of 16 bytes in every tensor and table, the head
/// dimension, and a workspace of this size.
tile::Status check_attention(const AttentionForward& call, std::int64_t workspace_bytes);
tile::Status check_attention(const AttentionBackward& call, std::int64_t workspace_bytes);

/// The rotation of the call's q and k into tensors without gaps.
RotaryProblem rotation_of(const AttentionForward& call);
RotaryProblem rotation_of(const AttentionBackward& call);

// The steps, and what their own kernels take.
using AttentionStep = tile::Status(const AttentionForward&, void* stream);
AttentionStep composed, fused;
using AttentionTakes = tile::Status(const AttentionForward&, const tile::Device&);
AttentionTakes takes_composed, takes_fused;

using AttentionBackwardStep = tile::Status(const AttentionBackward&, void* stream);
AttentionBackwardStep composed, fused;
using AttentionBackwardTakes = tile::Status(const AttentionBackward&, const tile::Device&);
AttentionBackwardTakes takes_composed, takes_fused;

// ---- The ladders ----

inline constexpr tile::EnumSet<tile::DType> k16Bits{tile::DType::fp16, tile::DType::bf16};
inline constexpr tile::EnumSet<tile::Feature> kNeeds{tile::Feature::bf16_mma,
                                                     tile::Feature::cp_async};
// Batch, length, heads, heads of k and v, head dimension, 1 for causal, 1 for interleaved.
inline constexpr tile::Shows kShowsAttention{{2, 75, 4, 2, 64, 1, 0}, {2, 8192, 32, 8, 128, 1, 0}};

using AttentionLadder = tile::Ladder<AttentionForward>;
inline constexpr AttentionLadder::Step kAttention[] = {
    {.name = "composed",
     .idea = "q and k rotated in memory, by step `vectors`; then attention",
     .types = k16Bits,
     .needs = kNeeds,
     .takes = takes_composed,
     .otherwise = "",
     .shows = kShowsAttention,
     .launch = composed,
     .workspace_bytes = rotated_bytes},
    {.name = "fused",
     .idea = "tiles of q and k are rotated in shared memory, once they have landed",
     .types = k16Bits,
     .needs = kNeeds,
     .takes = takes_fused,
     .otherwise = "composed",
     .shows = kShowsAttention,
     .launch = fused},
};
inline constexpr AttentionLadder kAttentionLadder{.name = "attention",
                                                  .kernels = "attention_",
                                                  .steps = kAttention,
                                                  .validate = validate,
                                                  .is_empty = is_empty};

using AttentionBackwardLadder = tile::Ladder<AttentionBackward>;
inline constexpr AttentionBackwardLadder::Step kAttentionBackward[] = {
    {.name = "composed",
     .idea = "q and k rotated in memory, attention's gradients, and dq and dk rotated back",
     .types = k16Bits,
     .needs = kNeeds,
     .takes = takes_composed,
     .otherwise = "",
     .shows = kShowsAttention,
     .launch = composed,
     .workspace_bytes = composed_bytes},
    {.name = "fused",
     .idea = "tiles are rotated in shared memory; dq and dk are rotated back in registers",
     .types = k16Bits,
     .needs = kNeeds,
     .takes = takes_fused,
     .otherwise = "composed",
     .shows = kShowsAttention,
     .launch = fused,
     .workspace_bytes = stats_bytes},
};
inline constexpr AttentionBackwardLadder kAttentionBackwardLadder{.name = "attention backward",
                                                                  .kernels = "attention_backward_",
                                                                  .steps = kAttentionBackward,
                                                                  .validate = validate,
                                                                  .is_empty = is_empty};

}  // namespace rope
