// Calls of chapters 01 to 04.
#include <cmath>

#include "01_vector_add/reference.hpp"
#include "02_matmul/reference.hpp"
#include "03_softmax/reference.hpp"
#include "04_layernorm/reference.hpp"
#include "harness/c/fuzz_operations.hpp"

namespace fuzz {
namespace {

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
  c->refuses("activation", &a->activation, {3, INT64_MIN}, TILE_INVALID_ARGUMENT);
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
    c->refuses("a_scale", &a->a_scale, c->kept(1), TILE_INVALID_ARGUMENT);
  }
  c->flag("transpose_a", &a->transpose_a), c->flag("transpose_b", &a->transpose_b);
  c->has_workspace(&a->workspace, &a->workspace_bytes, tile_matmul_workspace_bytes);
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

// Rows, columns and the activation, of both passes.
template <class Args, class Problem>
void activation_options(Call* c, Args* a, Problem* p) {
  Draw& draw = c->draw;
  p->type = any_type(draw);
  p->rows = draw.of({0, 1, 2, 7, 33, 70}), p->cols = draw.of({0, 1, 2, 5, 8, 31, 64, 129, 300});
  a->rows = p->rows, a->cols = p->cols, a->activation = draw.below(3);
  p->activation = static_cast<matmul::Activation>(a->activation);
  c->note("activation", a->activation);
  c->refuses("activation", &a->activation, {3, INT64_MIN}, TILE_INVALID_ARGUMENT);
  c->type(p->type, {TILE_FP64, TILE_TF32, TILE_E4M3});
}

Made activate(Draw& draw) {
  tile_activate_args* a = nullptr;
  Made c =
      make<tile_activate_args>(&draw, "tile_activate", tile_activate, tile_activate_reference, &a);
  matmul::ActivateProblem p{};
  activation_options(c.get(), a, &p);
  c->is_empty = p.rows == 0 || p.cols == 0;
  const Names extents{"rows", "cols"};
  c->matrix("x", &a->x, Role::input, p.type, p.rows, p.cols, {"ldx", &a->ldx, extents});
  const std::string place = draw.of<const char*>({"", "x"});
  c->matrix("y", &a->y, Role::output, p.type, p.rows, p.cols, {"ldy", &a->ldy, extents, place})
      .may_be = "x";
  c->extent("rows", &a->rows, kAny), c->extent("cols", &a->cols, kAny);
  c->expect = [c = c.get(), p] { return std::vector{matmul::reference(p, c->values("x"))}; };
  return c;
}

Made activate_backward(Draw& draw) {
  using Args = tile_activate_backward_args;
  Args* a = nullptr;
  Made c = make<Args>(&draw, "tile_activate_backward", tile_activate_backward,
                      tile_activate_backward_reference, &a);
  matmul::ActivateBackwardProblem p{};
  activation_options(c.get(), a, &p);
  c->is_empty = p.cols == 0;
  const Names extents{"rows", "cols"};
  const bool reads_x = p.activation != matmul::Activation::none;
  if (reads_x) {
    c->matrix("x", &a->x, Role::input, p.type, p.rows, p.cols, {"ldx", &a->ldx, extents});
  }
  c->matrix("dy", &a->dy, Role::input, p.type, p.rows, p.cols, {"lddy", &a->lddy, extents});
  const bool has_dx = !draw.one_in(4), has_dbias = !draw.one_in(4);
  if (has_dx) {
    const std::string place = draw.of<const char*>({"", "dy"});
    Operand& dx = c->matrix("dx", &a->dx, Role::output, p.type, p.rows, p.cols,
                            {"lddx", &a->lddx, extents, place});
    dx.may_be = "dy", dx.is_optional = true;
  }
  if (has_dbias) {
    Operand& dbias = c->vector("dbias", &a->dbias, Role::output, p.type, p.cols);
    dbias.is_optional = true, dbias.extents = {"cols"};
    c->has_workspace(&a->workspace, &a->workspace_bytes, tile_activate_backward_workspace_bytes);
  }
  const Names even_if_null{"x", "ldx", "dx", "lddx"};
  c->extent("rows", &a->rows, p.rows > 0 ? kAny : 0, even_if_null);
  c->extent("cols", &a->cols, p.rows > 0 ? kAny : 0, even_if_null);
  c->expect = [c = c.get(), p, reads_x, has_dx, has_dbias] {
    std::vector<double> x;
    if (reads_x) x = c->values("x");
    const auto found = matmul::reference(p, x, c->values("dy"));
    std::vector<Expected> all;
    if (has_dx) all.push_back(found.dx);
    if (has_dbias) all.push_back(found.dbias);
    return all;
  };
  return c;
}

// One row or two, if they are long.
std::int64_t any_columns(Draw& draw, std::int64_t* rows) {
  if (!draw.has_twin || draw.one_in(2)) return draw.of({0, 1, 2, 5, 8, 31, 32, 64, 129, 300});
  *rows = std::clamp<std::int64_t>(*rows, 1, 2);
  const std::int64_t large = draw.of({20'000, 40'000});
  return draw.of_twins(large, large - large / 8);
}

// Rows, columns and options of softmax, of both passes.
template <class Args, class Problem>
void softmax_options(Call* c, Args* a, Problem* p,
                     tile_status (*tell)(const Args*, std::int64_t*)) {
  Draw& draw = c->draw;
  p->type = any_type(draw);
  p->queries = draw.of({0, 1, 2, 3, 7}), p->cols = any_columns(draw, &p->queries);
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
  c->refuses("scale", &a->scale, {-1.0f, NAN, INFINITY, 3e38f}, TILE_INVALID_ARGUMENT);
  if (p->causal && p->rows > 0) {
    c->refuses("queries", &a->queries, {p->rows + 1, -1, INT64_MIN, INT64_MAX},
               TILE_INVALID_ARGUMENT);
  }
  c->has_workspace(&a->workspace, &a->workspace_bytes, tell);
  c->type(p->type, {TILE_FP64, TILE_TF32, TILE_E4M3});
  c->flag("log", &a->log), c->flag("causal", &a->causal);
}

Made softmax_forward(Draw& draw) {
  tile_softmax_args* a = nullptr;
  Made c = make<tile_softmax_args>(&draw, "tile_softmax", tile_softmax, tile_softmax_reference, &a);
  softmax::ForwardProblem p{};
  softmax_options(c.get(), a, &p, tile_softmax_workspace_bytes);
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
  softmax_options(c.get(), a, &p, tile_softmax_backward_workspace_bytes);
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
  p->rows = draw.of({0, 1, 2, 3, 7, 20}), p->cols = any_columns(draw, &p->rows);
  p->norm = draw.of({layernorm::Norm::layer, layernorm::Norm::rms});
  a->rows = p->rows, a->cols = p->cols, a->norm = static_cast<tile_norm>(p->norm);
  c->note("norm", a->norm);
  c->refuses("norm", &a->norm, {2, -1, INT_MIN}, TILE_INVALID_ARGUMENT);
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
  c->has_workspace(&a->workspace, &a->workspace_bytes, tile_layernorm_workspace_bytes);
  c->refuses("eps", &a->eps, {c->kept(-1), c->kept(NAN), c->kept(INFINITY)}, TILE_INVALID_ARGUMENT);
  const Names extents{"rows", "cols"};
  c->matrix("x", &a->x, Role::input, p.type, p.rows, p.cols, {"ldx", &a->ldx, extents});
  const bool is_constant = draw.one_in(8);
  if (is_constant && !c->is_empty) {  // a mean that is off in its last digit shows in y
    std::vector<double> x;
    for (std::int64_t row = 0; row < p.rows; ++row) {
      x.insert(x.end(), static_cast<std::size_t>(p.cols), 3e4 * (1 + draw.number() / 4));
    }
    tile::round_to(x, p.type);
    c->set_values("x", x);
  }
  c->note("constant rows", is_constant);
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
    c->refuses("beta", &a->beta, a, TILE_INVALID_ARGUMENT);
    c->refuses("mean", &a->mean, a, TILE_INVALID_ARGUMENT);
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
    c->refuses("mean", &a->mean, a, TILE_INVALID_ARGUMENT);
    c->refuses("dbeta", &a->dbeta, a, TILE_INVALID_ARGUMENT);
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
  c->has_workspace(&a->workspace, nullptr, tile_layernorm_backward_workspace_bytes);
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

}  // namespace

std::vector<Operator> matrices() {
  return {{"tile_vector_add", vector_add},       {"tile_matmul", matmul},
          {"tile_activate", activate},           {"tile_activate_backward", activate_backward},
          {"tile_softmax", softmax_forward},     {"tile_softmax_backward", softmax_backward},
          {"tile_layernorm", layernorm_forward}, {"tile_layernorm_backward", layernorm_backward}};
}

}  // namespace fuzz
