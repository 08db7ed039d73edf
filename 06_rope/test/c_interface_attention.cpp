// Chapter 06's attention for callers of C.
#include <cmath>
#include <string_view>

#include "attention/reference.hpp"
#include "harness/c/tensors.hpp"

namespace {

using rope::AttentionBackward;
using rope::AttentionForward;
using rope::Strides;
using tile::Status;

const tile::c::RegisterLadder kForward{rope::kName, rope::kTitle,
                                       tile::infos_of(rope::kAttentionLadder)};
const tile::c::RegisterLadder kBackward{rope::kName, rope::kTitle,
                                        tile::infos_of(rope::kAttentionBackwardLadder)};

// Reads a caller's struct into the library's and into the chapter's.
template <class Args, class Call>
Status read(const Args* args, Args* given, Call* p) {
  TILE_TRY(tile::c::read_arguments(args, given));
  TILE_TRY(tile::c::read_type(given->type, &p->type));
  bool causal = false, interleaved = false;
  TILE_TRY(tile::c::read_flag("causal", given->causal, &causal));
  TILE_TRY(tile::c::read_flag("interleaved", given->interleaved, &interleaved));
  p->kv_heads = given->kv_heads == 0 ? given->heads : given->kv_heads;
  for (const auto& [name, heads] : {std::pair{"heads", given->heads}, {"kv_heads", p->kv_heads}}) {
    TILE_TRY(tile::c::check_countable(
        "length, heads and head_dim",
        {{name, heads}, {"length", given->length}, {"head_dim", given->head_dim}}));
  }
  p->batch = given->batch;
  p->queries = p->keys = given->length;
  p->heads = given->heads;
  p->head_dim = given->head_dim;
  p->right = causal ? 0 : tile::kUnlimited;
  p->scale = given->scale == 0 ? 1 / std::sqrt(static_cast<float>(p->head_dim)) : given->scale;
  p->rotary = {.cos = static_cast<const float*>(given->cos),
               .sin = static_cast<const float*>(given->sin),
               .positions = given->positions,
               .rotary_dim = given->rotary_dim == 0 ? given->head_dim : given->rotary_dim,
               .table_positions = given->table_positions,
               .first_position = given->first_position,
               .layout = interleaved ? rope::Layout::interleaved : rope::Layout::half_split,
               .attention_factor = given->attention_factor == 0 ? 1 : given->attention_factor};
  const auto view = [&](const void* data, const std::int64_t(&strides)[3],
                        std::int64_t heads) -> tile::TensorView {
    return {const_cast<void*>(data),
            tile::c::strides_of(strides, given->length, heads, given->head_dim)};
  };
  p->q = view(given->q, given->q_strides, p->heads);
  p->k = view(given->k, given->k_strides, p->kv_heads);
  p->v = view(given->v, given->v_strides, p->kv_heads);
  p->o = view(given->o, given->o_strides, p->heads);
  p->lse = static_cast<decltype(p->lse)>(given->lse);
  if constexpr (requires { p->dq; }) {
    p->dout = view(given->dout, given->dout_strides, p->heads);
    p->dq = view(given->dq, given->dq_strides, p->heads);
    p->dk = view(given->dk, given->dk_strides, p->kv_heads);
    p->dv = view(given->dv, given->dv_strides, p->kv_heads);
  }
  p->workspace = given->workspace;
  p->workspace_bytes = given->workspace_bytes;
  return {};
}

// ---- References: doubles of the host ----

// A tensor without gaps, and back to where it belongs.
std::vector<double> packed(const tile::Attention& p, const tile::TensorView& x,
                           std::int64_t heads) {
  return tile::c::packed(x.data, x.stride, {p.batch, p.queries, heads, p.head_dim});
}
void unpack(const tile::Attention& p, const tile::Expected& from, std::int64_t heads,
            const tile::TensorView& to) {
  tile::c::unpack(from.value, to.stride, {p.batch, p.queries, heads, p.head_dim}, to.data);
}
// lse is a tensor whose rows are one element wide.
Strides lse_strides(const tile::Attention& p) { return {p.heads * p.queries, p.queries, 1}; }
std::vector<int> positions_of(const tile::Attention& p) {
  const int* ids = p.rotary.positions;
  return ids ? std::vector<int>(ids, ids + p.batch * p.queries) : std::vector<int>{};
}

void compute(const AttentionForward& p, std::span<const double> frequencies) {
  const auto q = packed(p, p.q, p.heads), k = packed(p, p.k, p.kv_heads),
             v = packed(p, p.v, p.kv_heads);
  const tile::AttentionExpected expected =
      rope::reference(p, {q, k, v, frequencies, positions_of(p)});
  unpack(p, expected.o, p.heads, p.o);
  if (p.lse) {
    tile::c::unpack(expected.lse.value, lse_strides(p), {p.batch, p.queries, p.heads, 1}, p.lse);
  }
}

void compute(const AttentionBackward& p, std::span<const double> frequencies) {
  const auto q = packed(p, p.q, p.heads), k = packed(p, p.k, p.kv_heads),
             v = packed(p, p.v, p.kv_heads), o = packed(p, p.o, p.heads),
             dout = packed(p, p.dout, p.heads);
  const auto lse = tile::c::packed(p.lse, lse_strides(p), {p.batch, p.queries, p.heads, 1});
  const tile::AttentionGradients expected =
      rope::reference(p, {q, k, v, o, lse, dout, frequencies, positions_of(p)});
  unpack(p, expected.dq, p.heads, p.dq);
  unpack(p, expected.dk, p.kv_heads, p.dk);
  unpack(p, expected.dv, p.kv_heads, p.dv);
}

// ---- What the functions of both passes do ----

template <class Ladder, class Args>
tile_status launch(const Ladder& ladder, const Args* args) {
  return tile::c::operation([&]() -> Status {
    Args given;
    typename Ladder::Problem p{};
    TILE_TRY(read(args, &given, &p));
    return tile::c::launch_step(ladder, given.step, given.stream, p);
  });
}

template <class Ladder, class Args>
tile_status tell_workspace_bytes(const Ladder& ladder, const Args* args, std::int64_t* bytes) {
  return tile::c::guarded([&]() -> Status {
    Args given;
    typename Ladder::Problem p{};
    if (!bytes) return tile::invalid_argument("bytes", "is null");
    *bytes = 0;
    TILE_TRY(read(args, &given, &p));
    TILE_TRY(tile::check_requirements(rope::k16Bits, {}, p.type));
    TILE_TRY(rope::validate_sizes(p));
    const char* step = given.step ? given.step : ladder.steps.back().name.data();
    std::size_t number = 0;
    TILE_TRY(tile::c::find_step(ladder, step, &number, p));
    // What step `fused` does not take the first one runs.
    const bool fused_takes = !p.rotary.positions && p.rotary.rotary_dim == p.head_dim;
    *bytes = workspace_bytes_of(ladder.steps[fused_takes ? number : 0], p);
    return {};
  });
}

template <class Ladder, class Args>
tile_status compute_reference(const Ladder&, const Args* args) {
  return tile::c::operation([&]() -> Status {
    Args given;
    typename Ladder::Problem p{};
    TILE_TRY(read(args, &given, &p));
    TILE_TRY(tile::c::check_reference_type(p.type));
    const auto* frequencies = static_cast<const double*>(given.frequencies);
    TILE_TRY(rope::validate_tensors(p, frequencies));
    if (rope::is_empty(p)) return {};
    if (!frequencies && p.rotary.rotary_dim > 0)
      return tile::invalid_argument("frequencies", "is null");
    compute(p, {frequencies, static_cast<std::size_t>(p.rotary.rotary_dim / 2)});
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
