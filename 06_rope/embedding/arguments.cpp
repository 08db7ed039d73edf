// What the position embeddings are refused for, and by which words.
#include <string>

#include "embedding/embedding.hpp"
#include "rotary/tables.hpp"

namespace rope {
namespace {

using tile::TensorArgument;

tile::Status check_numbers(const EmbeddingProblem& p) {
  return check_extents({{"batch", p.batch},
                        {"length", p.length},
                        {"dim", p.dim},
                        {"table_positions", p.table_positions},
                        {"first_position", p.first_position}});
}

TensorArgument rows(const EmbeddingProblem& p, const char* name, const void* data,
                    std::int64_t batch, std::int64_t length) {
  const auto bytes = static_cast<std::int64_t>(tile::size_bytes(p.type));
  return {name, data, tile::packed_strides(length, 1, p.dim), batch, length, 1, p.dim, bytes};
}
TensorArgument tokens(const EmbeddingProblem& p, const char* name, const void* data) {
  return rows(p, name, data, p.batch, p.length);
}
TensorArgument table(const EmbeddingProblem& p, const char* name, const void* data) {
  return rows(p, name, data, 1, p.table_positions);
}
TensorArgument positions(const EmbeddingProblem& p, const int* data) {
  return {"positions", data, {p.length, 0, 1}, p.batch, p.length, 1, 1, sizeof *data, true};
}

tile::Status check_chunks(const EmbeddingProblem& p, const std::vector<TensorArgument>& all) {
  if (p.dim * static_cast<std::int64_t>(tile::size_bytes(p.type)) % 16 != 0) {
    return tile::unsupported("dim", std::to_string(p.dim) + " do not fill chunks of 16 bytes");
  }
  return tile::check_row_chunks(p.type, all);
}

}  // namespace

tile::Status validate_tensors(const EmbeddingProblem& p, const EmbeddingBuffers& b) {
  TILE_TRY(check_numbers(p));
  TensorArgument x = tokens(p, "x", b.x), y = tokens(p, "y", b.y);
  x.may_be_null = true, y.may_be = "x";
  TILE_TRY(tile::check_tensors(
      is_empty(p), {x, table(p, "table", b.table), positions(p, b.positions)}, {y}, {}));
  return check_reach(p, b.positions);
}

tile::Status validate_tensors(const EmbeddingProblem& p, const EmbeddingBackwardBuffers& b) {
  TILE_TRY(check_numbers(p));
  TILE_TRY(tile::check_tensors(has_no_table(p), {tokens(p, "dy", b.dy), positions(p, b.positions)},
                               {table(p, "dtable", b.dtable)},
                               {b.workspace, b.workspace ? sums_bytes(p) : 0}));
  return check_reach(p, b.positions);
}

tile::Status validate(const EmbeddingProblem& p, const EmbeddingBuffers& b) {
  TILE_TRY(tile::check_requirements(kTypes, {}, p.type));
  return validate_tensors(p, b);
}

tile::Status validate(const EmbeddingProblem& p, const EmbeddingBackwardBuffers& b) {
  TILE_TRY(tile::check_requirements(kTypes, {}, p.type));
  return validate_tensors(p, b);
}

tile::Status check_chunks(const EmbeddingProblem& p, const EmbeddingBuffers& b) {
  return check_chunks(p, {tokens(p, "x", b.x), table(p, "table", b.table), tokens(p, "y", b.y)});
}

tile::Status check_chunks(const EmbeddingProblem& p, const EmbeddingBackwardBuffers& b) {
  return check_chunks(p, {tokens(p, "dy", b.dy), table(p, "dtable", b.dtable)});
}

}  // namespace rope
