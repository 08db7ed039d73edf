// Chapter 04 for callers of C.
#include "harness/c/c_interface.hpp"
#include "reference.hpp"

namespace {

using layernorm::BackwardBuffers;
using layernorm::BackwardProblem;
using layernorm::ForwardBuffers;
using layernorm::ForwardProblem;
using tile::Status;
using tile::c::leading_dimension;

const tile::c::RegisterLadder kForward{layernorm::kName, layernorm::kTitle,
                                       tile::infos_of(layernorm::kForwardLadder)};
const tile::c::RegisterLadder kBackward{layernorm::kName, layernorm::kTitle,
                                        tile::infos_of(layernorm::kBackwardLadder)};

Status read_norm(tile_norm given, layernorm::Norm* norm) {
  switch (given) {
    case TILE_LAYER_NORM: *norm = layernorm::Norm::layer; return {};
    case TILE_RMS_NORM: *norm = layernorm::Norm::rms; return {};
    default: break;
  }
  return tile::invalid_argument("norm",
                                std::to_string(given) + " is not one of 0 (layer), 1 (rms)");
}

// What both passes have.
template <class Args, class Problem>
Status read_common(const Args& given, Problem* p) {
  TILE_TRY(tile::c::read_type(given.type, &p->type));
  TILE_TRY(read_norm(given.norm, &p->norm));
  p->rows = given.rows;
  p->cols = given.cols;
  p->ldx = leading_dimension(given.ldx, p->cols);
  return {};
}

// Reads a caller's struct into the library's and into those of the chapter.
Status read(const tile_layernorm_args* args, tile_layernorm_args* given, ForwardProblem* p,
            ForwardBuffers* b) {
  TILE_TRY(tile::c::read_arguments(args, given));
  TILE_TRY(read_common(*given, p));
  p->ldy = leading_dimension(given->ldy, p->cols);
  if (given->eps) p->eps = *given->eps;
  *b = {.x = given->x,
        .gamma = given->gamma,
        .beta = given->beta,
        .y = given->y,
        .mean = static_cast<float*>(given->mean),
        .rstd = static_cast<float*>(given->rstd),
        .workspace = given->workspace,
        .workspace_bytes = given->workspace_bytes};
  return {};
}

Status read(const tile_layernorm_backward_args* args, tile_layernorm_backward_args* given,
            BackwardProblem* p, BackwardBuffers* b) {
  TILE_TRY(tile::c::read_arguments(args, given));
  TILE_TRY(read_common(*given, p));
  p->lddy = leading_dimension(given->lddy, p->cols);
  p->lddx = leading_dimension(given->lddx, p->cols);
  *b = {.x = given->x,
        .gamma = given->gamma,
        .mean = static_cast<const float*>(given->mean),
        .rstd = static_cast<const float*>(given->rstd),
        .dy = given->dy,
        .dx = given->dx,
        .dgamma = given->dgamma,
        .dbeta = given->dbeta,
        .workspace = given->workspace};
  return {};
}

// A vector of doubles; none is a null pointer.
std::vector<double> vector_at(const void* data, std::int64_t count) {
  return data ? tile::c::packed(data, 1, count, count) : std::vector<double>{};
}
void store_vector(const tile::Expected& from, void* data) {
  const std::int64_t count = std::ssize(from.value);
  if (data) tile::c::unpack(from.value, 1, count, count, data);
}

Status compute_reference(const ForwardProblem& p, const ForwardBuffers& b) {
  if (p.rows == 0 || p.cols == 0) return {};
  const layernorm::ForwardReference found =
      layernorm::reference(p, tile::c::packed(b.x, p.rows, p.cols, p.ldx),
                           vector_at(b.gamma, p.cols), vector_at(b.beta, p.cols));
  tile::c::unpack(found.y.value, p.rows, p.cols, p.ldy, b.y);
  store_vector(found.mean, b.mean);
  store_vector(found.rstd, b.rstd);
  return {};
}

Status compute_reference(const BackwardProblem& p, const BackwardBuffers& b) {
  if (p.cols == 0) return {};
  // Without rows there are no matrices, and their pointers may be anything.
  const layernorm::BackwardReference found = layernorm::reference(
      p, tile::c::packed(b.x, p.rows, p.cols, p.ldx),
      vector_at(p.rows > 0 ? b.gamma : nullptr, p.cols), vector_at(b.mean, p.rows),
      vector_at(b.rstd, p.rows), tile::c::packed(b.dy, p.rows, p.cols, p.lddy));
  tile::c::unpack(found.dx.value, p.rows, p.cols, p.lddx, b.dx);
  store_vector(found.dgamma, b.dgamma);
  store_vector(found.dbeta, b.dbeta);
  return {};
}

template <class Ladder, class Args>
tile_status launch(const Ladder& ladder, const Args* args) {
  return tile::c::operation([&]() -> Status {
    Args given;
    typename Ladder::Problem problem{};
    typename Ladder::Buffers buffers;
    TILE_TRY(read(args, &given, &problem, &buffers));
    return tile::c::launch_step(ladder, given.step, given.stream, problem, buffers);
  });
}

template <class Ladder, class Args>
tile_status refer(const Ladder&, const Args* args) {
  return tile::c::operation([&]() -> Status {
    Args given;
    typename Ladder::Problem problem{};
    typename Ladder::Buffers buffers;
    TILE_TRY(read(args, &given, &problem, &buffers));
    TILE_TRY(tile::c::check_reference_type(problem.type));
    TILE_TRY(layernorm::validate_matrices(problem, buffers));
    return compute_reference(problem, buffers);
  });
}

}  // namespace

tile_status tile_layernorm(const tile_layernorm_args* args) {
  return launch(layernorm::kForwardLadder, args);
}

tile_status tile_layernorm_backward(const tile_layernorm_backward_args* args) {
  return launch(layernorm::kBackwardLadder, args);
}

tile_status tile_layernorm_workspace_bytes(const tile_layernorm_args* args, std::int64_t* bytes) {
  return tile::c::guarded([=]() -> Status {
    if (!bytes) return tile::invalid_argument("bytes", "is null");
    *bytes = 0;
    tile_layernorm_args given;
    ForwardProblem p{};
    ForwardBuffers buffers;
    TILE_TRY(read(args, &given, &p, &buffers));
    TILE_TRY(tile::check_requirements(layernorm::kTypes, {}, p.type));
    TILE_TRY(layernorm::validate_sizes(p));
    buffers.workspace_bytes = INT64_MAX;
    using layernorm::ForwardLadder;
    return tile::c::tell_workspace_bytes<ForwardLadder, ForwardProblem, ForwardBuffers>(
        layernorm::kForwardLadder, given.step, p, buffers, bytes);
  });
}

tile_status tile_layernorm_backward_workspace_bytes(const tile_layernorm_backward_args* args,
                                                    int64_t* bytes) {
  return tile::c::guarded([=]() -> Status {
    if (!bytes) return tile::invalid_argument("bytes", "is null");
    *bytes = 0;
    tile_layernorm_backward_args given;
    BackwardProblem p{};
    BackwardBuffers buffers;
    TILE_TRY(read(args, &given, &p, &buffers));
    TILE_TRY(tile::check_requirements(layernorm::kTypes, {}, p.type));
    TILE_TRY(layernorm::validate_sizes(p));
    *bytes = tile::workspace_bytes_of(layernorm::kBackwardLadder.steps.back(), p);
    return {};
  });
}

tile_status tile_layernorm_reference(const tile_layernorm_args* args) {
  return refer(layernorm::kForwardLadder, args);
}

tile_status tile_layernorm_backward_reference(const tile_layernorm_backward_args* args) {
  return refer(layernorm::kBackwardLadder, args);
}
