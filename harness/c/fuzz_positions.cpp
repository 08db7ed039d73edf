// Calls of chapter 06, and tables of chapters 06 and 07.
#include <cmath>

#include "06_rope/embedding/reference.hpp"
#include "06_rope/rotary/frequencies.hpp"
#include "06_rope/rotary/reference.hpp"
#include "07_windowed_rope/method/tables.hpp"
#include "harness/c/fuzz_operations.hpp"

namespace fuzz {

std::vector<double> frequencies_of(std::int64_t rotary_dim) {
  std::vector<double> f;
  for (std::int64_t i = 0; i < rotary_dim / 2; ++i) {
    f.push_back(std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dim)));
  }
  return f;
}
std::vector<double> table_of(std::int64_t rotary_dim, std::int64_t positions, double factor,
                             double (*function)(double)) {
  std::vector<double> table;
  const std::vector<double> f = frequencies_of(rotary_dim);
  for (std::int64_t at = 0; at < positions; ++at) {
    for (const double each : f) {
      table.push_back(static_cast<float>(factor * function(static_cast<double>(at) * each)));
    }
  }
  return table;
}

std::vector<int> any_positions(Draw& draw, std::int64_t tokens, std::int64_t table_positions) {
  std::vector<int> all;
  const bool is_hostile = draw.one_in(2);
  for (std::int64_t i = 0; i < tokens; ++i) {
    const auto inside = static_cast<int>(draw.below(std::max<std::int64_t>(1, table_positions)));
    const auto end = static_cast<int>(table_positions);
    all.push_back(is_hostile ? draw.of({inside, inside, -1, end, INT_MIN, INT_MAX}) : inside);
  }
  return all;
}

namespace {

Expected exactly(std::vector<double> values) {
  const auto count = std::ssize(values);
  return {{count}, std::move(values), std::vector<double>(static_cast<std::size_t>(count), 0.0)};
}
Expected exactly(const std::vector<float>& values) {
  return exactly(std::vector<double>(values.begin(), values.end()));
}

// Sizes of both kinds of tables.
template <class Args>
void table_sizes(Call* c, Args* a) {
  c->is_on_host = true;
  c->refuses("rotary_dim", &a->rotary_dim, {-2, 7, INT64_MIN}, TILE_INVALID_ARGUMENT);
  c->refuses("rotary_dim", &a->rotary_dim, {kMost + 2, std::int64_t{1} << 40, INT64_MAX - 1},
             TILE_UNSUPPORTED);
  c->note("rotary_dim", a->rotary_dim);
  c->extent("positions", &a->positions, kMost);
}

Made rotary_tables(Draw& draw) {
  using Args = tile_rotary_tables_args;
  Args* a = nullptr;
  Made c = make<Args>(&draw, "tile_rotary_tables", tile_rotary_tables, nullptr, &a);
  a->rule = draw.of({TILE_ROTARY_PAPER, TILE_ROTARY_PAPER, TILE_ROTARY_HALF_TRUNCATED});
  a->scaling = a->rule == TILE_ROTARY_PAPER ? static_cast<tile_rotary_scaling>(draw.below(7))
                                            : draw.of({TILE_ROTARY_UNSCALED, TILE_ROTARY_LINEAR,
                                                       TILE_ROTARY_LLAMA3, TILE_ROTARY_LONGROPE});
  a->rotary_dim = draw.of({0, 4, 8, 12, 64}), a->positions = draw.of({0, 1, 2, 17});
  a->base = draw.of({0.0, 500000.0}), a->factor = draw.of({0.0, 1.0, 8.0});
  a->trained_length = draw.of({32, 4096}), a->length = draw.of({0, 31, 10000});
  c->note("rule", a->rule), c->note("scaling", a->scaling);
  table_sizes(c.get(), a);
  for (const std::int32_t other : {-1, 7, INT_MIN}) {
    c->refuses("rule", &a->rule, other, TILE_INVALID_ARGUMENT);
    c->refuses("scaling", &a->scaling, other, TILE_INVALID_ARGUMENT);
  }
  c->refuses("base", &a->base, {1.0, -1.0, NAN, INFINITY}, TILE_INVALID_ARGUMENT);
  if (a->scaling != TILE_ROTARY_UNSCALED)
    c->refuses("factor", &a->factor, {0.5, -1.0, NAN, INFINITY}, TILE_INVALID_ARGUMENT);
  const bool has_length =
      a->scaling == TILE_ROTARY_DYNAMIC_NTK || a->scaling == TILE_ROTARY_LONGROPE;
  if (has_length) c->refuses("length", &a->length, -1, TILE_INVALID_ARGUMENT);
  if (a->scaling >= TILE_ROTARY_DYNAMIC_NTK) {
    c->refuses("trained_length", &a->trained_length, {0, -1, INT64_MIN}, TILE_INVALID_ARGUMENT);
  }
  const std::int64_t pairs = a->rotary_dim / 2;
  a->unrotated_pairs = draw.of({std::int64_t{0}, std::int64_t{0}, pairs / 3, pairs});
  c->note("unrotated_pairs", a->unrotated_pairs);
  c->refuses("unrotated_pairs", &a->unrotated_pairs, {-1, pairs + 1, INT64_MAX},
             TILE_INVALID_ARGUMENT);
  const bool is_yarn = a->scaling == TILE_ROTARY_YARN;
  if (is_yarn) {
    a->untruncated = draw.below(2);
    c->flag("untruncated", &a->untruncated);
  } else {
    c->refuses("untruncated", &a->untruncated, 1, TILE_INVALID_ARGUMENT);
  }
  if (is_yarn || a->scaling == TILE_ROTARY_LONGROPE) {
    a->attention_factor = draw.of({0.0, 1.3});
    c->refuses("attention_factor", &a->attention_factor, {-1.0, NAN, INFINITY},
               TILE_INVALID_ARGUMENT);
  } else {
    c->refuses("attention_factor", &a->attention_factor, 1.3, TILE_INVALID_ARGUMENT);
  }
  std::vector<double> factors(static_cast<std::size_t>(pairs));
  for (double& each : factors) each = 1 + static_cast<double>(draw.below(8));
  const auto divisors = [&](const char* name, const double** field) {
    if (a->scaling != TILE_ROTARY_LONGROPE) return;
    c->vector(name, field, Role::input, DType::fp64, pairs).is_optional = true;
    c->set_values(name, factors);
    if (pairs > 0) c->refuses(name, field, nullptr, TILE_INVALID_ARGUMENT);
  };
  divisors("short_factors", &a->short_factors), divisors("long_factors", &a->long_factors);
  Names wanted;
  const auto output = [&](const char* name, const void* field, DType type, std::int64_t n) {
    if (draw.one_in(3)) return;
    c->vector(name, field, Role::output, type, n).is_optional = true;
    wanted.emplace_back(name);
  };
  output("frequencies", &a->frequencies, DType::fp64, pairs);
  output("cos", &a->cos, DType::fp32, a->positions * pairs);
  output("sin", &a->sin, DType::fp32, a->positions * pairs);
  output("used_attention_factor", &a->used_attention_factor, DType::fp64, 1);
  c->expect = [given = *a, factors, wanted] {
    rope::FrequencyProblem p{.rotary_dim = given.rotary_dim};
    p.rule = static_cast<rope::Rule>(given.rule);
    p.scaling = static_cast<rope::Scaling>(given.scaling);
    if (given.base != 0) p.base = given.base;
    if (given.factor != 0) p.factor = given.factor;
    p.trained_length = given.trained_length, p.length = given.length;
    p.short_factors = p.long_factors = factors;
    p.untruncated = given.untruncated != 0, p.unrotated_pairs = given.unrotated_pairs;
    p.attention_factor = given.attention_factor;
    const std::vector<double> f = rope::frequencies(p);
    const double factor = rope::attention_factor(p);
    const rope::Tables tables = rope::make_tables(f, given.positions, factor);
    std::vector<Expected> all;
    for (const std::string& name : wanted) {
      if (name == "frequencies") all.push_back(exactly(f));
      if (name == "cos") all.push_back(exactly(tables.cos));
      if (name == "sin") all.push_back(exactly(tables.sin));
      if (name == "used_attention_factor") all.push_back(exactly(std::vector<double>{factor}));
    }
    return all;
  };
  return c;
}

Made windowed_tables(Draw& draw) {
  using Args = tile_windowed_rotary_tables_args;
  Args* a = nullptr;
  Made c =
      make<Args>(&draw, "tile_windowed_rotary_tables", tile_windowed_rotary_tables, nullptr, &a);
  a->far = draw.of({TILE_FAR_REROPE, TILE_FAR_LEAKY_REROPE, TILE_FAR_SELF_EXTEND});
  a->attention_factor = draw.of({0.0, 1.3}), a->far_factor = draw.of({0.0, 1.0, 8.0});
  a->window = draw.of({0L, 1L, 7L, kMost, kMost + 1, 1L << 40, INT64_MAX});
  a->rotary_dim = draw.of({0, 2, 6, 64}), a->positions = draw.of({0, 1, 2, 17});
  c->note("far", a->far), c->note("far_factor", a->far_factor), c->note("window", a->window);
  table_sizes(c.get(), a);
  c->refuses("far", &a->far, {0, 4, -1, INT_MIN}, TILE_INVALID_ARGUMENT);
  c->refuses("window", &a->window, {-1, INT64_MIN}, TILE_INVALID_ARGUMENT);
  c->refuses("attention_factor", &a->attention_factor, {-1.0, NAN, INFINITY},
             TILE_INVALID_ARGUMENT);
  if (a->far != TILE_FAR_REROPE) {
    c->refuses("far_factor", &a->far_factor, {0.5, -1.0, NAN, INFINITY}, TILE_INVALID_ARGUMENT);
  }
  const std::int64_t pairs = a->rotary_dim / 2;
  c->vector("frequencies", &a->frequencies, Role::input, DType::fp64, pairs).is_optional = true;
  c->set_values("frequencies", frequencies_of(a->rotary_dim));
  if (pairs > 0) {
    c->refuses("frequencies", &a->frequencies, nullptr, TILE_INVALID_ARGUMENT);
  }
  const bool has_cos = !draw.one_in(3), has_sin = !draw.one_in(3);
  const std::int64_t count = 3 * a->positions * pairs;
  if (has_cos) c->vector("cos", &a->cos, Role::output, DType::fp32, count).is_optional = true;
  if (has_sin) c->vector("sin", &a->sin, Role::output, DType::fp32, count).is_optional = true;
  c->expect = [given = *a, has_cos, has_sin] {
    tile::Rotary r;
    r.far = static_cast<tile::FarRotation>(given.far);
    if (given.attention_factor != 0) r.attention_factor = given.attention_factor;
    if (given.far_factor != 0) r.far_factor = given.far_factor;
    const rope::Tables tables = windowed_rope::method::make_tables(
        r, given.window, frequencies_of(given.rotary_dim), given.positions);
    std::vector<Expected> all;
    if (has_cos) all.push_back(exactly(tables.cos));
    if (has_sin) all.push_back(exactly(tables.sin));
    return all;
  };
  return c;
}

Made rotary(Draw& draw) {
  tile_rotary_args* a = nullptr;
  Made c = make<tile_rotary_args>(&draw, "tile_rotary", tile_rotary, tile_rotary_reference, &a);
  rope::RotaryProblem p{.type = any_type(draw),
                        .batch = draw.of({0, 1, 1, 2, 3}),
                        .length = draw.of({0, 1, 2, 5, 9}),
                        .heads = draw.of({0, 1, 2, 3}),
                        .kv_heads = draw.of({0, 1, 2}),
                        .head_dim = draw.of({1, 2, 4, 6, 8, 16, 24, 64})};
  p.rotary_dim = p.head_dim;
  if (p.head_dim % 2 != 0) ++p.head_dim, p.rotary_dim = p.head_dim;
  if (draw.one_in(2)) p.rotary_dim = draw.of({std::int64_t{2}, p.head_dim / 4 * 2, p.head_dim});
  if (p.rotary_dim == 0) p.rotary_dim = p.head_dim;
  a->rotary_dim = p.rotary_dim == p.head_dim && draw.one_in(2) ? 0 : p.rotary_dim;
  a->batch = p.batch, a->length = p.length, a->heads = p.heads, a->kv_heads = p.kv_heads;
  a->head_dim = p.head_dim;
  c->is_empty = p.batch == 0 || p.length == 0 || p.heads + p.kv_heads == 0;
  c->type(p.type, {TILE_FP64, TILE_TF32, TILE_E4M3});
  a->interleaved = draw.below(2), a->backward = draw.below(2);
  p.layout = a->interleaved ? rope::Layout::interleaved : rope::Layout::half_split;
  p.pass = a->backward ? rope::Pass::backward : rope::Pass::forward;
  c->flag("interleaved", &a->interleaved), c->flag("backward", &a->backward);
  a->attention_factor = draw.of({0.0, 1.3});
  p.attention_factor = a->attention_factor == 0 ? 1 : a->attention_factor;
  c->note("attention_factor", a->attention_factor);
  c->refuses("attention_factor", &a->attention_factor, {-1.0, NAN, INFINITY},
             TILE_INVALID_ARGUMENT);
  a->first_position = p.first_position = draw.of({0, 0, 3});
  a->table_positions = p.table_positions = p.first_position + p.length + draw.of({0, 0, 2});
  const bool has_tables = !draw.one_in(3), has_frequencies = !has_tables || draw.one_in(2);
  std::vector<int> positions;
  if (draw.one_in(2) && p.batch * p.length > 0) {
    positions = any_positions(draw, p.batch * p.length, p.table_positions);
    c->integers("positions", &a->positions, positions);
  } else if (!c->is_empty) {
    c->refuses("table_positions", &a->table_positions, p.first_position + p.length - 1,
               TILE_INVALID_ARGUMENT);
  }
  const std::int64_t pairs = p.rotary_dim / 2;
  const auto table = [&](const char* name, const void* field, double (*function)(double)) {
    c->operand(name, field, Role::as_it_is, DType::fp32, {1, p.table_positions, 1, pairs},
               {0, 0, pairs});
    c->set_values(name, table_of(p.rotary_dim, p.table_positions, p.attention_factor, function));
  };
  if (has_tables) table("cos", &a->cos, std::cos), table("sin", &a->sin, std::sin);
  if (has_frequencies) {
    c->operand("frequencies", &a->frequencies, Role::as_it_is, DType::fp64, {1, 1, 1, pairs}, {})
        .is_optional = true;
    if (!has_tables && !c->is_empty) {
      c->refuses("frequencies", &a->frequencies, nullptr, TILE_INVALID_ARGUMENT, {"cos"});
    }
    c->set_values("frequencies", frequencies_of(p.rotary_dim));
  }
  c->has_reference = has_frequencies;
  if (!has_frequencies) c->steps_refuse = {"frequencies"};
  const Shape of_q{p.batch, p.length, p.heads, p.head_dim};
  const Shape of_k{p.batch, p.length, p.kv_heads, p.head_dim};
  const auto pair = [&](const char* in, const void* x, std::int64_t* x_strides, const char* out,
                        const void* y, std::int64_t* y_strides, const Shape& shape) {
    const Operand from = c->tensor(in, x, x_strides, Role::input, p.type, shape, draw.of({1, 8}));
    const bool may_share =
        from.stride == tile::packed_strides(shape.length, shape.heads, shape.dim);
    if (may_share && draw.one_in(2)) {
      Operand& to = c->operand(out, y, Role::output, p.type, shape, from.stride,
                               static_cast<std::int64_t>(from.block));
      std::copy_n(x_strides, 3, y_strides);
      to.may_be = in, to.strides = static_cast<std::int64_t>(c->slot_of(y_strides));
    } else {
      c->tensor(out, y, y_strides, Role::output, p.type, shape, draw.of({1, 8})).may_be = in;
    }
  };
  pair("q", &a->q, a->q_strides, "q_out", &a->q_out, a->q_out_strides, of_q);
  pair("k", &a->k, a->k_strides, "k_out", &a->k_out, a->k_out_strides, of_k);
  for (const auto& [name, field] : {std::pair{"batch", &a->batch},
                                    {"length", &a->length},
                                    {"heads", &a->heads},
                                    {"kv_heads", &a->kv_heads},
                                    {"head_dim", &a->head_dim},
                                    {"rotary_dim", &a->rotary_dim},
                                    {"first_position", &a->first_position},
                                    {"table_positions", &a->table_positions}}) {
    c->extent(name, field, kMost);
  }
  c->refuses("head_dim", &a->head_dim, 0, TILE_INVALID_ARGUMENT);
  c->refuses("rotary_dim", &a->rotary_dim, 1, TILE_INVALID_ARGUMENT);
  c->refuses("rotary_dim", &a->rotary_dim, p.head_dim / 2 * 2 + 2, TILE_INVALID_ARGUMENT);
  c->expect = [c = c.get(), p, positions] {
    const std::vector<double> f = frequencies_of(p.rotary_dim), q = c->values("q"),
                              k = c->values("k");
    return std::vector{rope::reference(p, q, p.heads, f, positions, rope::Angles::computed),
                       rope::reference(p, k, p.kv_heads, f, positions, rope::Angles::computed)};
  };
  return c;
}

template <class Args>
rope::EmbeddingProblem embedding_options(Call* c, Args* a, std::vector<int>* positions) {
  Draw& draw = c->draw;
  rope::EmbeddingProblem p{.type = any_type(draw),
                           .batch = draw.of({0, 1, 1, 2, 3}),
                           .length = draw.of({0, 1, 2, 5, 9}),
                           .dim = draw.of({0, 1, 2, 8, 16, 33, 64}),
                           .table_positions = 0};
  p.first_position = draw.of({0, 0, 3});
  p.table_positions = p.first_position + p.length + draw.of({0, 0, 2});
  a->batch = p.batch, a->length = p.length, a->dim = p.dim;
  a->first_position = p.first_position;
  if (draw.one_in(2) && p.batch * p.length > 0) {
    if (draw.one_in(4)) p.table_positions = draw.of({0, 1});
    *positions = any_positions(draw, p.batch * p.length, p.table_positions);
  }
  a->table_positions = p.table_positions;
  c->type(p.type, {TILE_FP64, TILE_TF32, TILE_E4M3});
  return p;
}
template <class Args>
void embedding_extents(Call* c, Args* a, const rope::EmbeddingProblem& p, bool has_positions) {
  for (const auto& [name, field] : {std::pair{"batch", &a->batch},
                                    {"length", &a->length},
                                    {"dim", &a->dim},
                                    {"first_position", &a->first_position},
                                    {"table_positions", &a->table_positions}}) {
    c->extent(name, field, kMost);
  }
  if (p.batch * p.length * p.dim == 0 || has_positions || c->is_empty) return;
  c->refuses("table_positions", &a->table_positions, p.first_position + p.length - 1,
             TILE_INVALID_ARGUMENT);
}

Made embedding_forward(Draw& draw) {
  tile_embedding_args* a = nullptr;
  Made c = make<tile_embedding_args>(&draw, "tile_embedding", tile_embedding,
                                     tile_embedding_reference, &a);
  std::vector<int> positions;
  const auto p = embedding_options(c.get(), a, &positions);
  c->is_empty = p.batch * p.length * p.dim == 0;
  if (!positions.empty()) c->integers("positions", &a->positions, positions);
  const std::int64_t tokens = p.batch * p.length;
  const Shape rows{1, tokens, 1, p.dim};
  const bool has_x = !draw.one_in(3);
  if (has_x) c->operand("x", &a->x, Role::input, p.type, rows, {0, 0, p.dim}).is_optional = true;
  c->operand("table", &a->table, Role::input, p.type, {1, p.table_positions, 1, p.dim},
             {0, 0, p.dim});
  const bool in_place = has_x && draw.one_in(2);
  const std::int64_t block = in_place ? static_cast<std::int64_t>(c->operand("x").block) : -1;
  c->operand("y", &a->y, Role::output, p.type, rows, {0, 0, p.dim}, block).may_be = "x";
  embedding_extents(c.get(), a, p, !positions.empty());
  c->expect = [c = c.get(), p, positions, has_x] {
    const std::vector<double> x = has_x ? c->values("x") : std::vector<double>{};
    return std::vector{rope::reference(p, x, c->values("table"), positions)};
  };
  return c;
}

Made embedding_backward(Draw& draw) {
  using Args = tile_embedding_backward_args;
  Args* a = nullptr;
  Made c = make<Args>(&draw, "tile_embedding_backward", tile_embedding_backward,
                      tile_embedding_backward_reference, &a);
  std::vector<int> positions;
  const auto p = embedding_options(c.get(), a, &positions);
  c->is_empty = p.table_positions == 0 || p.dim == 0;
  if (!positions.empty()) c->integers("positions", &a->positions, positions);
  c->operand("dy", &a->dy, Role::input, p.type, {1, p.batch * p.length, 1, p.dim}, {0, 0, p.dim});
  c->operand("dtable", &a->dtable, Role::output, p.type, {1, p.table_positions, 1, p.dim},
             {0, 0, p.dim});
  if (draw.one_in(2)) {
    c->has_workspace<Args>(&a->workspace, nullptr, [](const Args* args, std::int64_t* bytes) {
      *bytes = args->table_positions * args->dim * 4;
      return tile_status{TILE_OK};
    });
    c->is_workspace_optional = true;
  } else {
    c->steps_refuse = {"workspace"};
  }
  embedding_extents(c.get(), a, p, !positions.empty());
  c->expect = [c = c.get(), p, positions] {
    return std::vector{rope::backward_reference(p, c->values("dy"), positions)};
  };
  return c;
}

}  // namespace

std::vector<Operator> positions() {
  return {{"tile_rotary", rotary},
          {"tile_rotary_tables", rotary_tables},
          {"tile_windowed_rotary_tables", windowed_tables},
          {"tile_embedding", embedding_forward},
          {"tile_embedding_backward", embedding_backward}};
}

}  // namespace fuzz
