// Chapter 05 for callers of C.
#include "flash_attention.hpp"
#include "harness/c/tensors.hpp"

namespace {

using flash_attention::BackwardBuffers;
using flash_attention::BackwardProblem;
using flash_attention::ForwardBuffers;
using flash_attention::ForwardProblem;
using flash_attention::kBackwardLadder;
using flash_attention::kForwardLadder;
using flash_attention::kTypes;
using tile::Status;
using tile::c::key_strides;
using tile::c::query_strides;
using tile::c::WorkspaceOf;

const tile::c::RegisterLadder kForward{flash_attention::kName, flash_attention::kTitle,
                                       tile::infos_of(kForwardLadder)};
const tile::c::RegisterLadder kBackward{flash_attention::kName, flash_attention::kTitle,
                                        tile::infos_of(kBackwardLadder)};

// The fields that the structs of both directions share.
template <class Args, class Problem, class Buffers>
Status read_common(const Args* args, Args* given, Problem* p, Buffers* b) {
  if (Status s = tile::c::read_arguments(args, given); !s.ok()) return s;
  if (Status s = tile::c::read_attention_sizes(*given, p); !s.ok()) return s;
  bool causal = false, windowed = false;
  if (Status s = tile::c::read_flag("causal", given->causal, &causal); !s.ok()) return s;
  if (Status s = tile::c::read_flag("windowed", given->windowed, &windowed); !s.ok()) return s;
  if (windowed) p->left = given->left, p->right = given->right;
  if (causal && p->right > 0) p->right = 0;
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
  b->query_lengths = given->query_lengths;
  b->key_lengths = given->key_lengths;
  b->workspace = given->workspace;
  b->workspace_bytes = given->workspace_bytes;
  return {};
}

// Reads a caller's struct into the library's and into those of the chapter.
Status read(const tile_attention_args* args, tile_attention_args* given, ForwardProblem* p,
            ForwardBuffers* b) {
  if (Status s = read_common(args, given, p, b); !s.ok()) return s;
  b->o = given->o;
  b->lse = static_cast<float*>(given->lse);
  return {};
}

Status read(const tile_attention_backward_args* args, tile_attention_backward_args* given,
            BackwardProblem* p, BackwardBuffers* b) {
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

Status refer(const tile_attention_args&, const ForwardProblem& p, const ForwardBuffers& b) {
  if (Status s = validate_tensors(p, b); !s.ok() || is_empty(p)) return s;
  const tile::c::AttentionTensors tensors(p);
  const auto q = tensors.queries(b.q, p.q), k = tensors.keys(b.k, p.k), v = tensors.keys(b.v, p.v);
  const auto expected = flash_attention::reference(
      p, {q, k, v, tensors.lengths(b.query_lengths), tensors.lengths(b.key_lengths)});
  tensors.put_queries(expected.o, p.o, b.o);
  tensors.put_lse(expected.lse, b.lse);
  return {};
}

Status refer(const tile_attention_backward_args&, const BackwardProblem& p,
             const BackwardBuffers& b) {
  if (Status s = validate_tensors(p, b); !s.ok() || is_empty(p)) return s;
  const tile::c::AttentionTensors tensors(p);
  const auto q = tensors.queries(b.q, p.q), k = tensors.keys(b.k, p.k), v = tensors.keys(b.v, p.v);
  const auto o = tensors.queries(b.o, p.o), dout = tensors.queries(b.dout, p.dout);
  const auto lse = tensors.lse(b.lse);
  const auto expected = flash_attention::reference(
      p, {q, k, v, o, lse, dout, tensors.lengths(b.query_lengths), tensors.lengths(b.key_lengths)});
  tensors.put_queries(expected.dq, p.dq, b.dq);
  tensors.put_keys(expected.dk, p.dk, b.dk);
  tensors.put_keys(expected.dv, p.dv, b.dv);
  return {};
}

}  // namespace

tile_status tile_attention(const tile_attention_args* args) {
  return tile::c::run_operation(kForwardLadder, read, args);
}

tile_status tile_attention_backward(const tile_attention_backward_args* args) {
  return tile::c::run_operation(kBackwardLadder, read, args);
}

tile_status tile_attention_workspace_bytes(const tile_attention_args* args, std::int64_t* bytes) {
  return tile::c::tell_workspace_bytes(kForwardLadder, read, kTypes, WorkspaceOf::step, args,
                                       bytes);
}

tile_status tile_attention_backward_workspace_bytes(const tile_attention_backward_args* args,
                                                    std::int64_t* bytes) {
  return tile::c::tell_workspace_bytes(kBackwardLadder, read, kTypes, WorkspaceOf::step, args,
                                       bytes);
}

tile_status tile_attention_reference(const tile_attention_args* args) {
  return tile::c::run_reference(kForwardLadder, read, refer, args);
}

tile_status tile_attention_backward_reference(const tile_attention_backward_args* args) {
  return tile::c::run_reference(kBackwardLadder, read, refer, args);
}
