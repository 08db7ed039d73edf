// Chapter 06's rotation for callers of C.
#include <algorithm>

#include "harness/c/tensors.hpp"
#include "rotary/frequencies.hpp"
#include "rotary/reference.hpp"

namespace {

using rope::FrequencyProblem;
using rope::RotaryBuffers;
using rope::RotaryProblem;
using tile::Status;

const tile::c::RegisterLadder kRotary{rope::kName, rope::kTitle,
                                      tile::infos_of(rope::kRotaryLadder)};

// Reads a caller's struct into the library's and into those of the chapter.
Status read(const tile_rotary_args* args, tile_rotary_args* given, RotaryProblem* p,
            RotaryBuffers* b) {
  TILE_TRY(tile::c::read_arguments(args, given));
  TILE_TRY(tile::c::read_type(given->type, &p->type));
  bool interleaved = false, backward = false;
  TILE_TRY(tile::c::read_flag("interleaved", given->interleaved, &interleaved));
  TILE_TRY(tile::c::read_flag("backward", given->backward, &backward));
  for (const auto& [name, heads] :
       {std::pair{"heads", given->heads}, {"kv_heads", given->kv_heads}}) {
    TILE_TRY(tile::c::check_countable(
        std::string("length, ").append(name).append(" and head_dim"),
        {{name, heads}, {"length", given->length}, {"head_dim", given->head_dim}}));
  }
  p->batch = given->batch;
  p->length = given->length;
  p->heads = given->heads;
  p->kv_heads = given->kv_heads;
  p->head_dim = given->head_dim;
  p->rotary_dim = given->rotary_dim == 0 ? given->head_dim : given->rotary_dim;
  p->layout = interleaved ? rope::Layout::interleaved : rope::Layout::half_split;
  p->pass = backward ? rope::Pass::backward : rope::Pass::forward;
  p->first_position = given->first_position;
  p->table_positions = given->table_positions;
  p->attention_factor = given->attention_factor == 0 ? 1 : given->attention_factor;
  const auto strides = [&](const std::int64_t(&of)[3], std::int64_t heads) {
    return tile::c::strides_of(of, p->length, heads, p->head_dim);
  };
  p->q = strides(given->q_strides, p->heads);
  p->k = strides(given->k_strides, p->kv_heads);
  p->q_out = strides(given->q_out_strides, p->heads);
  p->k_out = strides(given->k_out_strides, p->kv_heads);
  *b = {.q = given->q,
        .k = given->k,
        .q_out = given->q_out,
        .k_out = given->k_out,
        .cos = static_cast<const float*>(given->cos),
        .sin = static_cast<const float*>(given->sin),
        .frequencies = static_cast<const double*>(given->frequencies),
        .positions = given->positions};
  return {};
}

Status read(const tile_rotary_tables_args* args, tile_rotary_tables_args* given,
            FrequencyProblem* p) {
  TILE_TRY(tile::c::read_arguments(args, given));
  const auto or_default = [](double value, double otherwise) {
    return value == 0 ? otherwise : value;
  };
  const FrequencyProblem defaults{.rotary_dim = 0};
  // The numbers of tile.h are those of the enumerators, and validate() refuses others.
  *p = {.rotary_dim = given->rotary_dim,
        .rule = static_cast<rope::Rule>(given->rule),
        .base = or_default(given->base, defaults.base),
        .scaling = static_cast<rope::Scaling>(given->scaling),
        .factor = or_default(given->factor, defaults.factor),
        .trained_length = given->trained_length,
        .length = given->length,
        .beta_fast = or_default(given->beta_fast, defaults.beta_fast),
        .beta_slow = or_default(given->beta_slow, defaults.beta_slow),
        .high_frequency_factor =
            or_default(given->high_frequency_factor, defaults.high_frequency_factor),
        .low_frequency_factor =
            or_default(given->low_frequency_factor, defaults.low_frequency_factor),
        .unrotated_pairs = given->unrotated_pairs,
        .attention_factor = given->attention_factor};
  TILE_TRY(tile::c::read_flag("untruncated", given->untruncated, &p->untruncated));
  // Their number must be right before the factors are read.
  rope::FrequencyProblem without_factors = *p;
  without_factors.scaling = rope::Scaling::none;
  without_factors.untruncated = false, without_factors.attention_factor = 0;
  TILE_TRY(rope::validate(without_factors));
  if (p->scaling == rope::Scaling::longrope && p->rotary_dim > 0) {
    const std::int64_t pairs = p->rotary_dim / 2;
    if (!given->short_factors) return tile::invalid_argument("short_factors", "is null");
    if (!given->long_factors) return tile::invalid_argument("long_factors", "is null");
    p->short_factors.assign(given->short_factors, given->short_factors + pairs);
    p->long_factors.assign(given->long_factors, given->long_factors + pairs);
  }
  TILE_TRY(rope::validate(*p));
  const std::string positions = std::to_string(given->positions);
  if (given->positions < 0) return tile::invalid_argument("positions", positions + " is negative");
  if (given->positions > std::int64_t{1} << 29) {  // as tile_rotary()
    return tile::unsupported("positions", positions + " is more than 2^29");
  }
  return {};
}

}  // namespace

tile_status tile_rotary_tables(const tile_rotary_tables_args* args) {
  return tile::c::guarded([&]() -> Status {
    tile_rotary_tables_args given;
    FrequencyProblem p{};
    TILE_TRY(read(args, &given, &p));
    const std::vector<double> frequencies = rope::frequencies(p);
    const double factor = rope::attention_factor(p);
    rope::Tables tables;
    if (given.cos || given.sin) tables = rope::make_tables(frequencies, given.positions, factor);
    if (given.frequencies) std::ranges::copy(frequencies, given.frequencies);
    if (given.cos) std::ranges::copy(tables.cos, given.cos);
    if (given.sin) std::ranges::copy(tables.sin, given.sin);
    if (given.used_attention_factor) *given.used_attention_factor = factor;
    return {};
  });
}

tile_status tile_rotary(const tile_rotary_args* args) {
  return tile::c::operation([&]() -> Status {
    tile_rotary_args given;
    RotaryProblem p{};
    RotaryBuffers b;
    TILE_TRY(read(args, &given, &p, &b));
    return tile::c::launch_step(rope::kRotaryLadder, given.step, given.stream, p, b);
  });
}

tile_status tile_rotary_reference(const tile_rotary_args* args) {
  return tile::c::operation([&]() -> Status {
    tile_rotary_args given;
    RotaryProblem p{};
    RotaryBuffers b;
    TILE_TRY(read(args, &given, &p, &b));
    TILE_TRY(tile::c::check_reference_type(p.type));
    TILE_TRY(rope::validate_tensors(p, b));
    if (rope::is_empty(p)) return {};
    if (!b.frequencies && p.rotary_dim > 0) {
      return tile::invalid_argument("frequencies", "is null");
    }
    const std::span frequencies(b.frequencies, static_cast<std::size_t>(p.rotary_dim / 2));
    const auto tokens = static_cast<std::size_t>(b.positions ? p.batch * p.length : 0);
    const auto turn = [&](const void* from, const tile::Strides& stride, std::int64_t heads,
                          const tile::Strides& out_stride, void* to) {
      const tile::c::TensorShape shape{p.batch, p.length, heads, p.head_dim};
      const std::vector<double> x = tile::c::packed(from, stride, shape);
      const tile::Expected rotated =
          rope::reference(p, x, heads, frequencies, {b.positions, tokens});
      tile::c::unpack(rotated.value, out_stride, shape, to);
    };
    turn(b.q, p.q, p.heads, p.q_out, b.q_out);
    turn(b.k, p.k, p.kv_heads, p.k_out, b.k_out);
    return {};
  });
}
