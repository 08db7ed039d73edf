// Chapter 06's attention for callers of C.
#include "attention/reference.hpp"
#include "harness/c/tensors.hpp"

namespace {

using rope::AttentionBackward;
using rope::AttentionForward;
using rope::k16Bits;
using rope::kAttentionBackwardLadder;
using rope::kAttentionLadder;
using rope::validate_sizes;
using tile::Status;
using tile::c::frequencies_of;
using tile::c::read_frequencies;

const tile::c::RegisterLadder kForward{rope::kName, rope::kTitle, tile::infos_of(kAttentionLadder)};
const tile::c::RegisterLadder kBackward{rope::kName, rope::kTitle,
                                        tile::infos_of(kAttentionBackwardLadder)};

template <class Args, class Call>
Status read(const Args& given, Call* p) {
  TILE_TRY(tile::c::read_attention(given, p));
  if (p->rotary.rotary_dim == 0) p->rotary.rotary_dim = p->head_dim;
  return {};
}

// The same for the workspace's size. Steps want tables, which a caller may not have yet.
template <class Args, class Call>
Status read_sizes(const Args& given, Call* p) {
  alignas(16) static constexpr float kTable[4]{};
  TILE_TRY(read(given, p));
  if (!p->rotary.cos) p->rotary.cos = kTable;
  if (!p->rotary.sin) p->rotary.sin = kTable;
  return {};
}

// ---- References: doubles of the host ----

std::vector<int> positions_of(const tile::Attention& p) {
  const int* ids = p.rotary.positions;
  return ids ? std::vector<int>(ids, ids + p.batch * p.queries) : std::vector<int>{};
}

Status refer(const tile_attention_args& given, const AttentionForward& p) {
  TILE_TRY(rope::validate_tensors(p, frequencies_of(given.rotation)));
  if (rope::is_empty(p)) return {};
  std::span<const double> frequencies;
  TILE_TRY(read_frequencies(given.rotation, p.rotary, &frequencies));
  const tile::c::AttentionTensors tensors(p);
  const auto q = tensors.queries(p.q), k = tensors.keys(p.k), v = tensors.keys(p.v);
  tile::c::put(p, rope::reference(p, {q, k, v, frequencies, positions_of(p)}));
  return {};
}

Status refer(const tile_attention_backward_args& given, const AttentionBackward& p) {
  TILE_TRY(rope::validate_tensors(p, frequencies_of(given.rotation)));
  if (rope::is_empty(p)) return {};
  std::span<const double> frequencies;
  TILE_TRY(read_frequencies(given.rotation, p.rotary, &frequencies));
  const tile::c::AttentionTensors tensors(p);
  const auto q = tensors.queries(p.q), k = tensors.keys(p.k), v = tensors.keys(p.v);
  const auto o = tensors.queries(p.o), dout = tensors.queries(p.dout);
  const auto lse = tensors.lse(p.lse);
  tile::c::put(p, rope::reference(p, {q, k, v, o, lse, dout, frequencies, positions_of(p)}));
  return {};
}

}  // namespace

tile_status tile_rotary_attention(const tile_attention_args* args) {
  return tile::c::run_operation(kAttentionLadder, read, args);
}

tile_status tile_rotary_attention_backward(const tile_attention_backward_args* args) {
  return tile::c::run_operation(kAttentionBackwardLadder, read, args);
}

tile_status tile_rotary_attention_workspace_bytes(const tile_attention_args* args,
                                                  std::int64_t* bytes) {
  return tile::c::tell_workspace_bytes(kAttentionLadder, read_sizes, k16Bits, validate_sizes, args,
                                       bytes);
}

tile_status tile_rotary_attention_backward_workspace_bytes(const tile_attention_backward_args* args,
                                                           std::int64_t* bytes) {
  return tile::c::tell_workspace_bytes(kAttentionBackwardLadder, read_sizes, k16Bits,
                                       validate_sizes, args, bytes);
}

tile_status tile_rotary_attention_reference(const tile_attention_args* args) {
  return tile::c::run_reference(kAttentionLadder, read, refer, args);
}

tile_status tile_rotary_attention_backward_reference(const tile_attention_backward_args* args) {
  return tile::c::run_reference(kAttentionBackwardLadder, read, refer, args);
}
