// Chapter 05 for callers of C.
#include "harness/c/tensors.hpp"
#include "reference.hpp"

namespace {

using flash_attention::kBackwardLadder;
using flash_attention::kForwardLadder;
using flash_attention::kForwardTypes;
using flash_attention::kTypes;
using flash_attention::validate_sizes;
using tile::AttentionBackward;
using tile::AttentionForward;
using tile::Status;

const tile::c::RegisterLadder kForward{flash_attention::kName, flash_attention::kTitle,
                                       tile::infos_of(kForwardLadder)};
const tile::c::RegisterLadder kBackward{flash_attention::kName, flash_attention::kTitle,
                                        tile::infos_of(kBackwardLadder)};

template <class Args, class Call>
Status read(const Args& given, Call* p) {
  TILE_TRY(tile::c::read_attention(given, p));
  return tile::c::check_no_rotation(given.rotation);
}

// ---- References: doubles of the host ----

Status refer(const tile_attention_args&, const AttentionForward& p) {
  TILE_TRY(flash_attention::validate_tensors(p));
  if (flash_attention::is_empty(p)) return {};
  const tile::c::AttentionTensors tensors(p);
  const auto q = tensors.queries(p.q), k = tensors.keys(p.k), v = tensors.keys(p.v);
  tile::c::put(p, flash_attention::reference(p, {q, k, v, tensors.lengths(p.query_lengths),
                                                 tensors.lengths(p.key_lengths)}));
  return {};
}

Status refer(const tile_attention_backward_args&, const AttentionBackward& p) {
  TILE_TRY(flash_attention::validate_tensors(p));
  if (flash_attention::is_empty(p)) return {};
  const tile::c::AttentionTensors tensors(p);
  const auto q = tensors.queries(p.q), k = tensors.keys(p.k), v = tensors.keys(p.v);
  const auto o = tensors.queries(p.o), dout = tensors.queries(p.dout);
  const auto lse = tensors.lse(p.lse);
  tile::c::put(
      p, flash_attention::reference(p, {q, k, v, o, lse, dout, tensors.lengths(p.query_lengths),
                                        tensors.lengths(p.key_lengths)}));
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
  return tile::c::tell_workspace_bytes(kForwardLadder, read, kForwardTypes, validate_sizes, args,
                                       bytes);
}

tile_status tile_attention_backward_workspace_bytes(const tile_attention_backward_args* args,
                                                    std::int64_t* bytes) {
  return tile::c::tell_workspace_bytes(kBackwardLadder, read, kTypes, validate_sizes, args, bytes);
}

tile_status tile_attention_reference(const tile_attention_args* args) {
  return tile::c::run_reference(kForwardLadder, read, refer, args);
}

tile_status tile_attention_backward_reference(const tile_attention_backward_args* args) {
  return tile::c::run_reference(kBackwardLadder, read, refer, args);
}
