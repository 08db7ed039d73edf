// Chapter 07's methods for callers of C: windowed attention of q and k that are rotated, and its
// tables.
#include <algorithm>
#include <span>
#include <string>

#include "harness/c/tensors.hpp"
#include "method/reference.hpp"
#include "method/tables.hpp"
#include "rotary/rotary.hpp"

namespace {

namespace method = windowed_rope::method;
using method::kMethodBackwardLadder;
using method::kMethodLadder;
using tile::Status;
using tile::c::frequencies_of;
using tile::c::read_frequencies;
using windowed_rope::AttentionBackward;
using windowed_rope::AttentionForward;
using windowed_rope::kTypes;

const tile::c::RegisterLadder kForward{windowed_rope::kName, windowed_rope::kTitle,
                                       tile::infos_of(kMethodLadder)};
const tile::c::RegisterLadder kBackward{windowed_rope::kName, windowed_rope::kTitle,
                                        tile::infos_of(kMethodBackwardLadder)};

// Here there always is a window, and 0 is one.
template <class Args, class Call>
Status read(const Args& given, Call* p) {
  TILE_TRY(tile::c::read_attention(given, p));
  p->window = given.window;
  if (p->rotary.rotary_dim == 0) p->rotary.rotary_dim = p->head_dim;
  return {};
}

Status read(const tile_windowed_rotary_tables_args* args, tile_windowed_rotary_tables_args* given,
            tile::Rotary* rotary) {
  TILE_TRY(tile::c::read_arguments(args, given));
  tile_rotation rotation{};
  rotation.rotary_dim = given->rotary_dim, rotation.attention_factor = given->attention_factor;
  rotation.far = given->far, rotation.far_factor = given->far_factor;
  TILE_TRY(tile::c::read_rotation(rotation, rotary));
  TILE_TRY(method::validate(*rotary, given->window));
  constexpr std::int64_t kMost = std::int64_t{1} << 29;
  // The rest as rope::validate_sizes() has it for those who read the tables.
  rope::RotaryProblem p{.type = tile::DType::fp32,
                        .batch = 1,
                        .length = 1,
                        .heads = 1,
                        .kv_heads = 0,
                        .head_dim = std::clamp<std::int64_t>(given->rotary_dim, 1, kMost),
                        .rotary_dim = given->rotary_dim};
  p.attention_factor = rotary->attention_factor;
  TILE_TRY(rope::validate_sizes(p));
  const std::string positions = std::to_string(given->positions);
  if (given->positions < 0) return tile::invalid_argument("positions", positions + " is negative");
  if (given->positions > kMost) {
    return tile::unsupported("positions", positions + " is more than 2^29");
  }
  if (given->rotary_dim > 0 && !given->frequencies) {
    return tile::invalid_argument("frequencies", "is null");
  }
  return {};
}

// ---- References: doubles of the host ----

Status refer(const tile_attention_args& given, const AttentionForward& p) {
  TILE_TRY(method::validate_tensors(p, frequencies_of(given.rotation)));
  if (windowed_rope::is_empty(p)) return {};
  std::span<const double> frequencies;
  TILE_TRY(read_frequencies(given.rotation, p.rotary, &frequencies));
  const tile::c::AttentionTensors tensors(p);
  const auto q = tensors.queries(p.q), k = tensors.keys(p.k), v = tensors.keys(p.v);
  tile::c::put(p, method::reference(p, {q, k, v, frequencies, tensors.lengths(p.query_lengths),
                                        tensors.lengths(p.key_lengths)}));
  return {};
}

Status refer(const tile_attention_backward_args& given, const AttentionBackward& p) {
  TILE_TRY(method::validate_tensors(p, frequencies_of(given.rotation)));
  if (windowed_rope::is_empty(p)) return {};
  std::span<const double> frequencies;
  TILE_TRY(read_frequencies(given.rotation, p.rotary, &frequencies));
  const tile::c::AttentionTensors tensors(p);
  const auto q = tensors.queries(p.q), k = tensors.keys(p.k), v = tensors.keys(p.v);
  const auto o = tensors.queries(p.o), dout = tensors.queries(p.dout);
  const auto lse = tensors.lse(p.lse);
  tile::c::put(
      p, method::reference(p, {q, k, v, o, lse, dout, frequencies, tensors.lengths(p.query_lengths),
                               tensors.lengths(p.key_lengths)}));
  return {};
}

}  // namespace

tile_status tile_windowed_rotary_tables(const tile_windowed_rotary_tables_args* args) {
  return tile::c::guarded([&]() -> Status {
    tile_windowed_rotary_tables_args given;
    tile::Rotary rotary;
    TILE_TRY(read(args, &given, &rotary));
    if (!given.cos && !given.sin) return {};
    const rope::Tables tables = method::make_tables(
        rotary, given.window, {given.frequencies, static_cast<std::size_t>(given.rotary_dim / 2)},
        given.positions);
    if (given.cos) std::ranges::copy(tables.cos, given.cos);
    if (given.sin) std::ranges::copy(tables.sin, given.sin);
    return {};
  });
}

tile_status tile_windowed_rotary_attention(const tile_attention_args* args) {
  return tile::c::run_operation(kMethodLadder, read, args);
}

tile_status tile_windowed_rotary_attention_backward(const tile_attention_backward_args* args) {
  return tile::c::run_operation(kMethodBackwardLadder, read, args);
}

tile_status tile_windowed_rotary_attention_workspace_bytes(const tile_attention_args* args,
                                                           std::int64_t* bytes) {
  return tile::c::tell_workspace_bytes(kMethodLadder, read, kTypes, method::validate_sizes, args,
                                       bytes);
}

tile_status tile_windowed_rotary_attention_backward_workspace_bytes(
    const tile_attention_backward_args* args, std::int64_t* bytes) {
  return tile::c::tell_workspace_bytes(kMethodBackwardLadder, read, kTypes, method::validate_sizes,
                                       args, bytes);
}

tile_status tile_windowed_rotary_attention_reference(const tile_attention_args* args) {
  return tile::c::run_reference(kMethodLadder, read, refer, args);
}

tile_status tile_windowed_rotary_attention_backward_reference(
    const tile_attention_backward_args* args) {
  return tile::c::run_reference(kMethodBackwardLadder, read, refer, args);
}
