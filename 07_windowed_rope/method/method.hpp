// Windowed attention of plain q and k, which are rotated one way for near keys and another for far
// ones: ReRoPE, Leaky ReRoPE, Self-Extend. Forward and backward: what is computed, and the ladders.
#pragma once

#include "windowed/windowed_rope.hpp"

namespace windowed_rope::method {

// With R(m) the rotation by m (RotaryProblem), i' and j' the far positions (method/tables.hpp), and
// i the position that query i stands beside:
//
//     s_ij = scale (R(i) q_i) (R(j) k_j) if i - j < window, else scale (R(i') q_i) (R(j') k_j)
//
// and from these o and lse as in windowed attention. A call's `rotary` has the tables of all three
// positions, which count from 0, and at least as many as there are keys. `right` is 0: for later
// keys the methods have no rotation. There is no second pair, and no distance factor.
//
// Backward, from the gradient dout of a loss with respect to o, with dq1, dq2, dk1, dk2 as in
// windowed attention, of rotated q and k:
//
//     dq_i = R(i)^T dq1_i + R(i')^T dq2_i     dk_j = R(j)^T dk1_j + R(j')^T dk2_j

/// What is checked before any step. The Status names the argument that is wrong.
tile::Status validate(const AttentionForward& p);
tile::Status validate(const AttentionBackward& p);

/// Checks the sizes and options only.
tile::Status validate_sizes(const AttentionForward& p);
tile::Status validate_sizes(const AttentionBackward& p);

/// The same checks, except for the element type. With frequencies (for the reference) the tables
/// may be null.
tile::Status validate_tensors(const AttentionForward& p, const double* frequencies = nullptr);
tile::Status validate_tensors(const AttentionBackward& p, const double* frequencies = nullptr);

// The device memory that steps need besides their arguments: rotated q and k, each twice, backward
// their gradients, too; the queries' positions; and the workspace of the attention in between. Step
// `prologue` needs rotated k only.
std::int64_t composed_bytes(const AttentionForward& p);
std::int64_t prologue_bytes(const AttentionForward& p);
std::int64_t composed_bytes(const AttentionBackward& p);

/// Windowed attention whose q, k, q_far and k_far, backward their gradients too, lie in p's
/// workspace, without gaps, and whose own workspace is the rest. `positions` are those of the keys
/// beside which the queries stand, [batch][queries], in the workspace, too; null if not needed.
/// Without a workspace all of these are null.
AttentionForward attention_of(const AttentionForward& p, int** positions = nullptr);
AttentionBackward attention_of(const AttentionBackward& p, int** positions = nullptr);

/// Whether the kernels that read each row once take the rows: aligned chunks of 16 bytes, backward
/// in q, k and their gradients, which are rotated whole, in half-split pairs.
tile::Status check_turning(const AttentionForward& p);
tile::Status check_turning(const AttentionBackward& p);

// The steps, and what their own kernels take.
using MethodStep = tile::Status(const AttentionForward&, void* stream);
MethodStep composed, prologue, turn_twice;
using MethodTakes = tile::Status(const AttentionForward&, const tile::Device&);
MethodTakes takes_composed, takes_prologue, takes_turn_twice;
using MethodBackwardStep = tile::Status(const AttentionBackward&, void* stream);
MethodBackwardStep composed, chunks, sums, prologue, turn_twice;
using MethodBackwardTakes = tile::Status(const AttentionBackward&, const tile::Device&);
MethodBackwardTakes takes_composed, takes_chunks, takes_sums, takes_prologue, takes_turn_twice;

// ---- The ladders ----

// Batch, heads, heads of k and v, queries, keys, head dimension, window, and the method: 0 ReRoPE,
// 1 Leaky ReRoPE with factor 16, 2 Self-Extend with groups of 8.
inline constexpr tile::Shows kShowsMethod{{1, 2, 1, 75, 150, 64, 50, 1},
                                          {1, 32, 32, 8192, 8192, 64, 2048, 0}};

using MethodLadder = tile::Ladder<AttentionForward>;
inline constexpr MethodLadder::Step kMethod[] = {
    {.name = "composed",
     .idea = "q and k rotated twice in memory, by chapter 06's last step; then windowed attention",
     .types = kTypes,
     .needs = {},
     .takes = takes_composed,
     .otherwise = "",
     .shows = kShowsMethod,
     .launch = composed,
     .workspace_bytes = composed_bytes},
    {.name = "prologue",
     .idea = "keys rotated in memory, queries by the block that has them",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async},
     .takes = takes_prologue,
     .otherwise = "composed",
     .shows = kShowsMethod,
     .launch = prologue,
     .workspace_bytes = prologue_bytes,
     .kernel = "windowed_two_visits"},
    {.name = "turn_twice",
     .idea = "q and k read once for both turns; then windowed attention by wgmma",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async, tile::Feature::tma,
               tile::Feature::wgmma},
     .takes = takes_turn_twice,
     .otherwise = "prologue",
     .shows = kShowsMethod,
     .launch = turn_twice,
     .workspace_bytes = composed_bytes},
};
inline constexpr MethodLadder kMethodLadder{.name = "method",
                                            .kernels = "method_",
                                            .steps = kMethod,
                                            .validate = validate,
                                            .is_empty = is_empty};

using MethodBackwardLadder = tile::Ladder<AttentionBackward>;
inline constexpr MethodBackwardLadder::Step kMethodBackward[] = {
    {.name = "composed",
     .idea = "rotated q and k again, windowed attention's gradients, each rotated back and added",
     .types = kTypes,
     .needs = {},
     .takes = takes_composed,
     .otherwise = "",
     .shows = kShowsMethod,
     .launch = composed,
     .workspace_bytes = composed_bytes},
    {.name = "chunks",
     .idea = "a row read once for both its turns, and gradients rotated back 16 bytes at a time",
     .types = k16Bits,
     .needs = {},
     .takes = takes_chunks,
     .otherwise = "composed",
     .shows = kShowsMethod,
     .launch = chunks,
     .workspace_bytes = composed_bytes},
    {.name = "sums",
     .idea = "dq rotated while it is a sum in fp32: dq1 and dq2 are never written",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async},
     .takes = takes_sums,
     .otherwise = "chunks",
     .shows = kShowsMethod,
     .launch = sums,
     .workspace_bytes = composed_bytes},
    {.name = "prologue",
     .idea = "keys rotated, and dk rotated back, by the block that has them",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async},
     .takes = takes_prologue,
     .otherwise = "sums",
     .shows = kShowsMethod,
     .launch = prologue,
     .workspace_bytes = composed_bytes},
    {.name = "turn_twice",
     .idea = "keys rotated in memory again, as in `sums`; then windowed attention by wgmma",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async, tile::Feature::tma,
               tile::Feature::wgmma},
     .takes = takes_turn_twice,
     .otherwise = "prologue",
     .shows = kShowsMethod,
     .launch = turn_twice,
     .workspace_bytes = composed_bytes,
     .kernel = "windowed_backward_wgmma"},
};
inline constexpr MethodBackwardLadder kMethodBackwardLadder{.name = "method backward",
                                                            .kernels = "method_backward_",
                                                            .steps = kMethodBackward,
                                                            .validate = validate,
                                                            .is_empty = is_empty};

}  // namespace windowed_rope::method
