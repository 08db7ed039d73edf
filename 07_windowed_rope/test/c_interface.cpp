// Chapter 07's attention with two scores for callers of C.
#include "harness/c/tensors.hpp"
#include "windowed/reference.hpp"

namespace {

using tile::Status;
using windowed_rope::AttentionBackward;
using windowed_rope::AttentionForward;
using windowed_rope::kBackwardLadder;
using windowed_rope::kForwardLadder;
using windowed_rope::kTypes;
using windowed_rope::validate_sizes;

const tile::c::RegisterLadder kForward{windowed_rope::kName, windowed_rope::kTitle,
                                       tile::infos_of(kForwardLadder)};
const tile::c::RegisterLadder kBackward{windowed_rope::kName, windowed_rope::kTitle,
                                        tile::infos_of(kBackwardLadder)};

// Here there always is a window, and 0 is one.
template <class Args, class Call>
Status read(const Args& given, Call* p) {
  TILE_TRY(tile::c::read_attention(given, p));
  p->window = given.window;
  return tile::c::check_no_rotation(given.rotation);
}

// ---- References: doubles of the host ----

Status refer(const tile_attention_args&, const AttentionForward& p) {
  TILE_TRY(windowed_rope::validate_tensors(p));
  if (windowed_rope::is_empty(p)) return {};
  const tile::c::AttentionTensors tensors(p);
  const auto q = tensors.queries(p.q), q_far = tensors.queries(p.q_far);
  const auto k = tensors.keys(p.k), k_far = tensors.keys(p.k_far), v = tensors.keys(p.v);
  tile::c::put(p, windowed_rope::reference(p, {.q = q,
                                               .k = k,
                                               .v = v,
                                               .query_lengths = tensors.lengths(p.query_lengths),
                                               .key_lengths = tensors.lengths(p.key_lengths),
                                               .far = {q_far, k_far}}));
  return {};
}

Status refer(const tile_attention_backward_args&, const AttentionBackward& p) {
  TILE_TRY(windowed_rope::validate_tensors(p));
  if (windowed_rope::is_empty(p)) return {};
  const tile::c::AttentionTensors tensors(p);
  const auto q = tensors.queries(p.q), q_far = tensors.queries(p.q_far);
  const auto k = tensors.keys(p.k), k_far = tensors.keys(p.k_far), v = tensors.keys(p.v);
  const auto o = tensors.queries(p.o), dout = tensors.queries(p.dout);
  const auto lse = tensors.lse(p.lse);
  tile::c::put(p, windowed_rope::reference(p, {.q = q,
                                               .k = k,
                                               .v = v,
                                               .o = o,
                                               .lse = lse,
                                               .dout = dout,
                                               .query_lengths = tensors.lengths(p.query_lengths),
                                               .key_lengths = tensors.lengths(p.key_lengths),
                                               .far = {q_far, k_far}}));
  return {};
}

}  // namespace

tile_status tile_windowed_attention(const tile_attention_args* args) {
  return tile::c::run_operation(kForwardLadder, read, args);
}

tile_status tile_windowed_attention_backward(const tile_attention_backward_args* args) {
  return tile::c::run_operation(kBackwardLadder, read, args);
}

tile_status tile_windowed_attention_workspace_bytes(const tile_attention_args* args,
                                                    std::int64_t* bytes) {
  return tile::c::tell_workspace_bytes(kForwardLadder, read, kTypes, validate_sizes, args, bytes);
}

tile_status tile_windowed_attention_backward_workspace_bytes(
    const tile_attention_backward_args* args, std::int64_t* bytes) {
  return tile::c::tell_workspace_bytes(kBackwardLadder, read, kTypes, validate_sizes, args, bytes);
}

tile_status tile_windowed_attention_reference(const tile_attention_args* args) {
  return tile::c::run_reference(kForwardLadder, read, refer, args);
}

tile_status tile_windowed_attention_backward_reference(const tile_attention_backward_args* args) {
  return tile::c::run_reference(kBackwardLadder, read, refer, args);
}
