// Attention from hidden states, shared by both passes: from x to q, k and v, their attention, and
// the size of the workspace.
#include "hidden/hidden.cuh"

#include "embedding/embedding.hpp"
#include "tile/host/attention_launch.hpp"

namespace windowed_rope {
namespace {

constexpr int kThreads = 256;

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

tile::Status multiply_by_gain(const Hidden& p, void* q, void* k, void* stream) {
  unsigned blocks = 0;
  const std::int64_t all = p.batch * p.length * p.heads * p.head_dim;
  TILE_TRY(tile::blocks_for("batch, length and heads", all, kThreads, &blocks));
  return tile::with_element_type(p.type, [&](auto element) -> tile::Status {
    using T = decltype(element);
    return tile::launch(hidden_composed_gain<T>, "hidden_composed_gain", blocks, kThreads, 0,
                        stream, static_cast<T*>(q), static_cast<T*>(k), p.gain, all, p.length,
                        p.heads, p.head_dim);
  });
}

ProjectedRows rows_in(const Hidden& p, bool is_backward) {
  const auto size = static_cast<std::int64_t>(tile::size_bytes(p.type));
  const std::int64_t of_h = size * p.batch * p.length * p.model_dim;
  const std::int64_t of_q = size * p.batch * p.length * p.heads * p.head_dim;
  ProjectedRows rows;
  const auto take = [&](std::int64_t bytes) -> void* {  // each begins at a multiple of 256 bytes
    void* piece = p.workspace ? static_cast<std::byte*>(p.workspace) + rows.bytes : nullptr;
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

/// The sizes and options of the attention in between, and its workspace.
tile::Attention sizes_of(const Hidden& p, const ProjectedRows& rows) {
  tile::Attention inner{.type = p.type,
                        .batch = p.batch,
                        .heads = p.heads,
                        .queries = p.length,
                        .keys = p.length,
                        .head_dim = p.head_dim};
  inner.right = p.causal ? 0 : kUnlimited;
  inner.scale = p.scale;
  if (p.encoding == Encoding::exposb) {
    inner.distance_part = kExposbPart, inner.distance_rate = kExposbRate;
  }
  if (p.encoding == Encoding::windowed) {
    inner.window = p.window;
    inner.rotary = {.cos = p.cos,
                    .sin = p.sin,
                    .rotary_dim = p.head_dim,
                    .table_positions = p.length,
                    .far = tile::FarRotation::rerope};
  }
  inner.workspace = rows.rest;
  inner.workspace_bytes = p.workspace_bytes - rows.bytes;
  return inner;
}

template <class Call>
std::int64_t all_bytes(const Call& p) {
  Call anywhere = p;  // null pointers count as aligned
  anywhere.workspace = nullptr, anywhere.o = nullptr;
  if constexpr (requires { anywhere.dout; }) anywhere.dout = nullptr;
  const ProjectedRows rows = projected_rows(anywhere);
  const auto inner = attention_of(anywhere, rows);
  const std::int64_t more = p.encoding == Encoding::windowed
                                ? method::composed_bytes(inner)
                                : tile::bytes_of_last(ladder_of(p), inner);
  std::int64_t all = 0;
  return __builtin_add_overflow(rows.bytes, more, &all) ? INT64_MAX : all;
}

}  // namespace

ProjectedRows projected_rows(const HiddenForward& p) { return rows_in(p, false); }
ProjectedRows projected_rows(const HiddenBackward& p) { return rows_in(p, true); }

std::int64_t composed_bytes(const HiddenForward& p) { return all_bytes(p); }
std::int64_t composed_bytes(const HiddenBackward& p) { return all_bytes(p); }

AttentionForward attention_of(const HiddenForward& p, const ProjectedRows& rows) {
  AttentionForward inner{sizes_of(p, rows)};
  inner.q.data = rows.q, inner.k.data = rows.k, inner.v.data = rows.v;
  inner.o.data = p.o, inner.lse = p.lse;
  if (p.encoding != Encoding::windowed) inner.q_far = inner.q, inner.k_far = inner.k;
  return inner;
}
AttentionBackward attention_of(const HiddenBackward& p, const ProjectedRows& rows) {
  AttentionBackward inner{sizes_of(p, rows)};
  inner.q.data = rows.q, inner.k.data = rows.k, inner.v.data = rows.v;
  inner.o.data = const_cast<void*>(p.o), inner.lse = p.lse;
  inner.dout.data = const_cast<void*>(p.dout);
  inner.dq.data = rows.dq, inner.dk.data = rows.dk, inner.dv.data = rows.dv;
  if (p.encoding == Encoding::windowed) return inner;
  inner.q_far = inner.q, inner.k_far = inner.k;
  inner.dq_far.data = rows.far_dq, inner.dk_far.data = rows.far_dk;
  return inner;
}

matmul::Problem projection_of(const Hidden& p) {
  return {.type = p.type, .m = p.batch * p.length, .n = p.heads * p.head_dim, .k = p.model_dim};
}

tile::Status multiply(const matmul::Problem& p, const void* a, const void* b, void* c,
                      void* stream) {
  return run_last(matmul::kLadder, p, {a, b, c}, stream);
}

tile::Status turn(const Hidden& p, rope::Pass pass, void* q, void* k, void* stream) {
  if (adds_table(p.encoding) || p.encoding == Encoding::windowed) return {};
  if (has_gain(p.encoding) && pass == rope::Pass::backward) {
    TILE_TRY(multiply_by_gain(p, q, k, stream));
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
  buffers.cos = p.cos, buffers.sin = p.sin;
  TILE_TRY(run_last(rope::kRotaryLadder, r, buffers, stream));
  if (!has_gain(p.encoding) || pass == rope::Pass::backward) return {};
  return multiply_by_gain(p, q, k, stream);
}

// snippet-begin project
tile::Status project(const Hidden& p, const ProjectedRows& rows, void* stream) {
  if (adds_table(p.encoding)) {
    const rope::EmbeddingProblem embedding{.type = p.type,
                                           .batch = p.batch,
                                           .length = p.length,
                                           .dim = p.model_dim,
                                           .table_positions = p.length};
    TILE_TRY(run_last(rope::kEmbeddingLadder, embedding, {p.x, p.table, rows.h}, stream));
  }
  const matmul::Problem by = projection_of(p);
  const void* h = states_of(p, rows);
  TILE_TRY(multiply(by, h, p.wq, rows.q, stream));
  TILE_TRY(multiply(by, h, p.wk, rows.k, stream));
  TILE_TRY(multiply(by, states_of_values(p, rows), p.wv, rows.v, stream));
  return turn(p, rope::Pass::forward, rows.q, rows.k, stream);
}
// snippet-end project

}  // namespace windowed_rope
