// Windowed attention of plain q and k, which are rotated one way for near keys and another for far
// ones: ReRoPE, Leaky ReRoPE, Self-Extend.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "rotary/rotary.hpp"
#include "windowed/windowed_rope.hpp"

namespace windowed_rope {

/// How far apart a query at position i and a key at j, with i - j >= W, are for the rotation:
enum class Method {
  rerope,        // W. Su, "Rectified Rotary Position Embeddings" (2023), github.com/bojone/rerope
  leaky_rerope,  // W + (i - j - W) / factor. By the same author
  self_extend,   // floor(i/G) - floor(j/G) + W - floor(W/G), G the factor. Jin et al. (2024), arXiv
                 // 2401.01325
};
std::string_view name(Method method);

/// What the positions for far keys are computed from.
struct MethodRule {
  Method method = Method::rerope;
  std::int64_t window = 0;  // W, at least 0
  double factor = 1;        // leaky_rerope: at least 1; self_extend: a whole number, at least 1
};
/// The Status names the argument that is wrong.
tile::Status validate(const MethodRule& rule);

// snippet-begin places
/// The position by which a query, or a key, at `position` is rotated for far keys.
double far_query_place(const MethodRule& rule, std::int64_t position);
double far_key_place(const MethodRule& rule, std::int64_t position);
// snippet-end places

/// Cosines and sines, [3][positions][pairs]: of a token's own position; of far_query_place(); of
/// far_key_place(). Computed in double, rounded once, times the attention factor.
struct MethodTables {
  std::vector<float> cos, sin;
};
MethodTables method_tables(const MethodRule& rule, std::span<const double> frequencies,
                           std::int64_t positions, double attention_factor = 1);

/// With R(m) the rotation by m (RotaryProblem), i' and j' the far positions, and i the position
/// that query i stands beside:
///
///     s_ij = scale (R(i) q_i) (R(j) k_j) if i - j < window, else scale (R(i') q_i) (R(j') k_j)
///
/// and from these o and lse as in ForwardProblem. A query sees the keys up to its own position: for
/// later keys the methods have no rotation.
struct MethodProblem {
  tile::DType type;
  std::int64_t batch, heads, queries, keys, head_dim;
  std::int64_t kv_heads = heads;
  std::int64_t window = 0;  // at least 0
  bool causal = true;       // false is refused
  float scale = 1;
  Method method = Method::rerope;  // the steps get it and the factor through the tables only
  double factor = 1;
  std::int64_t rotary_dim = head_dim;  // from here on as in RotaryProblem
  rope::Layout layout = rope::Layout::half_split;
  std::int64_t table_positions = 0;  // at least as many as there are keys
  float attention_factor = 1;
  Strides q = packed_strides(queries, heads, head_dim);
  Strides k = packed_strides(keys, kv_heads, head_dim);
  Strides v = packed_strides(keys, kv_heads, head_dim);
  Strides o = packed_strides(queries, heads, head_dim);
};

/// As in ForwardBuffers.
struct MethodBuffers {
  const void* q = nullptr;     // [batch][queries][heads][head_dim]
  const void* k = nullptr;     // [batch][keys][kv_heads][head_dim]
  const void* v = nullptr;     // as k
  void* o = nullptr;           // as q
  float* lse = nullptr;        // [batch][heads][queries]; null if not needed
  const float* cos = nullptr;  // method_tables(), [3][table_positions][rotary_dim / 2]
  const float* sin = nullptr;  // as cos
  const int* query_lengths = nullptr;
  const int* key_lengths = nullptr;
  void* workspace = nullptr;
  std::int64_t workspace_bytes = 0;
};

/// From the gradient dout of a loss with respect to o, with dq1, dq2, dk1, dk2 as in
/// BackwardProblem, of rotated q and k:
///
///     dq_i = R(i)^T dq1_i + R(i')^T dq2_i     dk_j = R(j)^T dk1_j + R(j')^T dk2_j
struct MethodBackwardProblem {
  tile::DType type;
  std::int64_t batch, heads, queries, keys, head_dim;
  std::int64_t kv_heads = heads;
  std::int64_t window = 0;
  bool causal = true;
  float scale = 1;
  Method method = Method::rerope;
  double factor = 1;
  std::int64_t rotary_dim = head_dim;
  rope::Layout layout = rope::Layout::half_split;
  std::int64_t table_positions = 0;
  float attention_factor = 1;
  Strides q = packed_strides(queries, heads, head_dim);
  Strides k = packed_strides(keys, kv_heads, head_dim);
  Strides v = packed_strides(keys, kv_heads, head_dim);
  Strides o = packed_strides(queries, heads, head_dim);
  Strides dout = packed_strides(queries, heads, head_dim);
  Strides dq = packed_strides(queries, heads, head_dim);
  Strides dk = packed_strides(keys, kv_heads, head_dim);
  Strides dv = packed_strides(keys, kv_heads, head_dim);
};

/// As in BackwardBuffers.
struct MethodBackwardBuffers {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  const void* o = nullptr;     // from the forward pass
  const float* lse = nullptr;  // [batch][heads][queries], from the forward pass too
  const void* dout = nullptr;
  void* dq = nullptr;
  void* dk = nullptr;
  void* dv = nullptr;
  const float* cos = nullptr;
  const float* sin = nullptr;
  const int* query_lengths = nullptr;
  const int* key_lengths = nullptr;
  void* workspace = nullptr;
  std::int64_t workspace_bytes = 0;
};

/// What is checked before any step. The Status names the argument that is wrong.
tile::Status validate(const MethodProblem& problem, const MethodBuffers& buffers);
tile::Status validate(const MethodBackwardProblem& problem, const MethodBackwardBuffers& buffers);

/// Checks the sizes and options only.
tile::Status validate_sizes(const MethodProblem& problem);
tile::Status validate_sizes(const MethodBackwardProblem& problem);

/// The same checks, except for the element type. With frequencies (for the reference) the tables
/// may be null.
tile::Status validate_tensors(const MethodProblem& problem, const MethodBuffers& buffers,
                              const double* frequencies = nullptr);
tile::Status validate_tensors(const MethodBackwardProblem& problem,
                              const MethodBackwardBuffers& buffers,
                              const double* frequencies = nullptr);

inline bool is_empty(const MethodProblem& p) {
  return p.batch == 0 || p.heads == 0 || p.queries == 0;
}
inline bool is_empty(const MethodBackwardProblem& p) {
  return p.batch == 0 || p.heads == 0 || (p.queries == 0 && p.keys == 0);
}

/// The device memory that the step of this name needs besides its arguments, if the sizes are
/// valid: rotated q and k, each twice, backward their gradients, too; the queries' positions; and
/// the workspace of the attention in between. Step `prologue` needs rotated k only.
std::int64_t workspace_bytes(const MethodProblem& problem, std::string_view step);
std::int64_t workspace_bytes(const MethodBackwardProblem& problem, std::string_view step);

/// Whether every row consists of aligned chunks of 16 bytes, backward those of q, k and their
/// gradients; if not, the Status says which argument is in the way.
tile::Status check_chunks(const MethodProblem& problem, const MethodBuffers& buffers);
tile::Status check_chunks(const MethodBackwardProblem& problem,
                          const MethodBackwardBuffers& buffers);

// The steps, and what their own kernels take.
using MethodStep = tile::Status(const MethodProblem&, const MethodBuffers&, void* stream);
MethodStep composed, prologue, turn_twice;
using MethodTakes = tile::Status(const MethodProblem&, const MethodBuffers&, const tile::Device&);
MethodTakes takes_composed, takes_prologue, takes_turn_twice;
using MethodBackwardStep = tile::Status(const MethodBackwardProblem&, const MethodBackwardBuffers&,
                                        void* stream);
MethodBackwardStep composed, chunks, sums, prologue;
using MethodBackwardTakes = tile::Status(const MethodBackwardProblem&, const MethodBackwardBuffers&,
                                         const tile::Device&);
MethodBackwardTakes takes_composed, takes_chunks, takes_sums, takes_prologue;

// ---- The ladders ----

// Batch, heads, heads of k and v, queries, keys, head dimension, window, and the method: 0 ReRoPE,
// 1 Leaky ReRoPE with factor 16, 2 Self-Extend with groups of 8.
inline constexpr tile::Shows kShowsMethod{{1, 2, 1, 75, 150, 64, 50, 1},
                                          {1, 32, 32, 8192, 8192, 64, 2048, 0}};

using MethodLadder = tile::Ladder<MethodProblem, MethodBuffers>;
inline constexpr MethodLadder::Step kMethod[] = {
    {.name = "composed",
     .idea = "q and k rotated twice in memory, by chapter 06's last step; then windowed attention",
     .types = kTypes,
     .needs = {},
     .takes = takes_composed,
     .otherwise = "",
     .shows = kShowsMethod,
     .launch = composed},
    {.name = "prologue",
     .idea = "keys rotated in memory, queries by the block that has them",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async},
     .takes = takes_prologue,
     .otherwise = "composed",
     .shows = kShowsMethod,
     .launch = prologue},
    {.name = "turn_twice",
     .idea = "q and k read once for both turns; then windowed attention by wgmma",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async, tile::Feature::tma,
               tile::Feature::wgmma},
     .takes = takes_turn_twice,
     .otherwise = "prologue",
     .shows = kShowsMethod,
     .launch = turn_twice},
};
inline constexpr MethodLadder kMethodLadder{.name = "method",
                                            .kernels = "method_",
                                            .steps = kMethod,
                                            .validate = validate,
                                            .is_empty = is_empty};

using MethodBackwardLadder = tile::Ladder<MethodBackwardProblem, MethodBackwardBuffers>;
inline constexpr MethodBackwardLadder::Step kMethodBackward[] = {
    {.name = "composed",
     .idea = "rotated q and k again, windowed attention's gradients, each rotated back and added",
     .types = kTypes,
     .needs = {},
     .takes = takes_composed,
     .otherwise = "",
     .shows = kShowsMethod,
     .launch = composed},
    {.name = "chunks",
     .idea = "a row read once for both its turns, and gradients rotated back 16 bytes at a time",
     .types = k16Bits,
     .needs = {},
     .takes = takes_chunks,
     .otherwise = "composed",
     .shows = kShowsMethod,
     .launch = chunks},
    {.name = "sums",
     .idea = "dq rotated while it is a sum in fp32: dq1 and dq2 are never written",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async},
     .takes = takes_sums,
     .otherwise = "chunks",
     .shows = kShowsMethod,
     .launch = sums},
    {.name = "prologue",
     .idea = "keys rotated, and dk rotated back, by the block that has them",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async},
     .takes = takes_prologue,
     .otherwise = "sums",
     .shows = kShowsMethod,
     .launch = prologue},
};
inline constexpr MethodBackwardLadder kMethodBackwardLadder{.name = "method backward",
                                                            .kernels = "method_backward_",
                                                            .steps = kMethodBackward,
                                                            .validate = validate,
                                                            .is_empty = is_empty};

// ---- The references ----

/// Tensors without padding. `rows` below are numbers of queries among batch * queries.
struct MethodInputs {
  std::span<const double> q;            // [batch][queries][heads][head_dim]
  std::span<const double> k, v;         // [batch][keys][kv_heads][head_dim]
  std::span<const double> frequencies;  // [rotary_dim / 2]
  std::vector<int> query_lengths = {}, key_lengths = {};
};

/// o and lse in double, and how far a correct kernel may be from them, which rounds rotated q and k
/// to the type, of these rows. Empty means all rows.
tile::AttentionExpected reference(const MethodProblem& problem, const MethodInputs& inputs,
                                  std::span<const std::int64_t> rows = {});

struct MethodBackwardInputs {
  std::span<const double> q;            // [batch][queries][heads][head_dim]
  std::span<const double> k, v;         // [batch][keys][kv_heads][head_dim]
  std::span<const double> o, lse;       // as q; [batch][queries][heads]
  std::span<const double> dout;         // as q
  std::span<const double> frequencies;  // [rotary_dim / 2]
  std::vector<int> query_lengths = {}, key_lengths = {};
};

/// dq, dk and dv. A kernel may also round the gradients of rotated rows before it turns them back.
tile::AttentionGradients reference(const MethodBackwardProblem& problem,
                                   const MethodBackwardInputs& inputs,
                                   std::span<const std::int64_t> query_rows = {},
                                   std::span<const std::int64_t> key_rows = {});

}  // namespace windowed_rope
