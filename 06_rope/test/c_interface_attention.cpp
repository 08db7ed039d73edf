// Chapter 06's attention for callers of C.
#include <cmath>
#include <string_view>

#include "attention.hpp"
#include "harness/c/tensors.hpp"

namespace {

using rope::AttentionBackwardBuffers;
using rope::AttentionBackwardProblem;
using rope::AttentionBuffers;
using rope::AttentionProblem;
using rope::Strides;
using tile::Status;

const tile::c::RegisterLadder kForward{rope::kName, rope::kTitle,
                                       tile::infos_of(rope::kAttentionLadder)};
const tile::c::RegisterLadder kBackward{rope::kName, rope::kTitle,
                                        tile::infos_of(rope::kAttentionBackwardLadder)};

// The fields that the structs of both passes share.
template <class Args, class Problem, class Buffers>
Status read_common(const Args* args, Args* given, Problem* p, Buffers* b) {
  if (Status s = tile::c::read_arguments(args, given); !s.ok()) return s;
  if (Status s = tile::c::read_type(given->type, &p->type); !s.ok()) return s;
  bool interleaved = false;
  if (Status s = tile::c::read_flag("causal", given->causal, &p->causal); !s.ok()) return s;
  if (Status s = tile::c::read_flag("interleaved", given->interleaved, &interleaved); !s.ok()) {
    return s;
  }
  p->kv_heads = given->kv_heads == 0 ? given->heads : given->kv_heads;
  for (const auto& [name, heads] : {std::pair{"heads", given->heads}, {"kv_heads", p->kv_heads}}) {
    if (Status s = tile::c::check_countable(
            "length, heads and head_dim",
            {{name, heads}, {"length", given->length}, {"head_dim", given->head_dim}});
        !s.ok()) {
      return s;
    }
  }
  p->batch = given->batch;
  p->length = given->length;
  p->heads = given->heads;
  p->head_dim = given->head_dim;
  p->scale = given->scale == 0 ? 1 / std::sqrt(static_cast<float>(p->head_dim)) : given->scale;
  p->rotary_dim = given->rotary_dim == 0 ? given->head_dim : given->rotary_dim;
  p->layout = interleaved ? rope::Layout::interleaved : rope::Layout::half_split;
  p->first_position = given->first_position;
  p->table_positions = given->table_positions;
  p->attention_factor = given->attention_factor == 0 ? 1 : given->attention_factor;
  const auto of_queries = [&](const std::int64_t(&strides)[3]) {
    return tile::c::strides_of(strides, p->length, p->heads, p->head_dim);
  };
  const auto of_keys = [&](const std::int64_t(&strides)[3]) {
    return tile::c::strides_of(strides, p->length, p->kv_heads, p->head_dim);
  };
  p->q = of_queries(given->q_strides);
  p->k = of_keys(given->k_strides);
  p->v = of_keys(given->v_strides);
  p->o = of_queries(given->o_strides);
  if constexpr (requires { p->dq; }) {
    p->dout = of_queries(given->dout_strides);
    p->dq = of_queries(given->dq_strides);
    p->dk = of_keys(given->dk_strides);
    p->dv = of_keys(given->dv_strides);
  }
  b->q = given->q;
  b->k = given->k;
  b->v = given->v;
  b->cos = static_cast<const float*>(given->cos);
  b->sin = static_cast<const float*>(given->sin);
  b->positions = given->positions;
  b->workspace = given->workspace;
  b->workspace_bytes = given->workspace_bytes;
  return {};
}

// Reads a caller's struct into the library's and into those of the chapter.
Status read(const tile_rotary_attention_args* args, tile_rotary_attention_args* given,
            AttentionProblem* p, AttentionBuffers* b) {
  if (Status s = read_common(args, given, p, b); !s.ok()) return s;
  b->o = given->o;
  b->lse = static_cast<float*>(given->lse);
  return {};
}

Status read(const tile_rotary_attention_backward_args* args,
            tile_rotary_attention_backward_args* given, AttentionBackwardProblem* p,
            AttentionBackwardBuffers* b) {
  if (Status s = read_common(args, given, p, b); !s.ok()) return s;
  b->o = given->o;
  b->lse = static_cast<const float*>(given->lse);
  b->dout = given->dout;
  b->dq = given->dq;
  b->dk = given->dk;
  b->dv = given->dv;
  return {};
}

// ---- References: doubles of the host ----

// A tensor without gaps, and back to where it belongs.
template <class Problem>
std::vector<double> packed(const Problem& p, const void* data, const Strides& stride,
                           std::int64_t heads) {
  return tile::c::packed(data, stride, {p.batch, p.length, heads, p.head_dim});
}
template <class Problem>
void unpack(const Problem& p, const tile::Expected& from, const Strides& stride, std::int64_t heads,
            void* to) {
  tile::c::unpack(from.value, stride, {p.batch, p.length, heads, p.head_dim}, to);
}
// lse is a tensor whose rows are one element wide.
template <class Problem>
Strides lse_strides(const Problem& p) {
  return {p.heads * p.length, p.length, 1};
}
template <class Problem>
std::vector<int> positions_at(const Problem& p, const int* ids) {
  return ids ? std::vector<int>(ids, ids + p.batch * p.length) : std::vector<int>{};
}

void compute(const AttentionProblem& p, const AttentionBuffers& b,
             std::span<const double> frequencies) {
  const auto q = packed(p, b.q, p.q, p.heads), k = packed(p, b.k, p.k, p.kv_heads),
             v = packed(p, b.v, p.v, p.kv_heads);
  const tile::AttentionExpected expected =
      rope::reference(p, {q, k, v, frequencies, positions_at(p, b.positions)});
  unpack(p, expected.o, p.o, p.heads, b.o);
  if (b.lse) {
    tile::c::unpack(expected.lse.value, lse_strides(p), {p.batch, p.length, p.heads, 1}, b.lse);
  }
}

void compute(const AttentionBackwardProblem& p, const AttentionBackwardBuffers& b,
             std::span<const double> frequencies) {
  const auto q = packed(p, b.q, p.q, p.heads), k = packed(p, b.k, p.k, p.kv_heads),
             v = packed(p, b.v, p.v, p.kv_heads), o = packed(p, b.o, p.o, p.heads),
             dout = packed(p, b.dout, p.dout, p.heads);
  const auto lse = tile::c::packed(b.lse, lse_strides(p), {p.batch, p.length, p.heads, 1});
  const tile::AttentionGradients expected =
      rope::reference(p, {q, k, v, o, lse, dout, frequencies, positions_at(p, b.positions)});
  unpack(p, expected.dq, p.dq, p.heads, b.dq);
  unpack(p, expected.dk, p.dk, p.kv_heads, b.dk);
  unpack(p, expected.dv, p.dv, p.kv_heads, b.dv);
}

// ---- What the functions of both passes do ----

template <class Ladder, class Args>
tile_status launch(const Ladder& ladder, const Args* args) {
  return tile::c::operation([&]() -> Status {
    Args given;
    typename Ladder::Problem p{};
    typename Ladder::Buffers b{};
    if (Status s = read(args, &given, &p, &b); !s.ok()) return s;
    return tile::c::launch_step(ladder, given.step, given.stream, p, b);
  });
}

template <class Ladder, class Args>
tile_status tell_workspace_bytes(const Ladder& ladder, const Args* args, std::int64_t* bytes) {
  return tile::c::guarded([&]() -> Status {
    Args given;
    typename Ladder::Problem p{};
    typename Ladder::Buffers b{};
    if (!bytes) return tile::invalid_argument("bytes", "is null");
    *bytes = 0;
    if (Status s = read(args, &given, &p, &b); !s.ok()) return s;
    if (Status s = tile::check_requirements(rope::k16Bits, {}, p.type); !s.ok()) return s;
    if (Status s = rope::validate_sizes(p); !s.ok()) return s;
    const char* step = given.step ? given.step : ladder.steps.back().name.data();
    std::size_t number = 0;
    if (Status s = tile::c::find_step(ladder, step, &number, p, b); !s.ok()) return s;
    const bool fused_takes = !b.positions && p.rotary_dim == p.head_dim;
    *bytes = rope::workspace_bytes(p, fused_takes ? step : "composed");
    return {};
  });
}

template <class Ladder, class Args>
tile_status compute_reference(const Ladder&, const Args* args) {
  return tile::c::operation([&]() -> Status {
    Args given;
    typename Ladder::Problem p{};
    typename Ladder::Buffers b{};
    if (Status s = read(args, &given, &p, &b); !s.ok()) return s;
    if (Status s = tile::c::check_reference_type(p.type); !s.ok()) return s;
    const auto* frequencies = static_cast<const double*>(given.frequencies);
    if (Status s = rope::validate_tensors(p, b, frequencies); !s.ok()) return s;
    if (rope::is_empty(p)) return {};
    if (!frequencies && p.rotary_dim > 0) return tile::invalid_argument("frequencies", "is null");
    compute(p, b, {frequencies, static_cast<std::size_t>(p.rotary_dim / 2)});
    return {};
  });
}

using rope::kAttentionBackwardLadder;
using rope::kAttentionLadder;

}  // namespace

tile_status tile_rotary_attention(const tile_rotary_attention_args* args) {
  return launch(kAttentionLadder, args);
}

tile_status tile_rotary_attention_backward(const tile_rotary_attention_backward_args* args) {
  return launch(kAttentionBackwardLadder, args);
}

tile_status tile_rotary_attention_workspace_bytes(const tile_rotary_attention_args* args,
                                                  std::int64_t* bytes) {
  return tell_workspace_bytes(kAttentionLadder, args, bytes);
}

tile_status tile_rotary_attention_backward_workspace_bytes(
    const tile_rotary_attention_backward_args* args, std::int64_t* bytes) {
  return tell_workspace_bytes(kAttentionBackwardLadder, args, bytes);
}

tile_status tile_rotary_attention_reference(const tile_rotary_attention_args* args) {
  return compute_reference(kAttentionLadder, args);
}

tile_status tile_rotary_attention_backward_reference(
    const tile_rotary_attention_backward_args* args) {
  return compute_reference(kAttentionBackwardLadder, args);
}
