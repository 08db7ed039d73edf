// Chapter 03 for callers of C.
#include "harness/c/c_interface.hpp"
#include "reference.hpp"

namespace {

using softmax::BackwardBuffers;
using softmax::BackwardProblem;
using softmax::ForwardBuffers;
using softmax::ForwardProblem;
using tile::Status;
using tile::c::leading_dimension;

const tile::c::RegisterLadder kForward{softmax::kName, softmax::kTitle,
                                       tile::infos_of(softmax::kForwardLadder)};
const tile::c::RegisterLadder kBackward{softmax::kName, softmax::kTitle,
                                        tile::infos_of(softmax::kBackwardLadder)};

// The fields that the structs of both directions share.
template <class Args, class Problem>
Status read_common(const Args& given, Problem* p) {
  TILE_TRY(tile::c::read_type(given.type, &p->type));
  p->rows = given.rows;
  p->cols = given.cols;
  TILE_TRY(tile::c::read_flag("log", given.log, &p->log));
  TILE_TRY(tile::c::read_flag("causal", given.causal, &p->causal));
  p->queries = given.queries == 0 ? given.rows : given.queries;
  p->scale = given.scale == 0 ? 1 : given.scale;
  return {};
}

// Reads a caller's struct into the library's and into those of the chapter.
Status read(const tile_softmax_args* args, tile_softmax_args* given, ForwardProblem* p,
            ForwardBuffers* buffers) {
  TILE_TRY(tile::c::read_arguments(args, given));
  TILE_TRY(read_common(*given, p));
  p->ldx = leading_dimension(given->ldx, p->cols);
  p->ldy = leading_dimension(given->ldy, p->cols);
  *buffers = {given->x, given->y, given->workspace, given->workspace_bytes};
  return {};
}

Status read(const tile_softmax_backward_args* args, tile_softmax_backward_args* given,
            BackwardProblem* p, BackwardBuffers* buffers) {
  TILE_TRY(tile::c::read_arguments(args, given));
  TILE_TRY(read_common(*given, p));
  p->ldy = leading_dimension(given->ldy, p->cols);
  p->lddy = leading_dimension(given->lddy, p->cols);
  p->lddx = leading_dimension(given->lddx, p->cols);
  *buffers = {given->y, given->dy, given->dx, given->workspace, given->workspace_bytes};
  return {};
}

template <class Ladder, class Args>
tile_status launch(const Ladder& ladder, const Args* args) {
  return tile::c::operation([&]() -> Status {
    Args given;
    typename Ladder::Problem problem{};
    typename Ladder::Buffers buffers{};
    TILE_TRY(read(args, &given, &problem, &buffers));
    return tile::c::launch_step(ladder, given.step, given.stream, problem, buffers);
  });
}

template <class Ladder, class Args>
tile_status tell(const Ladder& ladder, const Args* args, std::int64_t* bytes) {
  return tile::c::guarded([&]() -> Status {
    if (!bytes) return tile::invalid_argument("bytes", "is null");
    *bytes = 0;
    Args given;
    typename Ladder::Problem p{};
    typename Ladder::Buffers buffers{};
    TILE_TRY(read(args, &given, &p, &buffers));
    TILE_TRY(tile::check_requirements(softmax::kTypes, {}, p.type));
    TILE_TRY(softmax::validate_sizes(p));
    buffers.workspace_bytes = INT64_MAX;
    return tile::c::tell_workspace_bytes<Ladder, typename Ladder::Problem,
                                         typename Ladder::Buffers>(ladder, given.step, p, buffers,
                                                                   bytes);
  });
}

void compute(const ForwardProblem& p, const ForwardBuffers& b) {
  const auto y = softmax::reference(p, tile::c::packed(b.x, p.rows, p.cols, p.ldx));
  tile::c::unpack(y.value, p.rows, p.cols, p.ldy, b.y);
}

void compute(const BackwardProblem& p, const BackwardBuffers& b) {
  const auto dx = softmax::reference(p, tile::c::packed(b.y, p.rows, p.cols, p.ldy),
                                     tile::c::packed(b.dy, p.rows, p.cols, p.lddy));
  tile::c::unpack(dx.value, p.rows, p.cols, p.lddx, b.dx);
}

template <class Problem, class Buffers, class Args>
tile_status compute_reference(const Args* args) {
  return tile::c::operation([args]() -> Status {
    Args given;
    Problem p{};
    Buffers buffers{};
    TILE_TRY(read(args, &given, &p, &buffers));
    TILE_TRY(tile::c::check_reference_type(p.type));
    TILE_TRY(softmax::validate_matrices(p, buffers));
    if (!softmax::is_empty(p)) compute(p, buffers);
    return {};
  });
}

}  // namespace

tile_status tile_softmax(const tile_softmax_args* args) {
  return launch(softmax::kForwardLadder, args);
}

tile_status tile_softmax_backward(const tile_softmax_backward_args* args) {
  return launch(softmax::kBackwardLadder, args);
}

tile_status tile_softmax_workspace_bytes(const tile_softmax_args* args, std::int64_t* bytes) {
  return tell(softmax::kForwardLadder, args, bytes);
}

tile_status tile_softmax_backward_workspace_bytes(const tile_softmax_backward_args* args,
                                                  std::int64_t* bytes) {
  return tell(softmax::kBackwardLadder, args, bytes);
}

tile_status tile_softmax_reference(const tile_softmax_args* args) {
  return compute_reference<ForwardProblem, ForwardBuffers>(args);
}

tile_status tile_softmax_backward_reference(const tile_softmax_backward_args* args) {
  return compute_reference<BackwardProblem, BackwardBuffers>(args);
}
