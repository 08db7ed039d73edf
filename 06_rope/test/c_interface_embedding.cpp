// Chapter 06's position embeddings for callers of C.
#include "embedding/reference.hpp"
#include "harness/c/c_interface.hpp"

namespace {

using rope::EmbeddingBackwardBuffers;
using rope::EmbeddingBuffers;
using rope::EmbeddingProblem;
using tile::Status;

const tile::c::RegisterLadder kForward{rope::kName, rope::kTitle,
                                       tile::infos_of(rope::kEmbeddingLadder)};
const tile::c::RegisterLadder kBackward{rope::kName, rope::kTitle,
                                        tile::infos_of(rope::kEmbeddingBackwardLadder)};

// What both passes have: a caller's struct, as this library knows it, and its problem.
template <class Args>
Status read(const Args* args, Args* given, EmbeddingProblem* p) {
  TILE_TRY(tile::c::read_arguments(args, given));
  TILE_TRY(tile::c::read_type(given->type, &p->type));
  p->batch = given->batch;
  p->length = given->length;
  p->dim = given->dim;
  p->table_positions = given->table_positions;
  p->first_position = given->first_position;
  return {};
}

EmbeddingBuffers buffers_of(const tile_embedding_args& args) {
  return {args.x, args.table, args.y, args.positions};
}
EmbeddingBackwardBuffers buffers_of(const tile_embedding_backward_args& args) {
  return {args.dy, args.dtable, args.positions, args.workspace};
}

// ---- References: doubles of the host ----

std::vector<double> rows_at(const void* data, std::int64_t rows, std::int64_t dim) {
  return tile::c::packed(data, rows, dim, dim);
}
std::span<const int> ids_at(const EmbeddingProblem& p, const int* ids) {
  return {ids, static_cast<std::size_t>(ids ? p.batch * p.length : 0)};
}

void refer(const EmbeddingProblem& p, const EmbeddingBuffers& b) {
  if (rope::is_empty(p)) return;
  const std::int64_t tokens = p.batch * p.length;
  std::vector<double> x;
  if (b.x) x = rows_at(b.x, tokens, p.dim);
  const tile::Expected y =
      rope::reference(p, x, rows_at(b.table, p.table_positions, p.dim), ids_at(p, b.positions));
  tile::c::unpack(y.value, tokens, p.dim, p.dim, b.y);
}

void refer(const EmbeddingProblem& p, const EmbeddingBackwardBuffers& b) {
  if (rope::has_no_table(p)) return;
  const tile::Expected dtable =
      rope::backward_reference(p, rows_at(b.dy, p.batch * p.length, p.dim), ids_at(p, b.positions));
  tile::c::unpack(dtable.value, p.table_positions, p.dim, p.dim, b.dtable);
}

template <class Ladder, class Args>
tile_status launch(const Ladder& ladder, const Args* args) {
  return tile::c::operation([&]() -> Status {
    Args given;
    EmbeddingProblem p{};
    TILE_TRY(read(args, &given, &p));
    return tile::c::launch_step(ladder, given.step, given.stream, p, buffers_of(given));
  });
}

template <class Args>
tile_status refer(const Args* args) {
  return tile::c::operation([&]() -> Status {
    Args given;
    EmbeddingProblem p{};
    TILE_TRY(read(args, &given, &p));
    TILE_TRY(tile::c::check_reference_type(p.type));
    TILE_TRY(rope::validate_tensors(p, buffers_of(given)));
    refer(p, buffers_of(given));
    return {};
  });
}

}  // namespace

tile_status tile_embedding(const tile_embedding_args* args) {
  return launch(rope::kEmbeddingLadder, args);
}

tile_status tile_embedding_backward(const tile_embedding_backward_args* args) {
  return launch(rope::kEmbeddingBackwardLadder, args);
}

tile_status tile_embedding_reference(const tile_embedding_args* args) { return refer(args); }

tile_status tile_embedding_backward_reference(const tile_embedding_backward_args* args) {
  return refer(args);
}
