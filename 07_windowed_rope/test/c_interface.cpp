// Chapter 07's attention with two scores for callers of C.
#include "harness/c/tensors.hpp"
#include "windowed/windowed_rope.hpp"

namespace {

using tile::Status;
using tile::c::key_strides;
using tile::c::query_strides;
using tile::c::WorkspaceOf;
using windowed_rope::BackwardBuffers;
using windowed_rope::BackwardProblem;
using windowed_rope::ForwardBuffers;
using windowed_rope::ForwardProblem;
using windowed_rope::kBackwardLadder;
using windowed_rope::kForwardLadder;
using windowed_rope::kTypes;

const tile::c::RegisterLadder kForward{windowed_rope::kName, windowed_rope::kTitle,
                                       tile::infos_of(kForwardLadder)};
const tile::c::RegisterLadder kBackward{windowed_rope::kName, windowed_rope::kTitle,
                                        tile::infos_of(kBackwardLadder)};

// The fields that the structs of both directions share.
template <class Args, class Problem, class Buffers>
Status read_common(const Args* args, Args* given, Problem* p, Buffers* b) {
  if (Status s = tile::c::read_arguments(args, given); !s.ok()) return s;
  if (Status s = tile::c::read_attention_sizes(*given, p); !s.ok()) return s;
  if (Status s = tile::c::read_flag("causal", given->causal, &p->causal); !s.ok()) return s;
  p->window = given->window;
  p->q1 = query_strides(*p, given->q1_strides);
  p->k1 = key_strides(*p, given->k1_strides);
  p->q2 = query_strides(*p, given->q2_strides);
  p->k2 = key_strides(*p, given->k2_strides);
  p->v = key_strides(*p, given->v_strides);
  p->o = query_strides(*p, given->o_strides);
  if constexpr (requires { p->dq1; }) {
    p->dout = query_strides(*p, given->dout_strides);
    p->dq1 = query_strides(*p, given->dq1_strides);
    p->dk1 = key_strides(*p, given->dk1_strides);
    p->dq2 = query_strides(*p, given->dq2_strides);
    p->dk2 = key_strides(*p, given->dk2_strides);
    p->dv = key_strides(*p, given->dv_strides);
  }
  b->q1 = given->q1;
  b->k1 = given->k1;
  b->q2 = given->q2;
  b->k2 = given->k2;
  b->v = given->v;
  b->query_lengths = given->query_lengths;
  b->key_lengths = given->key_lengths;
  b->workspace = given->workspace;
  b->workspace_bytes = given->workspace_bytes;
  return {};
}

// Reads a caller's struct into the library's and into those of the chapter.
Status read(const tile_windowed_attention_args* args, tile_windowed_attention_args* given,
            ForwardProblem* p, ForwardBuffers* b) {
  if (Status s = read_common(args, given, p, b); !s.ok()) return s;
  b->o = given->o;
  b->lse = static_cast<float*>(given->lse);
  return {};
}

Status read(const tile_windowed_attention_backward_args* args,
            tile_windowed_attention_backward_args* given, BackwardProblem* p, BackwardBuffers* b) {
  if (Status s = read_common(args, given, p, b); !s.ok()) return s;
  b->o = given->o;
  b->lse = static_cast<const float*>(given->lse);
  b->dout = given->dout;
  b->dq1 = given->dq1;
  b->dk1 = given->dk1;
  b->dq2 = given->dq2;
  b->dk2 = given->dk2;
  b->dv = given->dv;
  return {};
}

// ---- References: doubles of the host ----

Status refer(const tile_windowed_attention_args&, const ForwardProblem& p,
             const ForwardBuffers& b) {
  if (Status s = validate_tensors(p, b); !s.ok() || is_empty(p)) return s;
  const tile::c::AttentionTensors tensors(p);
  const auto q1 = tensors.queries(b.q1, p.q1), q2 = tensors.queries(b.q2, p.q2);
  const auto k1 = tensors.keys(b.k1, p.k1), k2 = tensors.keys(b.k2, p.k2);
  const auto v = tensors.keys(b.v, p.v);
  const tile::AttentionExpected expected =
      windowed_rope::reference(p, {.q = q1,
                                   .k = k1,
                                   .v = v,
                                   .query_lengths = tensors.lengths(b.query_lengths),
                                   .key_lengths = tensors.lengths(b.key_lengths),
                                   .far = {q2, k2}});
  tensors.put_queries(expected.o, p.o, b.o);
  tensors.put_lse(expected.lse, b.lse);
  return {};
}

Status refer(const tile_windowed_attention_backward_args&, const BackwardProblem& p,
             const BackwardBuffers& b) {
  if (Status s = validate_tensors(p, b); !s.ok() || is_empty(p)) return s;
  const tile::c::AttentionTensors tensors(p);
  const auto q1 = tensors.queries(b.q1, p.q1), q2 = tensors.queries(b.q2, p.q2);
  const auto k1 = tensors.keys(b.k1, p.k1), k2 = tensors.keys(b.k2, p.k2);
  const auto v = tensors.keys(b.v, p.v), lse = tensors.lse(b.lse);
  const auto o = tensors.queries(b.o, p.o), dout = tensors.queries(b.dout, p.dout);
  const tile::AttentionGradients expected =
      windowed_rope::reference(p, {.q = q1,
                                   .k = k1,
                                   .v = v,
                                   .o = o,
                                   .lse = lse,
                                   .dout = dout,
                                   .query_lengths = tensors.lengths(b.query_lengths),
                                   .key_lengths = tensors.lengths(b.key_lengths),
                                   .far = {q2, k2}});
  tensors.put_queries(expected.dq, p.dq1, b.dq1);
  tensors.put_keys(expected.dk, p.dk1, b.dk1);
  tensors.put_queries(expected.far_dq, p.dq2, b.dq2);
  tensors.put_keys(expected.far_dk, p.dk2, b.dk2);
  tensors.put_keys(expected.dv, p.dv, b.dv);
  return {};
}

}  // namespace

tile_status tile_windowed_attention(const tile_windowed_attention_args* args) {
  return tile::c::run_operation(kForwardLadder, read, args);
}

tile_status tile_windowed_attention_backward(const tile_windowed_attention_backward_args* args) {
  return tile::c::run_operation(kBackwardLadder, read, args);
}

tile_status tile_windowed_attention_workspace_bytes(const tile_windowed_attention_args* args,
                                                    std::int64_t* bytes) {
  return tile::c::tell_workspace_bytes(kForwardLadder, read, kTypes, WorkspaceOf::taker, args,
                                       bytes);
}

tile_status tile_windowed_attention_backward_workspace_bytes(
    const tile_windowed_attention_backward_args* args, std::int64_t* bytes) {
  return tile::c::tell_workspace_bytes(kBackwardLadder, read, kTypes, WorkspaceOf::taker, args,
                                       bytes);
}

tile_status tile_windowed_attention_reference(const tile_windowed_attention_args* args) {
  return tile::c::run_reference(kForwardLadder, read, refer, args);
}

tile_status tile_windowed_attention_backward_reference(
    const tile_windowed_attention_backward_args* args) {
  return tile::c::run_reference(kBackwardLadder, read, refer, args);
}
