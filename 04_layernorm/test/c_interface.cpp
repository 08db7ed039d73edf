// Chapter 04 for callers of C.
#include "harness/c/c_interface.hpp"
#include "layernorm.hpp"

namespace {

using tile::c::leading_dimension;

const tile::c::RegisterChapter kRegistered{layernorm::kName, layernorm::kTitle,
                                           tile::infos_of(layernorm::kSteps)};

// The structs' sizes in their first version.
constexpr std::size_t kFirstBytes =
    offsetof(tile_layernorm_args, stream) + sizeof(tile_layernorm_args::stream);
constexpr std::size_t kFirstBackwardBytes =
    offsetof(tile_layernorm_backward_args, stream) + sizeof(tile_layernorm_backward_args::stream);

tile::Status read_norm(tile_norm given, layernorm::Norm* norm) {
  switch (given) {
    case TILE_LAYER_NORM: *norm = layernorm::Norm::layer; return {};
    case TILE_RMS_NORM: *norm = layernorm::Norm::rms; return {};
    default: break;
  }
  return tile::invalid_argument("norm",
                                std::to_string(given) + " is not one of 0 (layer), 1 (rms)");
}

// What both directions have.
template <class Args>
tile::Status read_problem(const Args& given, layernorm::Problem* p) {
  if (tile::Status s = tile::c::read_type(given.type, &p->type); !s.ok()) return s;
  if (tile::Status s = read_norm(given.norm, &p->norm); !s.ok()) return s;
  p->rows = given.rows;
  p->cols = given.cols;
  p->ldx = leading_dimension(given.ldx, p->cols);
  return {};
}

struct Call {
  layernorm::Problem problem{};
  layernorm::Buffers buffers;
};

tile::Status read(const tile_layernorm_args* args, tile_layernorm_args* given, Call* call) {
  if (tile::Status s = tile::c::read_arguments(args, kFirstBytes, given); !s.ok()) return s;
  layernorm::Problem& p = call->problem;
  if (tile::Status s = read_problem(*given, &p); !s.ok()) return s;
  p.ldy = leading_dimension(given->ldy, p.cols);
  if (given->eps) p.eps = *given->eps;
  layernorm::Buffers& b = call->buffers;
  b.x = given->x;
  b.gamma = given->gamma;
  b.beta = given->beta;
  b.y = given->y;
  b.mean = static_cast<float*>(given->mean);
  b.rstd = static_cast<float*>(given->rstd);
  return {};
}

tile::Status read(const tile_layernorm_backward_args* args, tile_layernorm_backward_args* given,
                  Call* call) {
  if (tile::Status s = tile::c::read_arguments(args, kFirstBackwardBytes, given); !s.ok()) return s;
  layernorm::Problem& p = call->problem;
  p.direction = tile::Direction::backward;
  if (tile::Status s = read_problem(*given, &p); !s.ok()) return s;
  p.lddy = leading_dimension(given->lddy, p.cols);
  p.lddx = leading_dimension(given->lddx, p.cols);
  layernorm::Buffers& b = call->buffers;
  b.x = given->x;
  b.gamma = given->gamma;
  // A backward pass reads them.
  b.mean = static_cast<float*>(const_cast<void*>(given->mean));
  b.rstd = static_cast<float*>(const_cast<void*>(given->rstd));
  b.dy = given->dy;
  b.dx = given->dx;
  b.dgamma = given->dgamma;
  b.dbeta = given->dbeta;
  b.workspace = given->workspace;
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

tile::Status compute_reference(const Call& call) {
  const layernorm::Problem& p = call.problem;
  const layernorm::Buffers& b = call.buffers;
  if (tile::Status s = tile::c::check_reference_type(p.type); !s.ok()) return s;
  if (tile::Status s = layernorm::validate_matrices(p, b); !s.ok()) return s;
  if (p.cols == 0) return {};
  // Without rows there are no matrices, and their pointers may be null.
  const std::vector<double> x = tile::c::packed(b.x, p.rows, p.cols, p.ldx);
  const std::vector<double> gamma = vector_at(p.rows > 0 ? b.gamma : nullptr, p.cols);
  if (p.direction == tile::Direction::forward) {
    if (p.rows == 0) return {};
    const layernorm::ForwardReference found =
        layernorm::reference(p, x, gamma, vector_at(b.beta, p.cols));
    tile::c::unpack(found.y.value, p.rows, p.cols, p.ldy, b.y);
    store_vector(found.mean, b.mean);
    store_vector(found.rstd, b.rstd);
    return {};
  }
  const layernorm::BackwardReference found = layernorm::backward_reference(
      p, x, gamma, vector_at(b.mean, p.rows), vector_at(b.rstd, p.rows),
      tile::c::packed(b.dy, p.rows, p.cols, p.lddy));
  tile::c::unpack(found.dx.value, p.rows, p.cols, p.lddx, b.dx);
  store_vector(found.dgamma, b.dgamma);
  store_vector(found.dbeta, b.dbeta);
  return {};
}

template <class Args>
tile_status launch(const Args* args) {
  return tile::c::operation([args]() -> tile::Status {
    Args given;
    Call call;
    if (tile::Status s = read(args, &given, &call); !s.ok()) return s;
    return tile::c::launch_step(layernorm::kSteps, given.step, call.problem, call.buffers,
                                given.stream);
  });
}

template <class Args>
tile_status refer(const Args* args) {
  return tile::c::operation([args]() -> tile::Status {
    Args given;
    Call call;
    if (tile::Status s = read(args, &given, &call); !s.ok()) return s;
    return compute_reference(call);
  });
}

}  // namespace

tile_status tile_layernorm(const tile_layernorm_args* args) { return launch(args); }

tile_status tile_layernorm_backward(const tile_layernorm_backward_args* args) {
  return launch(args);
}

tile_status tile_layernorm_workspace_bytes(const tile_layernorm_backward_args* args,
                                           int64_t* bytes) {
  return tile::c::guarded([=]() -> tile::Status {
    if (!bytes) return tile::invalid_argument("bytes", "is null");
    *bytes = 0;
    tile_layernorm_backward_args given;
    Call call;
    if (tile::Status s = read(args, &given, &call); !s.ok()) return s;
    const layernorm::Problem& p = call.problem;
    if (tile::Status s = tile::check_requirements(layernorm::kTypes, {}, p.type); !s.ok()) return s;
    if (tile::Status s = layernorm::validate_sizes(p); !s.ok()) return s;
    *bytes = layernorm::workspace_bytes(p);
    return {};
  });
}

tile_status tile_layernorm_reference(const tile_layernorm_args* args) { return refer(args); }

tile_status tile_layernorm_backward_reference(const tile_layernorm_backward_args* args) {
  return refer(args);
}
