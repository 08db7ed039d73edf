// Chapter 05 for callers of C.
#include "harness/c/tensors.hpp"
#include "reference.hpp"

namespace {

using flash_attention::kBackwardLadder;
using flash_attention::kForwardLadder;
using flash_attention::kTypes;
using tile::AttentionBackward;
using tile::AttentionForward;
using tile::Status;
using tile::c::key_strides;
using tile::c::query_strides;
using tile::c::WorkspaceOf;

const tile::c::RegisterLadder kForward{flash_attention::kName, flash_attention::kTitle,
                                       tile::infos_of(kForwardLadder)};
const tile::c::RegisterLadder kBackward{flash_attention::kName, flash_attention::kTitle,
                                        tile::infos_of(kBackwardLadder)};

tile::TensorView view(const void* data, const tile::Strides& stride) {
  return {const_cast<void*>(data), stride};
}

// The fields that the structs of both directions share.
template <class Args, class Call>
Status read_common(const Args& given, Call* p) {
  TILE_TRY(tile::c::read_attention_sizes(given, p));
  bool causal = false, windowed = false;
  TILE_TRY(tile::c::read_flag("causal", given.causal, &causal));
  TILE_TRY(tile::c::read_flag("windowed", given.windowed, &windowed));
  if (windowed) p->left = given.left, p->right = given.right;
  if (causal && p->right > 0) p->right = 0;
  p->q = view(given.q, query_strides(*p, given.q_strides));
  p->k = view(given.k, key_strides(*p, given.k_strides));
  p->v = view(given.v, key_strides(*p, given.v_strides));
  p->o = view(given.o, query_strides(*p, given.o_strides));
  p->query_lengths = given.query_lengths;
  p->key_lengths = given.key_lengths;
  p->workspace = given.workspace;
  p->workspace_bytes = given.workspace_bytes;
  return {};
}

Status read(const tile_attention_args& given, AttentionForward* p) {
  TILE_TRY(read_common(given, p));
  p->lse = static_cast<float*>(given.lse);
  return {};
}

Status read(const tile_attention_backward_args& given, AttentionBackward* p) {
  TILE_TRY(read_common(given, p));
  p->lse = static_cast<const float*>(given.lse);
  p->dout = view(given.dout, query_strides(*p, given.dout_strides));
  p->dq = view(given.dq, query_strides(*p, given.dq_strides));
  p->dk = view(given.dk, key_strides(*p, given.dk_strides));
  p->dv = view(given.dv, key_strides(*p, given.dv_strides));
  return {};
}

// Before the sizes, the type.
template <class Call>
Status check_sizes(const Call& p) {
  TILE_TRY(tile::check_requirements(kTypes, {}, p.type));
  return flash_attention::validate_sizes(p);
}

// ---- References: doubles of the host ----

Status refer(const AttentionForward& p) {
  TILE_TRY(flash_attention::validate_tensors(p));
  if (flash_attention::is_empty(p)) return {};
  const tile::c::AttentionTensors tensors(p);
  const auto q = tensors.queries(p.q), k = tensors.keys(p.k), v = tensors.keys(p.v);
  const auto expected = flash_attention::reference(
      p, {q, k, v, tensors.lengths(p.query_lengths), tensors.lengths(p.key_lengths)});
  tensors.put_queries(expected.o, p.o);
  tensors.put_lse(expected.lse, p.lse);
  return {};
}

Status refer(const AttentionBackward& p) {
  TILE_TRY(flash_attention::validate_tensors(p));
  if (flash_attention::is_empty(p)) return {};
  const tile::c::AttentionTensors tensors(p);
  const auto q = tensors.queries(p.q), k = tensors.keys(p.k), v = tensors.keys(p.v);
  const auto o = tensors.queries(p.o), dout = tensors.queries(p.dout);
  const auto lse = tensors.lse(p.lse);
  const auto expected = flash_attention::reference(
      p, {q, k, v, o, lse, dout, tensors.lengths(p.query_lengths), tensors.lengths(p.key_lengths)});
  tensors.put_queries(expected.dq, p.dq);
  tensors.put_keys(expected.dk, p.dk);
  tensors.put_keys(expected.dv, p.dv);
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
  return tile::c::tell_workspace_bytes(kForwardLadder, read, check_sizes, WorkspaceOf::step, args,
                                       bytes);
}

tile_status tile_attention_backward_workspace_bytes(const tile_attention_backward_args* args,
                                                    std::int64_t* bytes) {
  return tile::c::tell_workspace_bytes(kBackwardLadder, read, check_sizes, WorkspaceOf::step, args,
                                       bytes);
}

tile_status tile_attention_reference(const tile_attention_args* args) {
  return tile::c::run_reference(kForwardLadder, read, refer, args);
}

tile_status tile_attention_backward_reference(const tile_attention_backward_args* args) {
  return tile::c::run_reference(kBackwardLadder, read, refer, args);
}
