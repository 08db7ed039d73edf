// Chapter 07's methods for callers of C: windowed attention of plain q and k, and its tables.
#include <algorithm>
#include <span>
#include <string>

#include "harness/c/tensors.hpp"
#include "method/method.hpp"

namespace {

using tile::Status;
using tile::c::key_strides;
using tile::c::query_strides;
using tile::c::WorkspaceOf;
using windowed_rope::kMethodBackwardLadder;
using windowed_rope::kMethodLadder;
using windowed_rope::kTypes;
using windowed_rope::MethodBackwardBuffers;
using windowed_rope::MethodBackwardProblem;
using windowed_rope::MethodBuffers;
using windowed_rope::MethodProblem;
using windowed_rope::MethodRule;

const tile::c::RegisterLadder kForward{windowed_rope::kName, windowed_rope::kTitle,
                                       tile::infos_of(kMethodLadder)};
const tile::c::RegisterLadder kBackward{windowed_rope::kName, windowed_rope::kTitle,
                                        tile::infos_of(kMethodBackwardLadder)};

// The numbers of tile.h are those of the enumerators, and validate() refuses others.
template <class Args>
MethodRule rule_of(const Args& given) {
  return {static_cast<windowed_rope::Method>(given.method), given.window,
          given.factor == 0 ? 1 : given.factor};
}

// The fields that the structs of both directions share.
template <class Args, class Problem, class Buffers>
Status read_common(const Args* args, Args* given, Problem* p, Buffers* b) {
  if (Status s = tile::c::read_arguments(args, given); !s.ok()) return s;
  if (Status s = tile::c::read_attention_sizes(*given, p); !s.ok()) return s;
  bool interleaved = false;
  if (Status s = tile::c::read_flag("causal", given->causal, &p->causal); !s.ok()) return s;
  if (Status s = tile::c::read_flag("interleaved", given->interleaved, &interleaved); !s.ok()) {
    return s;
  }
  const MethodRule rule = rule_of(*given);
  p->method = rule.method, p->window = rule.window, p->factor = rule.factor;
  p->rotary_dim = given->rotary_dim == 0 ? given->head_dim : given->rotary_dim;
  p->layout = interleaved ? rope::Layout::interleaved : rope::Layout::half_split;
  p->table_positions = given->table_positions;
  p->attention_factor = given->attention_factor == 0 ? 1 : given->attention_factor;
  p->q = query_strides(*p, given->q_strides);
  p->k = key_strides(*p, given->k_strides);
  p->v = key_strides(*p, given->v_strides);
  p->o = query_strides(*p, given->o_strides);
  if constexpr (requires { p->dq; }) {
    p->dout = query_strides(*p, given->dout_strides);
    p->dq = query_strides(*p, given->dq_strides);
    p->dk = key_strides(*p, given->dk_strides);
    p->dv = key_strides(*p, given->dv_strides);
  }
  b->q = given->q;
  b->k = given->k;
  b->v = given->v;
  b->cos = static_cast<const float*>(given->cos);
  b->sin = static_cast<const float*>(given->sin);
  b->query_lengths = given->query_lengths;
  b->key_lengths = given->key_lengths;
  b->workspace = given->workspace;
  b->workspace_bytes = given->workspace_bytes;
  return {};
}

// Reads a caller's struct into the library's and into those of the chapter.
Status read(const tile_windowed_rotary_attention_args* args,
            tile_windowed_rotary_attention_args* given, MethodProblem* p, MethodBuffers* b) {
  if (Status s = read_common(args, given, p, b); !s.ok()) return s;
  b->o = given->o;
  b->lse = static_cast<float*>(given->lse);
  return {};
}

Status read(const tile_windowed_rotary_attention_backward_args* args,
            tile_windowed_rotary_attention_backward_args* given, MethodBackwardProblem* p,
            MethodBackwardBuffers* b) {
  if (Status s = read_common(args, given, p, b); !s.ok()) return s;
  b->o = given->o;
  b->lse = static_cast<const float*>(given->lse);
  b->dout = given->dout;
  b->dq = given->dq;
  b->dk = given->dk;
  b->dv = given->dv;
  return {};
}

Status read(const tile_windowed_rotary_tables_args* args, tile_windowed_rotary_tables_args* given,
            MethodRule* rule) {
  if (Status s = tile::c::read_arguments(args, given); !s.ok()) return s;
  *rule = rule_of(*given);
  if (Status s = validate(*rule); !s.ok()) return s;
  // The rest as rope::validate_sizes() has it for those who read the tables.
  rope::RotaryProblem p{.type = tile::DType::fp32,
                        .batch = 1,
                        .length = 1,
                        .heads = 1,
                        .kv_heads = 0,
                        .head_dim = std::max<std::int64_t>(given->rotary_dim, 1),
                        .rotary_dim = given->rotary_dim};
  if (given->attention_factor == 0) given->attention_factor = 1;
  p.attention_factor = given->attention_factor;
  if (Status s = rope::validate_sizes(p); !s.ok()) return s;
  const std::string positions = std::to_string(given->positions);
  if (given->positions < 0) return tile::invalid_argument("positions", positions + " is negative");
  if (given->positions > std::int64_t{1} << 29) {
    return tile::unsupported("positions", positions + " is more than 2^29");
  }
  if (given->rotary_dim > 0 && !given->frequencies) {
    return tile::invalid_argument("frequencies", "is null");
  }
  return {};
}

// ---- References: doubles of the host ----

// The frequencies, once the tensors are checked. Empty tensors need none.
template <class Args, class Problem, class Buffers>
Status read_frequencies(const Args& given, const Problem& p, const Buffers& b,
                        std::span<const double>* frequencies) {
  const auto* data = static_cast<const double*>(given.frequencies);
  if (Status s = validate_tensors(p, b, data); !s.ok()) return s;
  if (!data && p.rotary_dim > 0 && !is_empty(p)) {
    return tile::invalid_argument("frequencies", "is null");
  }
  *frequencies = {data, static_cast<std::size_t>(data ? p.rotary_dim / 2 : 0)};
  return {};
}

Status refer(const tile_windowed_rotary_attention_args& given, const MethodProblem& p,
             const MethodBuffers& b) {
  std::span<const double> frequencies;
  if (Status s = read_frequencies(given, p, b, &frequencies); !s.ok() || is_empty(p)) return s;
  const tile::c::AttentionTensors tensors(p);
  const auto q = tensors.queries(b.q, p.q), k = tensors.keys(b.k, p.k), v = tensors.keys(b.v, p.v);
  const tile::AttentionExpected expected = windowed_rope::reference(
      p, {q, k, v, frequencies, tensors.lengths(b.query_lengths), tensors.lengths(b.key_lengths)});
  tensors.put_queries(expected.o, p.o, b.o);
  tensors.put_lse(expected.lse, b.lse);
  return {};
}

Status refer(const tile_windowed_rotary_attention_backward_args& given,
             const MethodBackwardProblem& p, const MethodBackwardBuffers& b) {
  std::span<const double> frequencies;
  if (Status s = read_frequencies(given, p, b, &frequencies); !s.ok() || is_empty(p)) return s;
  const tile::c::AttentionTensors tensors(p);
  const auto q = tensors.queries(b.q, p.q), k = tensors.keys(b.k, p.k), v = tensors.keys(b.v, p.v);
  const auto o = tensors.queries(b.o, p.o), dout = tensors.queries(b.dout, p.dout);
  const auto lse = tensors.lse(b.lse);
  const tile::AttentionGradients expected = windowed_rope::reference(
      p, {q, k, v, o, lse, dout, frequencies, tensors.lengths(b.query_lengths),
          tensors.lengths(b.key_lengths)});
  tensors.put_queries(expected.dq, p.dq, b.dq);
  tensors.put_keys(expected.dk, p.dk, b.dk);
  tensors.put_keys(expected.dv, p.dv, b.dv);
  return {};
}

}  // namespace

tile_status tile_windowed_rotary_tables(const tile_windowed_rotary_tables_args* args) {
  return tile::c::guarded([&]() -> Status {
    tile_windowed_rotary_tables_args given;
    MethodRule rule;
    if (Status s = read(args, &given, &rule); !s.ok()) return s;
    if (!given.cos && !given.sin) return {};
    const windowed_rope::MethodTables tables = windowed_rope::method_tables(
        rule, {given.frequencies, static_cast<std::size_t>(given.rotary_dim / 2)}, given.positions,
        given.attention_factor);
    if (given.cos) std::ranges::copy(tables.cos, given.cos);
    if (given.sin) std::ranges::copy(tables.sin, given.sin);
    return {};
  });
}

tile_status tile_windowed_rotary_attention(const tile_windowed_rotary_attention_args* args) {
  return tile::c::run_operation(kMethodLadder, read, args);
}

tile_status tile_windowed_rotary_attention_backward(
    const tile_windowed_rotary_attention_backward_args* args) {
  return tile::c::run_operation(kMethodBackwardLadder, read, args);
}

tile_status tile_windowed_rotary_attention_workspace_bytes(
    const tile_windowed_rotary_attention_args* args, std::int64_t* bytes) {
  return tile::c::tell_workspace_bytes(kMethodLadder, read, kTypes, WorkspaceOf::taker, args,
                                       bytes);
}

tile_status tile_windowed_rotary_attention_backward_workspace_bytes(
    const tile_windowed_rotary_attention_backward_args* args, std::int64_t* bytes) {
  return tile::c::tell_workspace_bytes(kMethodBackwardLadder, read, kTypes, WorkspaceOf::taker,
                                       args, bytes);
}

tile_status tile_windowed_rotary_attention_reference(
    const tile_windowed_rotary_attention_args* args) {
  return tile::c::run_reference(kMethodLadder, read, refer, args);
}

tile_status tile_windowed_rotary_attention_backward_reference(
    const tile_windowed_rotary_attention_backward_args* args) {
  return tile::c::run_reference(kMethodBackwardLadder, read, refer, args);
}
