// Chapter 02 for callers of C.
#include "harness/c/c_interface.hpp"
#include "reference.hpp"

namespace {

using tile::c::leading_dimension, tile::c::packed;

const tile::c::RegisterLadder kRegistered{matmul::kName, matmul::kTitle,
                                          tile::infos_of(matmul::kLadder)};

tile::Status read_activation(tile_activation given, matmul::Activation* activation) {
  switch (given) {
    case TILE_NO_ACTIVATION: *activation = matmul::Activation::none; return {};
    case TILE_RELU: *activation = matmul::Activation::relu; return {};
    case TILE_GELU: *activation = matmul::Activation::gelu; return {};
    default: break;
  }
  return tile::invalid_argument(
      "activation", std::to_string(given) + " is not one of 0 (none), 1 (relu), 2 (gelu)");
}

// The caller's struct, as this library knows it and as the chapter does.
tile::Status read(const tile_matmul_args* args, tile_matmul_args* given, matmul::Problem* problem,
                  matmul::Buffers* buffers) {
  TILE_TRY(tile::c::read_arguments(args, given));
  matmul::Problem p{};
  TILE_TRY(tile::c::read_type(given->type, &p.type));
  p.m = given->m;
  p.n = given->n;
  p.k = given->k;
  TILE_TRY(tile::c::read_flag("transpose_a", given->transpose_a, &p.transpose_a));
  TILE_TRY(tile::c::read_flag("transpose_b", given->transpose_b, &p.transpose_b));
  p.lda = leading_dimension(given->lda, p.transpose_a ? p.m : p.k);
  p.ldb = leading_dimension(given->ldb, p.transpose_b ? p.k : p.n);
  p.ldc = leading_dimension(given->ldc, p.n);
  p.alpha = given->alpha ? *given->alpha : 1;
  p.beta = given->beta ? *given->beta : 0;
  TILE_TRY(read_activation(given->activation, &p.activation));
  *problem = p;
  *buffers = {given->a,       given->b,       given->c,         given->bias,
              given->a_scale, given->b_scale, given->workspace, given->workspace_bytes};
  return {};
}

tile::Status compute_reference(const matmul::Problem& p, const matmul::Buffers& buffers) {
  TILE_TRY(matmul::validate_matrices(p, buffers));
  if (p.m == 0 || p.n == 0) return {};
  // What the product does not read may be null.
  std::vector<double> a, b, c;
  if (p.alpha != 0 && p.k > 0) {
    a = packed(buffers.a, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.lda);
    b = packed(buffers.b, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.ldb);
  }
  if (p.beta != 0) c = packed(buffers.c, p.m, p.n, p.ldc);
  std::span<const double> bias;
  if (buffers.bias) {
    bias = {static_cast<const double*>(buffers.bias), static_cast<std::size_t>(p.n)};
  }
  const tile::Expected product = matmul::reference(p, a, b, c, true, bias);
  tile::c::unpack(product.value, p.m, p.n, p.ldc, buffers.c);
  return {};
}

// The same of an activation and of its backward pass.
tile::Status read(const tile_activate_args* args, tile_activate_args* given,
                  matmul::ActivateProblem* p, matmul::ActivateBuffers* buffers) {
  TILE_TRY(tile::c::read_arguments(args, given));
  TILE_TRY(tile::c::read_type(given->type, &p->type));
  TILE_TRY(read_activation(given->activation, &p->activation));
  p->rows = given->rows, p->cols = given->cols;
  p->ldx = leading_dimension(given->ldx, p->cols);
  p->ldy = leading_dimension(given->ldy, p->cols);
  *buffers = {given->x, given->y};
  return {};
}

tile::Status read(const tile_activate_backward_args* args, tile_activate_backward_args* given,
                  matmul::ActivateBackwardProblem* p, matmul::ActivateBackwardBuffers* buffers) {
  TILE_TRY(tile::c::read_arguments(args, given));
  TILE_TRY(tile::c::read_type(given->type, &p->type));
  TILE_TRY(read_activation(given->activation, &p->activation));
  p->rows = given->rows, p->cols = given->cols;
  p->ldx = leading_dimension(given->ldx, p->cols);
  p->lddy = leading_dimension(given->lddy, p->cols);
  p->lddx = leading_dimension(given->lddx, p->cols);
  *buffers = {given->x,     given->dy,        given->dx,
              given->dbias, given->workspace, given->workspace_bytes};
  return {};
}

tile::Status compute_reference(const matmul::ActivateProblem& p, const matmul::ActivateBuffers& b) {
  TILE_TRY(matmul::validate_matrices(p, b));
  if (is_empty(p)) return {};
  const tile::Expected y = matmul::reference(p, packed(b.x, p.rows, p.cols, p.ldx));
  tile::c::unpack(y.value, p.rows, p.cols, p.ldy, b.y);
  return {};
}

tile::Status compute_reference(const matmul::ActivateBackwardProblem& p,
                               const matmul::ActivateBackwardBuffers& b) {
  TILE_TRY(matmul::validate_matrices(p, b));
  if (is_empty(p)) return {};
  std::vector<double> x;
  if (p.activation != matmul::Activation::none) x = packed(b.x, p.rows, p.cols, p.ldx);
  const auto found = matmul::reference(p, x, packed(b.dy, p.rows, p.cols, p.lddy));
  if (b.dx) tile::c::unpack(found.dx.value, p.rows, p.cols, p.lddx, b.dx);
  if (b.dbias) tile::c::unpack(found.dbias.value, 1, p.cols, p.cols, b.dbias);
  return {};
}

template <class Ladder, class Args>
tile_status launch(const Ladder& ladder, const Args* args) {
  return tile::c::operation([&]() -> tile::Status {
    Args given;
    typename Ladder::Problem problem{};
    typename Ladder::Buffers buffers{};
    TILE_TRY(read(args, &given, &problem, &buffers));
    return tile::c::launch_step(ladder, given.step, given.stream, problem, buffers);
  });
}

template <class Ladder, class Args>
tile_status refer(const Ladder&, const Args* args) {
  return tile::c::operation([&]() -> tile::Status {
    Args given;
    typename Ladder::Problem problem{};
    typename Ladder::Buffers buffers{};
    TILE_TRY(read(args, &given, &problem, &buffers));
    TILE_TRY(tile::c::check_reference_type(problem.type));
    return compute_reference(problem, buffers);
  });
}

}  // namespace

tile_status tile_matmul(const tile_matmul_args* args) { return launch(matmul::kLadder, args); }

tile_status tile_matmul_workspace_bytes(const tile_matmul_args* args, std::int64_t* bytes) {
  return tile::c::guarded([args, bytes]() -> tile::Status {
    tile_matmul_args given;
    matmul::Problem problem{};
    matmul::Buffers buffers{};
    if (!bytes) return tile::invalid_argument("bytes", "is null");
    *bytes = 0;
    TILE_TRY(read(args, &given, &problem, &buffers));
    TILE_TRY(tile::check_requirements(matmul::kTypes, {}, problem.type));
    TILE_TRY(matmul::validate_sizes(problem));
    tile::Choice choice;
    TILE_TRY(tile::c::find_step(matmul::kLadder, given.step, &choice.step));
    if (matmul::is_empty(problem)) return {};
    buffers.workspace_bytes = INT64_MAX;
    TILE_TRY((tile::c::choose<matmul::Ladder, matmul::Problem, matmul::Buffers>(
        matmul::kLadder, given.step, choice.step, problem, buffers, &choice)));
    *bytes = workspace_bytes_of(matmul::kSteps[choice.step], problem);
    return {};
  });
}

tile_status tile_matmul_reference(const tile_matmul_args* args) {
  return refer(matmul::kLadder, args);
}

tile_status tile_activate(const tile_activate_args* args) {
  return launch(matmul::kActivateLadder, args);
}

tile_status tile_activate_backward(const tile_activate_backward_args* args) {
  return launch(matmul::kActivateBackwardLadder, args);
}

tile_status tile_activate_backward_workspace_bytes(const tile_activate_backward_args* args,
                                                   std::int64_t* bytes) {
  return tile::c::guarded([=]() -> tile::Status {
    if (!bytes) return tile::invalid_argument("bytes", "is null");
    *bytes = 0;
    tile_activate_backward_args given;
    matmul::ActivateBackwardProblem problem{};
    matmul::ActivateBackwardBuffers buffers{};
    TILE_TRY(read(args, &given, &problem, &buffers));
    TILE_TRY(tile::check_requirements(matmul::kActivateTypes, {}, problem.type));
    TILE_TRY(matmul::validate_sizes(problem));
    buffers.workspace_bytes = INT64_MAX;
    using matmul::ActivateBackwardBuffers, matmul::ActivateBackwardProblem;
    return tile::c::tell_workspace_bytes<matmul::ActivateBackwardLadder, ActivateBackwardProblem,
                                         ActivateBackwardBuffers>(
        matmul::kActivateBackwardLadder, given.step, problem, buffers, bytes);
  });
}

tile_status tile_activate_reference(const tile_activate_args* args) {
  return refer(matmul::kActivateLadder, args);
}

tile_status tile_activate_backward_reference(const tile_activate_backward_args* args) {
  return refer(matmul::kActivateBackwardLadder, args);
}
