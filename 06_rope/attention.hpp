// Attention of q and k that are rotated, forward and backward: the problems, the ladders and the
// references.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "harness/attention_reference.hpp"
#include "rotary.hpp"

namespace rope {

/// Chapter 05's attention, of as many keys as queries. R rotates rows of q and k by their positions
/// before they are multiplied (RotaryProblem):
///
///     s_ij = scale (R_i q_i) (R_j k_j)       p_ij = exp(s_ij - lse_i)       o_i = sum_j p_ij v_j
///
/// lse_i is log sum_j exp(s_ij). A query sees all keys; if it is causal, those up to its own. heads
/// / kv_heads heads of q share one of k and v.
struct AttentionProblem {
  tile::DType type;
  std::int64_t batch, length, heads, kv_heads, head_dim;
  bool causal = true;
  float scale = 1;                     // positive and finite; 1 / sqrt(head_dim) is usual
  std::int64_t rotary_dim = head_dim;  // from here on as in RotaryProblem
  Layout layout = Layout::half_split;
  std::int64_t first_position = 0, table_positions = 0;
  float attention_factor = 1;
  Strides q = packed_strides(length, heads, head_dim);
  Strides k = packed_strides(length, kv_heads, head_dim);
  Strides v = packed_strides(length, kv_heads, head_dim);
  Strides o = packed_strides(length, heads, head_dim);
};

/// Device pointers to the first elements, aligned to an element. What is written overlaps nothing
/// else.
struct AttentionBuffers {
  const void* q = nullptr;         // [batch][length][heads][head_dim]
  const void* k = nullptr;         // [batch][length][kv_heads][head_dim]
  const void* v = nullptr;         // as k
  void* o = nullptr;               // as q
  float* lse = nullptr;            // [batch][heads][length]; null if not needed
  const float* cos = nullptr;      // [table_positions][rotary_dim / 2]
  const float* sin = nullptr;      // as cos
  const int* positions = nullptr;  // [batch][length]; null: they count from first_position
  void* workspace = nullptr;       // aligned to 16 bytes; holds nothing before or after
  std::int64_t workspace_bytes = 0;
};

/// From the gradient dout of a loss with respect to o:
///
///     delta_i = dout_i o_i                     ds_ij = p_ij (dout_i v_j - delta_i)
///     dq_i = scale R_i^T sum_j ds_ij R_j k_j   dk_j = scale R_j^T sum_i ds_ij R_i q_i
///     dv_j = sum_i p_ij dout_i
///
/// dk and dv are sums over the heads that share them, too.
struct AttentionBackwardProblem {
  tile::DType type;
  std::int64_t batch, length, heads, kv_heads, head_dim;
  bool causal = true;
  float scale = 1;
  std::int64_t rotary_dim = head_dim;
  Layout layout = Layout::half_split;
  std::int64_t first_position = 0, table_positions = 0;
  float attention_factor = 1;
  Strides q = packed_strides(length, heads, head_dim);
  Strides k = packed_strides(length, kv_heads, head_dim);
  Strides v = packed_strides(length, kv_heads, head_dim);
  Strides o = packed_strides(length, heads, head_dim);
  Strides dout = packed_strides(length, heads, head_dim);
  Strides dq = packed_strides(length, heads, head_dim);
  Strides dk = packed_strides(length, kv_heads, head_dim);
  Strides dv = packed_strides(length, kv_heads, head_dim);
};

/// As above. dq, dk and dv may be interleaved, as in one tensor of [batch][length][heads].
struct AttentionBackwardBuffers {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  const void* o = nullptr;     // from the forward pass
  const float* lse = nullptr;  // [batch][heads][length], from the forward pass too
  const void* dout = nullptr;  // as o
  void* dq = nullptr;          // as q
  void* dk = nullptr;          // as k
  void* dv = nullptr;          // as v
  const float* cos = nullptr;
  const float* sin = nullptr;
  const int* positions = nullptr;
  void* workspace = nullptr;
  std::int64_t workspace_bytes = 0;
};

/// What is checked before any step. The Status names the argument that is wrong.
tile::Status validate(const AttentionProblem& problem, const AttentionBuffers& buffers);
tile::Status validate(const AttentionBackwardProblem& problem,
                      const AttentionBackwardBuffers& buffers);

/// Checks the sizes and options only. Strides are checked together with their tensors.
tile::Status validate_sizes(const AttentionProblem& problem);
tile::Status validate_sizes(const AttentionBackwardProblem& problem);

/// The same checks, except for the element type. With frequencies (for the reference) the tables
/// may be null.
tile::Status validate_tensors(const AttentionProblem& problem, const AttentionBuffers& buffers,
                              const double* frequencies = nullptr);
tile::Status validate_tensors(const AttentionBackwardProblem& problem,
                              const AttentionBackwardBuffers& buffers,
                              const double* frequencies = nullptr);

inline bool is_empty(const AttentionProblem& p) {
  return p.batch == 0 || p.length == 0 || p.heads == 0;
}
inline bool is_empty(const AttentionBackwardProblem& p) {
  return p.batch == 0 || p.length == 0 || p.heads == 0;
}

/// The device memory that the step of this name needs besides its arguments, if the sizes are
/// valid: for step `composed` rotated copies of q and k, and for every backward step two numbers
/// for each query.
std::int64_t workspace_bytes(const AttentionProblem& problem, std::string_view step);
std::int64_t workspace_bytes(const AttentionBackwardProblem& problem, std::string_view step);

/// The checks that all steps share: aligned chunks of 16 bytes, the head dimension, the workspace.
tile::Status check_attention(const AttentionProblem& problem, const AttentionBuffers& buffers,
                             std::string_view step);
tile::Status check_attention(const AttentionBackwardProblem& problem,
                             const AttentionBackwardBuffers& buffers, std::string_view step);

/// The rotation of q and k into tensors without gaps.
template <class Problem>
RotaryProblem rotation_of(const Problem& p) {
  RotaryProblem r{.type = p.type,
                  .batch = p.batch,
                  .length = p.length,
                  .heads = p.heads,
                  .kv_heads = p.kv_heads,
                  .head_dim = p.head_dim,
                  .rotary_dim = p.rotary_dim};
  r.layout = p.layout;
  r.first_position = p.first_position;
  r.table_positions = p.table_positions;
  r.attention_factor = p.attention_factor;
  r.q = p.q, r.k = p.k;
  return r;
}

// The steps, and what their own kernels take.
using AttentionStep = tile::Status(const AttentionProblem&, const AttentionBuffers&, void* stream);
AttentionStep composed, fused;
using AttentionTakes = tile::Status(const AttentionProblem&, const AttentionBuffers&,
                                    const tile::Device&);
AttentionTakes takes_composed, takes_fused;

using AttentionBackwardStep = tile::Status(const AttentionBackwardProblem&,
                                           const AttentionBackwardBuffers&, void* stream);
AttentionBackwardStep composed, fused;
using AttentionBackwardTakes = tile::Status(const AttentionBackwardProblem&,
                                            const AttentionBackwardBuffers&, const tile::Device&);
AttentionBackwardTakes takes_composed, takes_fused;

// ---- The ladders ----

inline constexpr tile::EnumSet<tile::DType> k16Bits{tile::DType::fp16, tile::DType::bf16};
inline constexpr tile::EnumSet<tile::Feature> kNeeds{tile::Feature::bf16_mma,
                                                     tile::Feature::cp_async};
// Batch, length, heads, heads of k and v, head dimension, 1 for causal, 1 for interleaved.
inline constexpr tile::Shows kShowsAttention{{2, 75, 4, 2, 64, 1, 0}, {2, 8192, 32, 8, 128, 1, 0}};

using AttentionLadder = tile::Ladder<AttentionProblem, AttentionBuffers>;
inline constexpr AttentionLadder::Step kAttention[] = {
    {.name = "composed",
     .idea = "q and k rotated in memory, by step `vectors`; then attention",
     .types = k16Bits,
     .needs = kNeeds,
     .takes = takes_composed,
     .otherwise = "",
     .shows = kShowsAttention,
     .launch = composed},
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

using AttentionBackwardLadder = tile::Ladder<AttentionBackwardProblem, AttentionBackwardBuffers>;
inline constexpr AttentionBackwardLadder::Step kAttentionBackward[] = {
    {.name = "composed",
     .idea = "q and k rotated in memory, attention's gradients, and dq and dk rotated back",
     .types = k16Bits,
     .needs = kNeeds,
     .takes = takes_composed,
     .otherwise = "",
     .shows = kShowsAttention,
     .launch = composed},
    {.name = "fused",
     .idea = "tiles are rotated in shared memory; dq and dk are rotated back in registers",
     .types = k16Bits,
     .needs = kNeeds,
     .takes = takes_fused,
     .otherwise = "composed",
     .shows = kShowsAttention,
     .launch = fused},
};
inline constexpr AttentionBackwardLadder kAttentionBackwardLadder{.name = "attention backward",
                                                                  .kernels = "attention_backward_",
                                                                  .steps = kAttentionBackward,
                                                                  .validate = validate,
                                                                  .is_empty = is_empty};

// ---- The references ----

/// Tensors without padding. `rows` below are numbers of tokens among batch * length.
struct AttentionInputs {
  std::span<const double> q;            // [rows][heads][head_dim]
  std::span<const double> k, v;         // [batch][length][kv_heads][head_dim]
  std::span<const double> frequencies;  // [rotary_dim / 2]
  std::vector<int> positions = {};      // [batch][length]; empty: they count
};

/// o and lse in double, and how far a correct kernel may be from them, which rounds rotated q and k
/// to the type, of these rows. Empty means all rows.
tile::AttentionExpected reference(const AttentionProblem& problem, const AttentionInputs& inputs,
                                  std::span<const std::int64_t> rows = {});

struct AttentionBackwardInputs {
  std::span<const double> q;            // [batch][length][heads][head_dim]
  std::span<const double> k, v;         // [batch][length][kv_heads][head_dim]
  std::span<const double> o, lse;       // as q; [batch][length][heads]
  std::span<const double> dout;         // as q
  std::span<const double> frequencies;  // [rotary_dim / 2]
  std::vector<int> positions = {};
};

/// A kernel may also round dq and dk before it rotates them back.
tile::AttentionGradients reference(const AttentionBackwardProblem& problem,
                                   const AttentionBackwardInputs& inputs,
                                   std::span<const std::int64_t> query_rows = {},
                                   std::span<const std::int64_t> key_rows = {});

}  // namespace rope
