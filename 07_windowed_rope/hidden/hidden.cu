// Attention from hidden states, shared by both passes: from x to q, k and v, and the size of the
// workspace.
#include "hidden/hidden.cuh"

#include "embedding/embedding.hpp"

namespace windowed_rope {
namespace {

constexpr int kThreads = 256;

// snippet-begin gain
/// Multiplies rotated q and k by the gain, or their gradients before they are rotated back.
template <class T>
__global__ void hidden_composed_gain(T* q,               // [batch][length][heads][dim]
                                     T* k,               // as q
                                     const float* gain,  // [length][dim]
                                     std::int64_t all, int length, int heads, int dim) {
  const std::int64_t at = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= all) return;
  const float by = gain[at / dim / heads % length * dim + at % dim];
  q[at] = static_cast<T>(by * static_cast<float>(q[at]));
  k[at] = static_cast<T>(by * static_cast<float>(k[at]));
}
// snippet-end gain

tile::Status multiply_by_gain(const HiddenProblem& p, const float* gain, void* q, void* k,
                              void* stream) {
  unsigned blocks = 0;
  const std::int64_t all = p.batch * p.length * p.heads * p.head_dim;
  TILE_TRY(tile::blocks_for("batch, length and heads", all, kThreads, &blocks));
  return tile::with_element_type(p.type, [&](auto element) -> tile::Status {
    using T = decltype(element);
    return tile::launch(hidden_composed_gain<T>, "hidden_composed_gain", blocks, kThreads, 0,
                        stream, static_cast<T*>(q), static_cast<T*>(k), gain, all, p.length,
                        p.heads, p.head_dim);
  });
}

ProjectedRows rows_in(const HiddenProblem& p, void* workspace, bool is_backward) {
  const auto size = static_cast<std::int64_t>(tile::size_bytes(p.type));
  const std::int64_t of_h = size * p.batch * p.length * p.model_dim;
  const std::int64_t of_q = size * p.batch * p.length * p.heads * p.head_dim;
  ProjectedRows rows;
  const auto take = [&](std::int64_t bytes) -> void* {  // each begins at a multiple of 256 bytes
    void* piece = workspace ? static_cast<std::byte*>(workspace) + rows.bytes : nullptr;
    rows.bytes += (bytes + 255) / 256 * 256;
    return piece;
  };
  if (adds_table(p.encoding)) rows.h = take(of_h);
  rows.q = take(of_q), rows.k = take(of_q), rows.v = take(of_q);
  if (is_backward) {
    rows.dq = take(of_q), rows.dk = take(of_q), rows.dv = take(of_q);
    if (p.encoding != Encoding::windowed) rows.far_dq = take(of_q), rows.far_dk = take(of_q);
  }
  rows.rest = take(0);
  return rows;
}

std::int64_t sum(std::int64_t a, std::int64_t b) {
  return __builtin_add_overflow(a, b, &a) ? INT64_MAX : a;
}

}  // namespace

ProjectedRows projected_rows(const HiddenProblem& p, void* workspace) {
  return rows_in(p, workspace, false);
}
ProjectedRows projected_rows(const HiddenBackwardProblem& p, void* workspace) {
  return rows_in(p, workspace, true);
}

std::int64_t workspace_bytes(const HiddenProblem& p) {
  const std::int64_t own = projected_rows(p, nullptr).bytes;
  if (p.encoding != Encoding::windowed) {
    return sum(own, attention_bytes(kForwardLadder, attention_of<ForwardProblem>(p)));
  }
  return sum(own, workspace_bytes(windowed_of<MethodProblem>(p), "composed"));
}
std::int64_t workspace_bytes(const HiddenBackwardProblem& p) {
  const std::int64_t own = projected_rows(p, nullptr).bytes;
  if (p.encoding != Encoding::windowed) {
    return sum(own, attention_bytes(kBackwardLadder, attention_of<BackwardProblem>(p)));
  }
  return sum(own, workspace_bytes(windowed_of<MethodBackwardProblem>(p), "composed"));
}

matmul::Problem projection_of(const HiddenProblem& p) {
  return {.type = p.type, .m = p.batch * p.length, .n = p.heads * p.head_dim, .k = p.model_dim};
}

tile::Status multiply(const matmul::Problem& p, const void* a, const void* b, void* c,
                      void* stream) {
  return run_last(matmul::kLadder, p, {a, b, c}, stream);
}

tile::Status turn(const HiddenProblem& p, rope::Pass pass, const float* cos, const float* sin,
                  const float* gain, void* q, void* k, void* stream) {
  if (adds_table(p.encoding) || p.encoding == Encoding::windowed) return {};
  if (has_gain(p.encoding) && pass == rope::Pass::backward) {
    TILE_TRY(multiply_by_gain(p, gain, q, k, stream));
  }
  rope::RotaryProblem r{.type = p.type,
                        .batch = p.batch,
                        .length = p.length,
                        .heads = p.heads,
                        .kv_heads = p.heads,
                        .head_dim = p.head_dim};
  r.layout = has_gain(p.encoding) ? rope::Layout::interleaved : rope::Layout::half_split;
  r.pass = pass;
  r.table_positions = p.length;
  rope::RotaryBuffers buffers{.q = q, .k = k, .q_out = q, .k_out = k};
  buffers.cos = cos, buffers.sin = sin;
  TILE_TRY(run_last(rope::kRotaryLadder, r, buffers, stream));
  if (!has_gain(p.encoding) || pass == rope::Pass::backward) return {};
  return multiply_by_gain(p, gain, q, k, stream);
}

// snippet-begin project
tile::Status project(const HiddenProblem& p, const HiddenBuffers& b, const ProjectedRows& rows,
                     void* stream) {
  if (adds_table(p.encoding)) {
    const rope::EmbeddingProblem embedding{.type = p.type,
                                           .batch = p.batch,
                                           .length = p.length,
                                           .dim = p.model_dim,
                                           .table_positions = p.length};
    TILE_TRY(run_last(rope::kEmbeddingLadder, embedding, {b.x, b.table, rows.h}, stream));
  }
  const matmul::Problem by = projection_of(p);
  const void* h = states_of(p, b, rows);
  TILE_TRY(multiply(by, h, b.wq, rows.q, stream));
  TILE_TRY(multiply(by, h, b.wk, rows.k, stream));
  TILE_TRY(multiply(by, states_of_values(p, b, rows), b.wv, rows.v, stream));
  return turn(p, rope::Pass::forward, b.cos, b.sin, b.gain, rows.q, rows.k, stream);
}
// snippet-end project

}  // namespace windowed_rope
