// Chapter 03 for callers of C.
#include "harness/c/c_interface.hpp"
#include "softmax.hpp"

namespace {

using tile::c::leading_dimension;

const tile::c::RegisterChapter kRegistered{softmax::kName, softmax::kTitle,
                                           tile::infos_of(softmax::kSteps)};

// The structs' sizes in their first version.
constexpr std::size_t kFirstBytes =
    offsetof(tile_softmax_args, stream) + sizeof(tile_softmax_args::stream);
constexpr std::size_t kFirstBackwardBytes =
    offsetof(tile_softmax_backward_args, stream) + sizeof(tile_softmax_backward_args::stream);

// What the structs of both directions have in common.
template <class Args>
tile::Status read_common(const Args& given, softmax::Problem* p) {
  if (tile::Status s = tile::c::read_type(given.type, &p->type); !s.ok()) return s;
  p->rows = given.rows;
  p->cols = given.cols;
  if (tile::Status s = tile::c::read_flag("log", given.log, &p->log); !s.ok()) return s;
  if (tile::Status s = tile::c::read_flag("causal", given.causal, &p->causal); !s.ok()) return s;
  p->queries = given.queries == 0 ? given.rows : given.queries;
  p->scale = given.scale == 0 ? 1 : given.scale;
  return {};
}

// A caller's struct, as this library knows it and as the chapter does.
tile::Status read(const tile_softmax_args* args, tile_softmax_args* given, softmax::Problem* p,
                  softmax::Buffers* buffers) {
  if (tile::Status s = tile::c::read_arguments(args, kFirstBytes, given); !s.ok()) return s;
  if (tile::Status s = read_common(*given, p); !s.ok()) return s;
  p->direction = tile::Direction::forward;
  p->ldx = leading_dimension(given->ldx, p->cols);
  p->ldy = leading_dimension(given->ldy, p->cols);
  *buffers = {.x = given->x, .y = given->y};
  return {};
}

tile::Status read(const tile_softmax_backward_args* args, tile_softmax_backward_args* given,
                  softmax::Problem* p, softmax::Buffers* buffers) {
  if (tile::Status s = tile::c::read_arguments(args, kFirstBackwardBytes, given); !s.ok()) return s;
  if (tile::Status s = read_common(*given, p); !s.ok()) return s;
  p->direction = tile::Direction::backward;
  p->ldy = leading_dimension(given->ldy, p->cols);
  p->lddy = leading_dimension(given->lddy, p->cols);
  p->lddx = leading_dimension(given->lddx, p->cols);
  // The backward pass does not write y.
  *buffers = {.y = const_cast<void*>(given->y), .dy = given->dy, .dx = given->dx};
  return {};
}

template <class Args>
tile_status launch(const Args* args) {
  return tile::c::operation([args]() -> tile::Status {
    Args given;
    softmax::Problem problem{};
    softmax::Buffers buffers{};
    if (tile::Status s = read(args, &given, &problem, &buffers); !s.ok()) return s;
    return tile::c::launch_step(softmax::kSteps, given.step, problem, buffers, given.stream);
  });
}

template <class Args>
tile_status compute_reference(const Args* args) {
  return tile::c::operation([args]() -> tile::Status {
    Args given;
    softmax::Problem p{};
    softmax::Buffers buffers{};
    if (tile::Status s = read(args, &given, &p, &buffers); !s.ok()) return s;
    if (tile::Status s = tile::c::check_reference_type(p.type); !s.ok()) return s;
    if (tile::Status s = softmax::validate_matrices(p, buffers); !s.ok()) return s;
    if (p.rows == 0 || p.cols == 0) return {};
    if (p.direction == tile::Direction::forward) {
      const auto y = softmax::reference(p, tile::c::packed(buffers.x, p.rows, p.cols, p.ldx));
      tile::c::unpack(y.value, p.rows, p.cols, p.ldy, buffers.y);
    } else {
      const auto dx = softmax::reference(p, tile::c::packed(buffers.y, p.rows, p.cols, p.ldy),
                                         tile::c::packed(buffers.dy, p.rows, p.cols, p.lddy));
      tile::c::unpack(dx.value, p.rows, p.cols, p.lddx, buffers.dx);
    }
    return {};
  });
}

}  // namespace

tile_status tile_softmax(const tile_softmax_args* args) { return launch(args); }

tile_status tile_softmax_backward(const tile_softmax_backward_args* args) { return launch(args); }

tile_status tile_softmax_reference(const tile_softmax_args* args) {
  return compute_reference(args);
}

tile_status tile_softmax_backward_reference(const tile_softmax_backward_args* args) {
  return compute_reference(args);
}
