// Calls of all operations with hostile sizes, lengths, strides and pointers. A call is
// drawn from a seed and its number, and a line says what it is:
//
//     tile_c_fuzz [--seed=N] [--first=N] [--calls=N] [--operation=NAME] [--show]
//
// The seed is that of the environment's TILE_FUZZ_SEED, or 1. `--seed=7 --first=1234 --calls=1` is
// the call 7:1234 again; --show prints each call, and how long each operation took.
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "01_vector_add/reference.hpp"
#include "02_matmul/reference.hpp"
#include "03_softmax/reference.hpp"
#include "04_layernorm/reference.hpp"
#include "05_flash_attention/reference.hpp"
#include "06_rope/attention/reference.hpp"
#include "06_rope/embedding/reference.hpp"
#include "06_rope/rotary/frequencies.hpp"
#include "06_rope/rotary/reference.hpp"
#include "07_windowed_rope/method/reference.hpp"
#include "07_windowed_rope/method/tables.hpp"
#include "07_windowed_rope/windowed/reference.hpp"
#include "harness/c/fuzz.hpp"

namespace fuzz {
namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 29, kAny = INT64_MAX;

DType any_type(Draw& draw) { return draw.of({DType::fp32, DType::fp16, DType::bf16}); }

using Made = std::unique_ptr<Call>;
template <class Args>
Made make(Draw* draw, const char* name, Call::Operation<Args> run, Call::Operation<Args> refer,
          Args** args) {
  auto c = std::make_unique<Call>(draw, name, Args{}, run, refer);
  *args = &c->template as<Args>();
  return c;
}

// ---- Chapters 01 to 04 ----

Made vector_add(Draw& draw) {
  tile_vector_add_args* a = nullptr;
  Made c = make<tile_vector_add_args>(&draw, "tile_vector_add", tile_vector_add, nullptr, &a);
  const DType type = any_type(draw);
  a->n = draw.of({0, 1, 2, 3, 7, 8, 31, 64, 200, 1000});
  c->is_empty = a->n == 0;
  c->type(type, {TILE_FP64, TILE_TF32, TILE_E4M3});
  c->vector("a", &a->a, Role::input, type, a->n);
  c->vector("b", &a->b, Role::input, type, a->n);
  const std::string place = draw.of<const char*>({"", "", "a", "b"});
  const std::int64_t block =
      place.empty() ? -1 : static_cast<std::int64_t>(c->operand(place).block);
  c->operand("c", &a->c, Role::output, type, {1, 1, 1, a->n}, {}, block).may_be = "a";
  c->note(("c at " + place).c_str(), 1);
  c->extent("n", &a->n, kAny);
  c->expect = [c = c.get(), type] {
    return std::vector{vector_add::reference(type, c->values("a"), c->values("b"))};
  };
  return c;
}

Made matmul(Draw& draw) {
  tile_matmul_args* a = nullptr;
  Made c = make<tile_matmul_args>(&draw, "tile_matmul", tile_matmul, tile_matmul_reference, &a);
  matmul::Problem p{};
  p.type = draw.of({DType::fp32, DType::fp16, DType::bf16, DType::tf32, DType::e4m3});
  const bool is_8_bits = p.type == DType::e4m3;
  const auto size = [&] { return draw.of<std::int64_t>({0, 1, 2, 5, 8, 16, 17, 33, 64, 70}); };
  a->m = p.m = size(), a->n = p.n = size(), a->k = p.k = size();
  p.transpose_a = !is_8_bits && draw.one_in(2), p.transpose_b = is_8_bits || draw.one_in(2);
  a->transpose_a = p.transpose_a, a->transpose_b = p.transpose_b;
  c->is_empty = p.m == 0 || p.n == 0;
  c->steps_refuse = {"type"};
  c->type(p.type, {TILE_FP64});
  p.alpha = 1, p.beta = 0;
  if (draw.one_in(2)) a->alpha = c->kept(p.alpha = draw.of({0.0f, 1.0f, -0.5f}));
  if (draw.one_in(2)) a->beta = c->kept(p.beta = draw.of({0.0f, 1.0f, 0.25f}));
  c->note("alpha", p.alpha), c->note("beta", p.beta);
  a->activation = draw.below(3);
  p.activation = static_cast<matmul::Activation>(a->activation);
  c->note("activation", a->activation);
  for (const tile_activation other : {tile_activation{3}, tile_activation{INT64_MIN}}) {
    c->refuses("activation", &a->activation, other, TILE_INVALID_ARGUMENT);
  }
  const std::int64_t chunk = is_8_bits ? 16 : 1;
  const DType type_of_c = is_8_bits ? DType::bf16 : p.type;
  const bool has_product = p.alpha != 0 && p.k > 0;
  if (has_product) {
    c->matrix("a", &a->a, Role::input, p.type, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k,
              {"lda", &a->lda, {"m", "k"}, "", chunk});
    c->matrix("b", &a->b, Role::input, p.type, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n,
              {"ldb", &a->ldb, {"k", "n"}, "", chunk});
  } else if (draw.one_in(2)) {  // they are not read
    a->a = a->b = reinterpret_cast<const void*>(std::uintptr_t{1});
  }
  Operand& out = c->matrix("c", &a->c, Role::output, type_of_c, p.m, p.n,
                           {"ldc", &a->ldc, {"m", "n"}, "", is_8_bits ? 8 : 1});
  if (p.beta != 0) c->give_values(out);
  if (draw.one_in(2)) c->vector("bias", &a->bias, Role::input, type_of_c, p.n).is_optional = true;
  const bool has_bias = a->bias || c->has("bias");
  const bool is_scaled = is_8_bits && has_product && draw.one_in(2);
  if (is_scaled) {
    c->vector("a_scale", &a->a_scale, Role::input, DType::fp32, 1).is_optional = true;
    c->vector("b_scale", &a->b_scale, Role::input, DType::fp32, 1).is_optional = true;
    c->has_reference = false;  // whose scales are 1
  } else if (!is_8_bits) {
    c->refuses<const float*>("a_scale", &a->a_scale, c->kept(1), TILE_INVALID_ARGUMENT);
  }
  c->flag("transpose_a", &a->transpose_a), c->flag("transpose_b", &a->transpose_b);
  const bool overflows = !is_8_bits && p.k > 1;  // one row of 8 bits does not
  const Names sources{"a", "b", "lda", "ldb"};   // even if they are not read
  c->extent("m", &a->m, overflows ? kAny : 0, sources);
  c->extent("n", &a->n, overflows ? kAny : 0, sources);
  c->extent("k", &a->k, overflows && has_product && p.m > 1 ? kAny : 0);
  c->expect = [c = c.get(), p, has_bias, has_product, is_scaled] {
    std::vector<double> x, y, z, bias;
    if (has_product) x = c->values("a"), y = c->values("b");
    if (p.beta != 0) z = c->values("c");
    if (has_bias) bias = c->values("bias");
    const double scale = is_scaled ? c->values("a_scale")[0] * c->values("b_scale")[0] : 1;
    return std::vector{matmul::reference(p, x, y, z, false, bias, false, scale)};
  };
  return c;
}

// Rows, columns and options of softmax, of both passes.
template <class Args, class Problem>
void softmax_options(Call* c, Args* a, Problem* p) {
  Draw& draw = c->draw;
  p->type = any_type(draw);
  p->queries = draw.of({0, 1, 2, 3, 7}), p->cols = draw.of({0, 1, 2, 5, 8, 31, 32, 64, 129, 300});
  p->rows = p->queries * draw.of({0, 1, 1, 2, 3});
  p->log = draw.one_in(2), p->causal = draw.one_in(2);
  a->rows = p->rows, a->cols = p->cols, a->log = p->log, a->causal = p->causal;
  c->is_empty = p->rows == 0 || p->cols == 0;
  if (p->rows > 0 && draw.one_in(2))
    a->queries = p->queries;
  else
    p->queries = p->rows;
  c->note("queries", a->queries);
  a->scale = draw.of({0.0f, 1.0f, 0.5f});
  p->scale = a->scale == 0 ? 1 : a->scale;
  c->note("scale", a->scale);
  for (const float other : {-1.0f, NAN, INFINITY, 3e38f}) {
    c->refuses("scale", &a->scale, other, TILE_INVALID_ARGUMENT);
  }
  if (p->causal && p->rows > 0) {
    for (const std::int64_t other : {p->rows + 1, std::int64_t{-1}, INT64_MIN, INT64_MAX}) {
      c->refuses("queries", &a->queries, other, TILE_INVALID_ARGUMENT);
    }
  }
  c->type(p->type, {TILE_FP64, TILE_TF32, TILE_E4M3});
  c->flag("log", &a->log), c->flag("causal", &a->causal);
}

Made softmax_forward(Draw& draw) {
  tile_softmax_args* a = nullptr;
  Made c = make<tile_softmax_args>(&draw, "tile_softmax", tile_softmax, tile_softmax_reference, &a);
  softmax::ForwardProblem p{};
  softmax_options(c.get(), a, &p);
  const Names extents{"rows", "cols"};
  c->matrix("x", &a->x, Role::input, p.type, p.rows, p.cols, {"ldx", &a->ldx, extents});
  const std::string place = draw.of<const char*>({"", "x"});
  c->matrix("y", &a->y, Role::output, p.type, p.rows, p.cols, {"ldy", &a->ldy, extents, place})
      .may_be = "x";
  c->extent("rows", &a->rows, kAny, {"queries"}), c->extent("cols", &a->cols, kAny);
  c->expect = [c = c.get(), p] { return std::vector{softmax::reference(p, c->values("x"))}; };
  return c;
}

Made softmax_backward(Draw& draw) {
  tile_softmax_backward_args* a = nullptr;
  Made c = make<tile_softmax_backward_args>(&draw, "tile_softmax_backward", tile_softmax_backward,
                                            tile_softmax_backward_reference, &a);
  softmax::BackwardProblem p{};
  softmax_options(c.get(), a, &p);
  const Names extents{"rows", "cols"};
  c->matrix("y", &a->y, Role::input, p.type, p.rows, p.cols, {"ldy", &a->ldy, extents});
  c->matrix("dy", &a->dy, Role::input, p.type, p.rows, p.cols, {"lddy", &a->lddy, extents});
  const std::string place = draw.of<const char*>({"", "y", "dy"});
  c->matrix("dx", &a->dx, Role::output, p.type, p.rows, p.cols, {"lddx", &a->lddx, extents, place})
      .may_be = "y";
  c->extent("rows", &a->rows, kAny, {"queries"}), c->extent("cols", &a->cols, kAny);
  c->expect = [c = c.get(), p] {
    return std::vector{softmax::reference(p, c->values("y"), c->values("dy"))};
  };
  return c;
}

template <class Args, class Problem>
void layernorm_options(Call* c, Args* a, Problem* p) {
  Draw& draw = c->draw;
  p->type = any_type(draw);
  p->rows = draw.of({0, 1, 2, 3, 7, 20}), p->cols = draw.of({0, 1, 2, 5, 8, 31, 32, 64, 129, 300});
  p->norm = draw.of({layernorm::Norm::layer, layernorm::Norm::rms});
  a->rows = p->rows, a->cols = p->cols, a->norm = static_cast<tile_norm>(p->norm);
  c->note("norm", a->norm);
  for (const tile_norm other : {2, -1, INT_MIN}) {
    c->refuses("norm", &a->norm, other, TILE_INVALID_ARGUMENT);
  }
  c->type(p->type, {TILE_FP64, TILE_TF32, TILE_E4M3});
}

Made layernorm_forward(Draw& draw) {
  tile_layernorm_args* a = nullptr;
  Made c = make<tile_layernorm_args>(&draw, "tile_layernorm", tile_layernorm,
                                     tile_layernorm_reference, &a);
  layernorm::ForwardProblem p{};
  layernorm_options(c.get(), a, &p);
  c->is_empty = p.rows == 0 || p.cols == 0;
  const bool is_layer = p.norm == layernorm::Norm::layer;
  if (draw.one_in(2)) a->eps = c->kept(p.eps = draw.of({1e-5f, 0.5f, 0.0f}));
  c->note("eps", p.eps);
  for (const float other : {-1.0f, NAN, INFINITY}) {
    c->refuses<const float*>("eps", &a->eps, c->kept(other), TILE_INVALID_ARGUMENT);
  }
  const Names extents{"rows", "cols"};
  c->matrix("x", &a->x, Role::input, p.type, p.rows, p.cols, {"ldx", &a->ldx, extents});
  const auto option = [&](const char* name, const void* field, Role role, DType type,
                          std::int64_t n, const char* extent) {
    if (draw.one_in(2)) return false;
    Operand& x = c->vector(name, field, role, type, n);
    x.is_optional = true, x.extents = {extent};
    return true;
  };
  const bool has_gamma = option("gamma", &a->gamma, Role::input, p.type, p.cols, "cols");
  const bool has_beta = is_layer && option("beta", &a->beta, Role::input, p.type, p.cols, "cols");
  const std::string place = draw.of<const char*>({"", "x"});
  c->matrix("y", &a->y, Role::output, p.type, p.rows, p.cols, {"ldy", &a->ldy, extents, place})
      .may_be = "x";
  const bool has_mean =
      is_layer && option("mean", &a->mean, Role::output, DType::fp32, p.rows, "rows");
  const bool has_rstd = option("rstd", &a->rstd, Role::output, DType::fp32, p.rows, "rows");
  if (!is_layer) {
    c->refuses<const void*>("beta", &a->beta, a, TILE_INVALID_ARGUMENT);
    c->refuses<void*>("mean", &a->mean, a, TILE_INVALID_ARGUMENT);
  }
  c->extent("rows", &a->rows, kAny), c->extent("cols", &a->cols, kAny);
  c->expect = [c = c.get(), p, has_gamma, has_beta, has_mean, has_rstd] {
    std::vector<double> gamma, beta;
    if (has_gamma) gamma = c->values("gamma");
    if (has_beta) beta = c->values("beta");
    const auto found = layernorm::reference(p, c->values("x"), gamma, beta);
    std::vector all{found.y};
    if (has_mean) all.push_back(found.mean);
    if (has_rstd) all.push_back(found.rstd);
    return all;
  };
  return c;
}

Made layernorm_backward(Draw& draw) {
  using Args = tile_layernorm_backward_args;
  Args* a = nullptr;
  Made c = make<Args>(&draw, "tile_layernorm_backward", tile_layernorm_backward,
                      tile_layernorm_backward_reference, &a);
  layernorm::BackwardProblem p{};
  layernorm_options(c.get(), a, &p);
  c->is_empty = p.cols == 0;
  const bool is_layer = p.norm == layernorm::Norm::layer;
  const Names extents{"rows", "cols"};
  c->matrix("x", &a->x, Role::input, p.type, p.rows, p.cols, {"ldx", &a->ldx, extents});
  const bool has_gamma = draw.one_in(2);
  const std::int64_t gammas = p.rows > 0 ? p.cols : 0;  // without rows they are not read
  if (has_gamma) c->vector("gamma", &a->gamma, Role::input, p.type, gammas).is_optional = true;
  if (is_layer) {
    c->vector("mean", &a->mean, Role::input, DType::fp32, p.cols > 0 ? p.rows : 0).extents = {
        "rows"};
  } else {
    c->refuses<const void*>("mean", &a->mean, a, TILE_INVALID_ARGUMENT);
    c->refuses<void*>("dbeta", &a->dbeta, a, TILE_INVALID_ARGUMENT);
  }
  c->vector("rstd", &a->rstd, Role::input, DType::fp32, p.cols > 0 ? p.rows : 0).extents = {"rows"};
  c->matrix("dy", &a->dy, Role::input, p.type, p.rows, p.cols, {"lddy", &a->lddy, extents});
  const std::string place = draw.of<const char*>({"", "x", "dy"});
  c->matrix("dx", &a->dx, Role::output, p.type, p.rows, p.cols, {"lddx", &a->lddx, extents, place})
      .may_be = "x";
  const auto sum = [&](const char* name, const void* field) {
    if (draw.one_in(3)) return false;
    Operand& x = c->vector(name, field, Role::output, p.type, p.cols);
    x.is_optional = true, x.extents = {"cols"};
    return true;
  };
  const bool has_dgamma = sum("dgamma", &a->dgamma);
  const bool has_dbeta = is_layer && sum("dbeta", &a->dbeta);
  c->has_workspace(&a->workspace, nullptr, tile_layernorm_workspace_bytes);
  c->extent("rows", &a->rows, p.rows > 0 ? kAny : 0),
      c->extent("cols", &a->cols, p.rows > 0 ? kAny : 0);
  c->expect = [c = c.get(), p, is_layer, has_gamma, has_dgamma, has_dbeta] {
    std::vector<double> gamma, mean;
    if (has_gamma && p.rows > 0) gamma = c->values("gamma");
    if (is_layer) mean = c->values("mean");
    const auto found =
        layernorm::reference(p, c->values("x"), gamma, mean, c->values("rstd"), c->values("dy"));
    std::vector all{found.dx};
    if (has_dgamma) all.push_back(found.dgamma);
    if (has_dbeta) all.push_back(found.dbeta);
    return all;
  };
  return c;
}

// ---- Positions and their tables ----

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

// Positions of tokens, some of them nowhere in the tables.
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
  for (const std::int64_t other : {std::int64_t{-2}, std::int64_t{7}, INT64_MIN}) {
    c->refuses("rotary_dim", &a->rotary_dim, other, TILE_INVALID_ARGUMENT);
  }
  for (const std::int64_t other : {kMost + 2, std::int64_t{1} << 40, INT64_MAX - 1}) {
    c->refuses("rotary_dim", &a->rotary_dim, other, TILE_UNSUPPORTED);
  }
  c->note("rotary_dim", a->rotary_dim);
  c->extent("positions", &a->positions, kMost);
}

Made rotary_tables(Draw& draw) {
  using Args = tile_rotary_tables_args;
  Args* a = nullptr;
  Made c = make<Args>(&draw, "tile_rotary_tables", tile_rotary_tables, nullptr, &a);
  const auto refuses = [&](const char* name, double* field, std::initializer_list<double> values) {
    for (const double each : values) c->refuses(name, field, each, TILE_INVALID_ARGUMENT);
  };
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
  refuses("base", &a->base, {1.0, -1.0, NAN, INFINITY});
  if (a->scaling != TILE_ROTARY_UNSCALED) refuses("factor", &a->factor, {0.5, -1.0, NAN, INFINITY});
  const bool has_length =
      a->scaling == TILE_ROTARY_DYNAMIC_NTK || a->scaling == TILE_ROTARY_LONGROPE;
  if (has_length) c->refuses("length", &a->length, std::int64_t{-1}, TILE_INVALID_ARGUMENT);
  if (a->scaling >= TILE_ROTARY_DYNAMIC_NTK) {
    for (const std::int64_t other : {std::int64_t{0}, std::int64_t{-1}, INT64_MIN}) {
      c->refuses("trained_length", &a->trained_length, other, TILE_INVALID_ARGUMENT);
    }
  }
  const std::int64_t pairs = a->rotary_dim / 2;
  a->unrotated_pairs = draw.of({std::int64_t{0}, std::int64_t{0}, pairs / 3, pairs});
  c->note("unrotated_pairs", a->unrotated_pairs);
  for (const std::int64_t other : {std::int64_t{-1}, pairs + 1, INT64_MAX}) {
    c->refuses("unrotated_pairs", &a->unrotated_pairs, other, TILE_INVALID_ARGUMENT);
  }
  const bool is_yarn = a->scaling == TILE_ROTARY_YARN;
  if (is_yarn) {
    a->untruncated = draw.below(2);
    c->flag("untruncated", &a->untruncated);
  } else {
    c->refuses("untruncated", &a->untruncated, 1, TILE_INVALID_ARGUMENT);
  }
  if (is_yarn || a->scaling == TILE_ROTARY_LONGROPE) {
    a->attention_factor = draw.of({0.0, 1.3});
    refuses("attention_factor", &a->attention_factor, {-1.0, NAN, INFINITY});
  } else {
    refuses("attention_factor", &a->attention_factor, {1.3});
  }
  std::vector<double> factors(static_cast<std::size_t>(pairs));
  for (double& each : factors) each = 1 + static_cast<double>(draw.below(8));
  const auto divisors = [&](const char* name, const double** field) {
    if (a->scaling != TILE_ROTARY_LONGROPE) return;
    c->vector(name, field, Role::input, DType::fp64, pairs).is_optional = true;
    c->set_values(name, factors);
    if (pairs > 0) c->refuses<const double*>(name, field, nullptr, TILE_INVALID_ARGUMENT);
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
  for (const tile_far_rotation other : {0, 4, -1, INT_MIN}) {
    c->refuses("far", &a->far, other, TILE_INVALID_ARGUMENT);
  }
  for (const std::int64_t other : {std::int64_t{-1}, INT64_MIN}) {
    c->refuses("window", &a->window, other, TILE_INVALID_ARGUMENT);
  }
  for (const double other : {-1.0, double{NAN}, double{INFINITY}}) {
    c->refuses("attention_factor", &a->attention_factor, other, TILE_INVALID_ARGUMENT);
  }
  if (a->far != TILE_FAR_REROPE) {
    for (const double other : {0.5, -1.0, double{NAN}, double{INFINITY}}) {
      c->refuses("far_factor", &a->far_factor, other, TILE_INVALID_ARGUMENT);
    }
  }
  const std::int64_t pairs = a->rotary_dim / 2;
  c->vector("frequencies", &a->frequencies, Role::input, DType::fp64, pairs).is_optional = true;
  c->set_values("frequencies", frequencies_of(a->rotary_dim));
  if (pairs > 0) {
    c->refuses<const double*>("frequencies", &a->frequencies, nullptr, TILE_INVALID_ARGUMENT);
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
  for (const double other : {-1.0, double{NAN}, double{INFINITY}}) {
    c->refuses("attention_factor", &a->attention_factor, other, TILE_INVALID_ARGUMENT);
  }
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
      c->refuses<const void*>("frequencies", &a->frequencies, nullptr, TILE_INVALID_ARGUMENT,
                              {"cos"});
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
  c->refuses("head_dim", &a->head_dim, std::int64_t{0}, TILE_INVALID_ARGUMENT);
  c->refuses("rotary_dim", &a->rotary_dim, std::int64_t{1}, TILE_INVALID_ARGUMENT);
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
  c->operand("x", &a->x, Role::input, p.type, rows, {0, 0, p.dim});
  c->operand("table", &a->table, Role::input, p.type, {1, p.table_positions, 1, p.dim},
             {0, 0, p.dim});
  const std::int64_t block = draw.one_in(2) ? -1 : static_cast<std::int64_t>(c->operand("x").block);
  c->operand("y", &a->y, Role::output, p.type, rows, {0, 0, p.dim}, block).may_be = "x";
  embedding_extents(c.get(), a, p, !positions.empty());
  c->expect = [c = c.get(), p, positions] {
    return std::vector{rope::reference(p, c->values("x"), c->values("table"), positions)};
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

// ---- Attention, of all four kinds and in both directions ----

enum class Kind { plain, rotary, windowed, method };

template <class Args>
using Tell = tile_status(const Args*, std::int64_t*);

template <class Args>
constexpr bool kIsBackward = requires(Args a) {
  a.dq;
};

std::vector<int> any_lengths(Draw& draw, std::int64_t batch, std::int64_t most) {
  std::vector<int> all;
  const bool is_hostile = draw.one_in(2);
  for (std::int64_t i = 0; i < batch; ++i) {
    const auto inside = static_cast<int>(draw.below(most + 1));
    const auto beyond = static_cast<int>(most) + 5;
    all.push_back(is_hostile ? draw.of({inside, inside, -1, beyond, INT_MIN, INT_MAX}) : inside);
  }
  return all;
}
// As tile.h says.
std::vector<int> cut(std::vector<int> lengths, std::int64_t most) {
  for (int& n : lengths) n = std::clamp(n, 0, static_cast<int>(most));
  return lengths;
}

// What the oracles need besides the operands' values.
struct Oracle {
  Kind kind;
  tile::Attention p{};
  std::vector<int> query_lengths, key_lengths, positions;
  std::vector<double> frequencies;

  tile::AttentionExpected forward(const Call& c) const {
    const tile::AttentionForward call{p};
    const auto q = c.values("q"), k = c.values("k"), v = c.values("v");
    switch (kind) {
      case Kind::plain:
        return flash_attention::reference(call, {q, k, v, query_lengths, key_lengths});
      case Kind::rotary: return rope::reference(call, {q, k, v, frequencies, positions});
      case Kind::windowed: break;
      case Kind::method:
        return windowed_rope::method::reference(call,
                                                {q, k, v, frequencies, query_lengths, key_lengths});
    }
    const auto q_far = c.values("q_far"), k_far = c.values("k_far");
    return windowed_rope::reference(call, {.q = q,
                                           .k = k,
                                           .v = v,
                                           .query_lengths = query_lengths,
                                           .key_lengths = key_lengths,
                                           .far = {q_far, k_far}});
  }
  tile::AttentionGradients backward(const Call& c) const {
    const tile::AttentionBackward call{p};
    const auto q = c.values("q"), k = c.values("k"), v = c.values("v");
    const auto o = c.values("o"), lse = c.values("lse"), dout = c.values("dout");
    switch (kind) {
      case Kind::plain:
        return flash_attention::reference(call,
                                          {q, k, v, o, lse, dout, query_lengths, key_lengths});
      case Kind::rotary:
        return rope::reference(call, {q, k, v, o, lse, dout, frequencies, positions});
      case Kind::windowed: break;
      case Kind::method:
        return windowed_rope::method::reference(
            call, {q, k, v, o, lse, dout, frequencies, query_lengths, key_lengths});
    }
    const auto q_far = c.values("q_far"), k_far = c.values("k_far");
    return windowed_rope::reference(call, {.q = q,
                                           .k = k,
                                           .v = v,
                                           .o = o,
                                           .lse = lse,
                                           .dout = dout,
                                           .query_lengths = query_lengths,
                                           .key_lengths = key_lengths,
                                           .far = {q_far, k_far}});
  }
};

template <class Args>
void attention_sizes(Call* c, Args* a, Kind kind, tile::Attention* p) {
  Draw& draw = c->draw;
  const auto length = [&] {
    return draw.one_in(12) ? draw.of({33, 65}) : draw.of({0, 1, 1, 2, 3, 4, 5, 7, 9, 16, 17});
  };
  p->type = kind == Kind::rotary ? draw.of({DType::fp16, DType::bf16}) : any_type(draw);
  p->batch = draw.of({0, 1, 1, 1, 2, 2, 3});
  p->kv_heads = draw.of({1, 1, 1, 2, 3});
  p->heads = draw.one_in(16) ? 0 : p->kv_heads * draw.of({1, 1, 1, 2, 3});
  p->queries = length();
  p->keys = kind == Kind::rotary || draw.one_in(2) ? p->queries : length();
  p->head_dim = kind == Kind::rotary   ? draw.of({64, 64, 64, 128})
                : kind == Kind::method ? draw.of({2, 4, 10, 16, 16, 32, 64, 64, 128})
                : draw.one_in(8)       ? draw.of({100, 128, 256, 257})
                                       : draw.of({1, 2, 3, 5, 8, 16, 16, 24, 32, 40, 64, 64});
  a->batch = p->batch, a->heads = p->heads, a->queries = p->queries, a->keys = p->keys;
  a->head_dim = p->head_dim;
  a->kv_heads = p->kv_heads == p->heads && draw.one_in(2) ? 0 : p->kv_heads;
  if (p->heads == 0 && draw.one_in(2)) a->kv_heads = p->kv_heads = 0;
  const bool is_backward = kIsBackward<Args>;
  const bool has_rows =
      is_backward && kind != Kind::rotary ? p->queries + p->keys > 0 : p->queries > 0;
  c->is_empty = p->batch == 0 || p->heads == 0 || !has_rows;
  a->scale = draw.of({0.0f, 0.3f, 1.0f});
  p->scale = a->scale == 0 ? 1 / std::sqrt(static_cast<float>(p->head_dim)) : a->scale;
  c->note("scale", a->scale);
  for (const float other : {-1.0f, NAN, INFINITY, 3e38f}) {
    c->refuses("scale", &a->scale, other, TILE_INVALID_ARGUMENT);
  }
  if (kind == Kind::rotary) {
    c->type(p->type, {TILE_FP32, TILE_FP64, TILE_TF32, TILE_E4M3});
  } else {
    c->type(p->type, {TILE_FP64, TILE_TF32, TILE_E4M3});
  }
}

template <class Args>
void attention_mask(Call* c, Args* a, Kind kind, tile::Attention* p) {
  Draw& draw = c->draw;
  a->causal = kind == Kind::method || draw.one_in(2);
  c->flag("causal", &a->causal);
  if (kind == Kind::method) {
    c->refuses("causal", &a->causal, 0, TILE_UNSUPPORTED);
  }
  if (a->causal) p->right = 0;
  if (kind == Kind::plain) {
    a->windowed = draw.one_in(2);
    const auto side = [&] { return draw.of({0L, 1L, 3L, 100L, kMost, kMost + 1, INT64_MAX}); };
    a->left = side(), a->right = side();
    if (a->windowed) {
      p->left = std::min(a->left, tile::kUnlimited);
      p->right = a->causal ? 0 : std::min(a->right, tile::kUnlimited);
      c->refuses("left", &a->left, std::int64_t{-1}, TILE_INVALID_ARGUMENT);
      c->refuses("right", &a->right, std::int64_t{INT64_MIN}, TILE_INVALID_ARGUMENT);
    } else if (draw.one_in(2)) {  // they are not used
      a->left = -7, a->right = INT64_MIN;
    }
    c->note("left", a->left), c->note("right", a->right);
  } else {
    c->refuses("windowed", &a->windowed, 1, TILE_UNSUPPORTED, {"left", "right"});
  }
  c->flag("windowed", &a->windowed);
  if (kind == Kind::windowed || kind == Kind::method) {
    a->window = draw.of({0L, 1L, 2L, 3L, 7L, 64L, kMost, kMost + 1, 1L << 40, INT64_MAX});
    if (kind == Kind::windowed && draw.one_in(6))
      a->window = draw.of<std::int64_t>({-5, INT64_MIN});
    p->window = std::clamp(a->window, std::int64_t{0}, tile::kUnlimited);
    c->note("window", a->window);
  } else {
    c->refuses("window", &a->window, std::int64_t{3}, TILE_UNSUPPORTED);
  }
  if (kind == Kind::method) {
    c->refuses("window", &a->window, std::int64_t{-1}, TILE_INVALID_ARGUMENT);
  }
  if (kind != Kind::windowed) {
    c->refuses<void*>("q_far", &a->q_far.data, a, TILE_UNSUPPORTED);
    c->refuses<void*>("k_far", &a->k_far.data, a, TILE_UNSUPPORTED);
  }
}

// What the kinds that do not rotate refuse of a rotation.
void no_rotation(Call* c, tile_rotation* r) {
  const Names also{"rotation"};
  c->refuses<const void*>("cos", &r->cos, r, TILE_UNSUPPORTED, also);
  c->refuses<const void*>("frequencies", &r->frequencies, r, TILE_UNSUPPORTED, also);
  c->refuses<const std::int32_t*>("positions", &r->positions, c->kept_integers(), TILE_UNSUPPORTED,
                                  also);
  c->refuses("rotary_dim", &r->rotary_dim, std::int64_t{2}, TILE_UNSUPPORTED, also);
  c->refuses("first_position", &r->first_position, std::int64_t{1}, TILE_UNSUPPORTED, also);
  c->refuses("far", &r->far, std::int32_t{1}, TILE_UNSUPPORTED, also);
  c->refuses("far_factor", &r->far_factor, 2.0, TILE_UNSUPPORTED, also);
  c->refuses("interleaved", &r->interleaved, std::int32_t{1}, TILE_UNSUPPORTED, also);
  c->refuses("interleaved", &r->interleaved, std::int32_t{2}, TILE_INVALID_ARGUMENT);
}

template <class Args>
void rotation(Call* c, Args* a, Oracle* oracle) {
  Draw& draw = c->draw;
  tile::Attention& p = oracle->p;
  tile::Rotary& r = p.rotary;
  tile_rotation& given = a->rotation;
  const bool is_method = oracle->kind == Kind::method;
  given.interleaved = draw.one_in(3);
  r.layout = given.interleaved ? tile::RotaryLayout::interleaved : tile::RotaryLayout::half_split;
  c->flag("interleaved", &given.interleaved);
  r.rotary_dim = p.head_dim;
  if (draw.one_in(2)) {
    r.rotary_dim = is_method ? draw.of({std::int64_t{2}, p.head_dim}) : draw.of({16, 32, 48});
    if (!is_method && given.interleaved && draw.one_in(2)) r.rotary_dim = 24;
  }
  given.rotary_dim = r.rotary_dim == p.head_dim && draw.one_in(2) ? 0 : r.rotary_dim;
  given.attention_factor = draw.of({0.0, 1.3});
  r.attention_factor = given.attention_factor == 0 ? 1 : given.attention_factor;
  c->note("attention_factor", given.attention_factor);
  for (const double other : {-1.0, double{NAN}, double{INFINITY}}) {
    c->refuses("attention_factor", &given.attention_factor, other, TILE_INVALID_ARGUMENT);
  }
  oracle->frequencies = frequencies_of(r.rotary_dim);
  const std::int64_t pairs = r.rotary_dim / 2;
  std::vector<double> cos, sin;
  if (is_method) {
    given.far = draw.of({TILE_FAR_REROPE, TILE_FAR_LEAKY_REROPE, TILE_FAR_SELF_EXTEND});
    given.far_factor = draw.of({0.0, 1.0, 2.0, 8.0});
    if (given.far == TILE_FAR_LEAKY_REROPE && draw.one_in(2)) given.far_factor = 1.5;
    r.far = static_cast<tile::FarRotation>(given.far);
    r.far_factor = given.far_factor == 0 ? 1 : given.far_factor;
    c->note("far", given.far), c->note("far_factor", given.far_factor);
    for (const tile_far_rotation other : {0, 4, -1, INT_MIN}) {
      c->refuses("far", &given.far, other, TILE_INVALID_ARGUMENT);
    }
    if (given.far != TILE_FAR_REROPE) {
      for (const double other : {0.5, -1.0, double{NAN}, double{INFINITY}}) {
        c->refuses("far_factor", &given.far_factor, other, TILE_INVALID_ARGUMENT);
      }
    }
    c->refuses<const std::int32_t*>("positions", &given.positions, c->kept_integers(),
                                    TILE_UNSUPPORTED);
    c->refuses("first_position", &given.first_position, std::int64_t{1}, TILE_UNSUPPORTED);
    r.table_positions = p.keys + draw.of({0, 0, 3});
    const auto size = static_cast<std::size_t>(3 * r.table_positions * pairs);
    std::vector<float> cosines(size), sines(size);
    tile_windowed_rotary_tables_args tables{};
    tables.struct_size = sizeof tables, tables.far = given.far, tables.window = a->window;
    tables.attention_factor = given.attention_factor, tables.far_factor = given.far_factor;
    tables.rotary_dim = r.rotary_dim, tables.positions = r.table_positions;
    tables.frequencies = oracle->frequencies.data();
    tables.cos = cosines.data(), tables.sin = sines.data();
    if (tile_windowed_rotary_tables(&tables) != TILE_OK) {
      c->fault(std::string("no tables: ") + tile_last_error());
    }
    cos.assign(cosines.begin(), cosines.end()), sin.assign(sines.begin(), sines.end());
    if (!c->is_empty && p.keys > 0) {
      c->refuses("table_positions", &given.table_positions, p.keys - 1, TILE_INVALID_ARGUMENT);
    }
  } else {
    r.first_position = given.first_position = draw.of({0, 0, 2});
    r.table_positions = r.first_position + p.queries + draw.of({0, 0, 3});
    cos = table_of(r.rotary_dim, r.table_positions, r.attention_factor, std::cos);
    sin = table_of(r.rotary_dim, r.table_positions, r.attention_factor, std::sin);
    if (draw.one_in(3) && p.batch * p.queries > 0) {
      oracle->positions = any_positions(draw, p.batch * p.queries, r.table_positions);
      c->integers("positions", &given.positions, oracle->positions);
    } else if (!c->is_empty) {
      c->refuses("table_positions", &given.table_positions, r.first_position + p.queries - 1,
                 TILE_INVALID_ARGUMENT);
    }
    c->refuses("far", &given.far, std::int32_t{1}, TILE_UNSUPPORTED);
    c->extent("first_position", &given.first_position, kMost);
  }
  given.table_positions = r.table_positions;
  for (const auto& [name, field, values] :
       {std::tuple{"cos", &given.cos, &cos}, {"sin", &given.sin, &sin}}) {
    c->aligned(c->operand(name, field, Role::as_it_is, DType::fp32,
                          {1, is_method ? 3 * r.table_positions : r.table_positions, 1, pairs},
                          {0, 0, pairs}),
               4);
    c->set_values(name, *values);
  }
  c->operand("frequencies", &given.frequencies, Role::as_it_is, DType::fp64, {1, 1, 1, pairs}, {})
      .is_for_reference = true;
  c->set_values("frequencies", oracle->frequencies);
  c->extent("rotary_dim", &given.rotary_dim, kMost);
  c->extent("table_positions", &given.table_positions, kMost);
  c->refuses("rotary_dim", &given.rotary_dim, std::int64_t{1}, TILE_INVALID_ARGUMENT);
  c->refuses("rotary_dim", &given.rotary_dim, p.head_dim + 2, TILE_INVALID_ARGUMENT);
}

// Gradients, each by itself or all in one tensor, whatever the order of its dimensions.
template <class Args>
void gradients(Call* c, Args* a, Kind kind, const tile::Attention& p, std::int64_t chunk) {
  struct Gradient {
    const char* name;
    tile_tensor* tensor;
    std::int64_t length, heads;
  };
  std::vector<Gradient> all{{"dq", &a->dq, p.queries, p.heads},
                            {"dk", &a->dk, p.keys, p.kv_heads},
                            {"dv", &a->dv, p.keys, p.kv_heads}};
  if (kind == Kind::windowed) {
    all.push_back({"dq_far", &a->dq_far, p.queries, p.heads});
    all.push_back({"dk_far", &a->dk_far, p.keys, p.kv_heads});
  }
  std::int64_t heads = 0;
  for (const Gradient& x : all) heads += x.heads;
  const std::int64_t order = p.queries != p.keys ? 0 : c->draw.below(6), s = p.queries;
  const std::int64_t d = p.head_dim, all_rows = p.batch * s * heads;
  c->note("order", order);
  std::size_t block = 0;
  if (order > 0) {
    block = c->block(p.type, all_rows * d, false);
    c->aligned(block, chunk);
  }
  std::int64_t before = 0;  // heads
  for (const Gradient& x : all) {
    const Shape shape{p.batch, x.length, x.heads, d};
    if (order == 0) {
      c->tensor(x.name, &x.tensor->data, x.tensor->strides, Role::output, p.type, shape, chunk);
      continue;
    }
    Strides stride;
    std::int64_t first = 0;
    switch (order) {
      case 1: stride = {s * heads * d, d, heads * d}, first = before * d; break;
      case 2: stride = {heads * d, d, p.batch * heads * d}, first = before * d; break;
      case 3: stride = {s * heads * d, s * d, d}, first = before * s * d; break;
      case 4: stride = {s * heads * d, d, x.heads * d}, first = before * s * d; break;
      default: stride = {d, p.batch * d, heads * p.batch * d}, first = before * p.batch * d;
    }
    before += x.heads;
    if (p.batch == 1 && c->draw.one_in(2)) {
      stride.batch = chunk * c->draw.of({std::int64_t{0}, std::int64_t{1}, INT64_MAX / 8});
    }
    if (stride == Strides{}) stride.batch = chunk;
    Operand& made = c->operand(x.name, &x.tensor->data, Role::output, p.type, shape, stride,
                               static_cast<std::int64_t>(block), shape.count() > 0 ? first : 0);
    x.tensor->strides[0] = stride.batch, x.tensor->strides[1] = stride.head;
    x.tensor->strides[2] = stride.row;
    made.strides = static_cast<std::int64_t>(c->slot_of(x.tensor->strides));
  }
}

template <class Args>
Made attention(Draw& draw, Kind kind, const char* name, Call::Operation<Args> run,
               Call::Operation<Args> refer, Tell<Args>* tell) {
  Args* a = nullptr;
  Made c = make<Args>(&draw, name, run, refer, &a);
  auto oracle = std::make_shared<Oracle>();
  oracle->kind = kind;
  tile::Attention& p = oracle->p;
  attention_sizes(c.get(), a, kind, &p);
  attention_mask(c.get(), a, kind, &p);
  const bool is_rotated = kind == Kind::rotary || kind == Kind::method;
  if (is_rotated)
    rotation(c.get(), a, oracle.get());
  else
    no_rotation(c.get(), &a->rotation);

  // Rows of attention with a rotation begin at multiples of 16 bytes.
  const std::int64_t chunk = kind == Kind::rotary ? 8 : draw.of({1, 8});
  const Shape of_q{p.batch, p.queries, p.heads, p.head_dim};
  const Shape of_k{p.batch, p.keys, p.kv_heads, p.head_dim};
  const auto input = [&](const char* of, tile_tensor* x, const Shape& shape) {
    c->tensor(of, &x->data, x->strides, Role::input, p.type, shape, chunk);
  };
  input("q", &a->q, of_q), input("k", &a->k, of_k), input("v", &a->v, of_k);
  if (kind == Kind::windowed) input("q_far", &a->q_far, of_q), input("k_far", &a->k_far, of_k);
  if (kind != Kind::rotary && p.batch > 0) {
    if (draw.one_in(2)) {
      const std::vector<int> lengths = any_lengths(draw, p.batch, p.queries);
      c->integers("query_lengths", &a->query_lengths, lengths);
      oracle->query_lengths = cut(lengths, p.queries);
    }
    if (draw.one_in(2)) {
      const std::vector<int> lengths = any_lengths(draw, p.batch, p.keys);
      c->integers("key_lengths", &a->key_lengths, lengths);
      oracle->key_lengths = cut(lengths, p.keys);
    }
  } else if (kind == Kind::rotary) {
    c->refuses<const std::int32_t*>("query_lengths", &a->query_lengths, c->kept_integers(),
                                    TILE_UNSUPPORTED);
    c->refuses<const std::int32_t*>("key_lengths", &a->key_lengths, c->kept_integers(),
                                    TILE_UNSUPPORTED);
    c->refuses("keys", &a->keys, p.keys + 1, TILE_UNSUPPORTED);
  }
  const Shape of_lse{p.batch, p.queries, p.heads, 1};
  const Strides lse_strides{p.heads * p.queries, p.queries, 1};
  if constexpr (kIsBackward<Args>) {
    c->tensor("o", &a->o.data, a->o.strides, Role::input, p.type, of_q, chunk, false);
    input("dout", &a->dout, of_q);
    c->operand("lse", &a->lse, Role::input, DType::fp32, of_lse, lse_strides);
    if (!c->is_empty && p.queries > 0) {
      const tile::AttentionExpected forward = oracle->forward(*c);
      c->set_values("o", tile::rounded(forward.o.value, p.type));
      c->set_values("lse", tile::rounded(forward.lse.value, DType::fp32));
    }
    c->nan_may_spread = !oracle->positions.empty();
    gradients(c.get(), a, kind, p, chunk);
    c->expect = [c = c.get(), oracle] {
      tile::AttentionGradients g = oracle->backward(*c);
      std::vector all{g.dq, g.dk, g.dv};
      if (oracle->kind == Kind::windowed) all.push_back(g.far_dq), all.push_back(g.far_dk);
      return all;
    };
  } else {
    c->tensor("o", &a->o.data, a->o.strides, Role::output, p.type, of_q, chunk);
    const bool wants_lse = !draw.one_in(3);
    if (wants_lse) {
      c->operand("lse", &a->lse, Role::output, DType::fp32, of_lse, lse_strides).is_optional = true;
    }
    c->expect = [c = c.get(), oracle, wants_lse] {
      const tile::AttentionExpected e = oracle->forward(*c);
      std::vector all{e.o};
      if (wants_lse) all.push_back(e.lse);
      return all;
    };
  }
  for (const auto& [extent, field] : {std::pair{"batch", &a->batch},
                                      {"heads", &a->heads},
                                      {"queries", &a->queries},
                                      {"keys", &a->keys},
                                      {"head_dim", &a->head_dim}}) {
    c->extent(extent, field, kMost);
  }
  c->note("kv_heads", a->kv_heads);
  c->refuses("head_dim", &a->head_dim, std::int64_t{0}, TILE_INVALID_ARGUMENT);
  for (const std::int64_t other : {std::int64_t{-1}, INT64_MIN, p.heads + 1, 1L << 40}) {
    if (p.heads > 0 || other < 0) {
      c->refuses("kv_heads", &a->kv_heads, other, TILE_INVALID_ARGUMENT);
    }
  }
  c->template has_workspace<Args>(&a->workspace, &a->workspace_bytes, tell);
  c->steps_refuse = {"type", "head_dim", "queries", "q",     "k",     "v",      "o",     "dout",
                     "dq",   "dk",       "dv",      "q_far", "k_far", "dq_far", "dk_far"};
  return c;
}

// ---- All of them ----

using Forward = tile_attention_args;
using Backward = tile_attention_backward_args;

struct Operator {
  const char* name;
  Made (*make)(Draw& draw);
};
#define TILE_ATTENTION(kind, name)                                                             \
  {#name,                                                                                      \
   [](Draw& draw) {                                                                            \
     return attention<Forward>(draw, Kind::kind, #name, name, name##_reference,                \
                               name##_workspace_bytes);                                        \
   }},                                                                                         \
  {                                                                                            \
#name "_backward", [](Draw& draw) {                                                          \
      return attention<Backward>(draw, Kind::kind, #name "_backward", name##_backward,           \
                                 name##_backward_reference, name##_backward_workspace_bytes);    \
    } \
  }
const Operator kOperations[] = {
    {"tile_vector_add", vector_add},
    {"tile_matmul", matmul},
    {"tile_softmax", softmax_forward},
    {"tile_softmax_backward", softmax_backward},
    {"tile_layernorm", layernorm_forward},
    {"tile_layernorm_backward", layernorm_backward},
    {"tile_rotary", rotary},
    {"tile_rotary_tables", rotary_tables},
    {"tile_windowed_rotary_tables", windowed_tables},
    {"tile_embedding", embedding_forward},
    {"tile_embedding_backward", embedding_backward},
    TILE_ATTENTION(plain, tile_attention),
    TILE_ATTENTION(rotary, tile_rotary_attention),
    TILE_ATTENTION(windowed, tile_windowed_attention),
    TILE_ATTENTION(method, tile_windowed_rotary_attention),
};

// The call under way, for a signal that ends the process.
char current[4096];
void tell_call(int signal) {
  static_cast<void>(!write(STDERR_FILENO, current, std::strlen(current)));
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

struct Options {
  std::int64_t seed = 1, first = 0, calls = 1000, show = 0;
  std::string operation = "";
};

int run(const Options& options) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  std::int64_t faults = 0, made = 0;
  std::map<std::string, std::pair<std::int64_t, double>> seconds;
  for (std::int64_t number = options.first; number < options.first + options.calls; ++number) {
    Draw draw(static_cast<std::uint64_t>(options.seed), static_cast<std::uint64_t>(number));
    const Operator& operation = kOperations[draw.below(std::size(kOperations))];
    if (!options.operation.empty() && options.operation != operation.name) continue;
    const std::string begin = std::to_string(options.seed) + ":" + std::to_string(number) + " ";
    std::string line = begin + operation.name;
    const auto tell = [&](const std::string& text) {
      line = begin + text;
      std::snprintf(current, sizeof current, "%s\nthe process ended there\n", line.c_str());
    };
    tell(operation.name);
    alarm(120);
    const auto before = Clock::now();
    const Names wrong = operation.make(draw)->check(tell);
    auto& [count, time] = seconds[operation.name];
    ++count, time += std::chrono::duration<double>(Clock::now() - before).count();
    ++made;
    if (options.show || !wrong.empty()) std::printf("%s\n", line.c_str());
    for (const std::string& each : wrong) std::printf("    %s\n", each.c_str());
    faults += wrong.empty() ? 0 : 1;
  }
  if (options.show) {
    for (const auto& [name, of] : seconds) {
      std::printf("%8.3f ms x %6lld  %s\n", 1e3 * of.second / static_cast<double>(of.first),
                  static_cast<long long>(of.first), name.c_str());
    }
  }
  std::printf("seed %lld: %lld calls, %lld with a fault, %.1f s\n",
              static_cast<long long>(options.seed), static_cast<long long>(made),
              static_cast<long long>(faults),
              std::chrono::duration<double>(Clock::now() - start).count());
  return faults == 0 && made > 0 ? 0 : 1;
}

}  // namespace
}  // namespace fuzz

int main(int count, char** arguments) {
  fuzz::Options options;
  const auto read = [](std::string_view text, std::int64_t* number) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
    return error == std::errc{} && end == text.data() + text.size() && *number >= 0;
  };
  if (const char* seed = std::getenv("TILE_FUZZ_SEED"); seed && !read(seed, &options.seed)) {
    std::fprintf(stderr, "TILE_FUZZ_SEED: '%s' is no number\n", seed);
    return 2;
  }
  for (int i = 1; i < count; ++i) {
    const std::string_view text = arguments[i];
    const std::size_t equals = text.find('=');
    const std::string_view name = text.substr(0, equals);
    const std::string_view value = equals == text.npos ? "1" : text.substr(equals + 1);
    bool is_known = true;
    if (name == "--operation")
      options.operation = value;
    else if (name == "--seed")
      is_known = read(value, &options.seed);
    else if (name == "--first")
      is_known = read(value, &options.first);
    else if (name == "--calls")
      is_known = read(value, &options.calls);
    else if (name == "--show")
      is_known = read(value, &options.show);
    else
      is_known = false;
    if (is_known) continue;
    std::fprintf(stderr, "%s [--seed=N] [--first=N] [--calls=N] [--operation=NAME] [--show]\n",
                 arguments[0]);
    return 2;
  }
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM}) {
    std::signal(signal, fuzz::tell_call);
  }
  return fuzz::run(options);
}
