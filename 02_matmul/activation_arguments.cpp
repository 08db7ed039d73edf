// The checks of an activation's arguments and of its backward pass', and the size of the workspace.
#include <algorithm>

#include "activation.hpp"
#include "tile/host/matrix_argument.hpp"
#include "tile/host/tensor_argument.hpp"

namespace matmul {
namespace {

using tile::MatrixArgument, tile::Status;

Status check_extents(std::int64_t rows, std::int64_t cols) {
  if (rows < 0) return tile::invalid_argument("rows", std::to_string(rows) + " is negative");
  if (cols < 0) return tile::invalid_argument("cols", std::to_string(cols) + " is negative");
  return {};
}

std::int64_t element_bytes(tile::DType type) {
  return static_cast<std::int64_t>(tile::size_bytes(type));
}

struct BackwardMatrices {
  MatrixArgument x, dy, dx;
};
BackwardMatrices matrices(const ActivateBackwardProblem& p, const ActivateBackwardBuffers& b) {
  const std::int64_t element = element_bytes(p.type);
  return {{"x", "ldx", b.x, p.rows, p.cols, p.ldx, element},
          {"dy", "lddy", b.dy, p.rows, p.cols, p.lddy, element},
          {"dx", "lddx", b.dx, p.rows, p.cols, p.lddx, element}};
}

}  // namespace

Status validate(const ActivateProblem& p, const ActivateBuffers& b) {
  TILE_TRY(tile::check_requirements(kActivateTypes, {}, p.type));
  return validate_matrices(p, b);
}

Status validate(const ActivateBackwardProblem& p, const ActivateBackwardBuffers& b) {
  TILE_TRY(tile::check_requirements(kActivateTypes, {}, p.type));
  return validate_matrices(p, b);
}

Status validate_matrices(const ActivateProblem& p, const ActivateBuffers& b) {
  TILE_TRY(check_activation(p.activation));
  TILE_TRY(check_extents(p.rows, p.cols));
  const std::int64_t element = element_bytes(p.type);
  const MatrixArgument x{"x", "ldx", b.x, p.rows, p.cols, p.ldx, element},
      y{"y", "ldy", b.y, p.rows, p.cols, p.ldy, element};
  TILE_TRY(tile::check_size(x));
  TILE_TRY(tile::check_size(y));
  if (is_empty(p)) return {};
  TILE_TRY(tile::check_pointer(x));
  TILE_TRY(tile::check_pointer(y));
  return tile::check_apart_or_same(y, x);
}

Status validate_sizes(const ActivateBackwardProblem& p) {
  TILE_TRY(check_activation(p.activation));
  TILE_TRY(check_extents(p.rows, p.cols));
  const auto [x, dy, dx] = matrices(p, {});
  for (const MatrixArgument& each : {x, dy, dx}) TILE_TRY(tile::check_size(each));
  return {};
}

Status validate_matrices(const ActivateBackwardProblem& p, const ActivateBackwardBuffers& b) {
  TILE_TRY(validate_sizes(p));
  if (b.workspace_bytes < 0) return tile::invalid_argument("workspace_bytes", "is negative");
  if (is_empty(p)) return {};
  const auto [x, dy, dx] = matrices(p, b);
  const MatrixArgument dbias{"dbias", "", b.dbias, 1, p.cols, p.cols, element_bytes(p.type)};
  const MatrixArgument workspace{"workspace",       "", b.workspace, 1, b.workspace_bytes,
                                 b.workspace_bytes, 1};
  const bool reads_x = p.activation != Activation::none;
  if (p.rows > 0) {
    if (reads_x) TILE_TRY(tile::check_pointer(x));
    TILE_TRY(tile::check_pointer(dy));
    if (dx.data) {
      TILE_TRY(tile::check_pointer(dx));
      if (reads_x) TILE_TRY(tile::check_apart(dx, x));
      TILE_TRY(tile::check_apart_or_same(dx, dy));
    }
  }
  const auto check_apart_from_others = [&](const MatrixArgument& output) -> Status {
    if (reads_x) TILE_TRY(tile::check_apart(output, x));
    TILE_TRY(tile::check_apart(output, dy));
    return dx.data ? tile::check_apart(output, dx) : Status{};
  };
  if (dbias.data) {
    TILE_TRY(tile::check_pointer(dbias));
    TILE_TRY(check_apart_from_others(dbias));
  }
  if (workspace.empty()) return {};
  TILE_TRY(tile::check_pointer(workspace));
  if (reinterpret_cast<std::uintptr_t>(workspace.data) % 16) {
    return tile::invalid_argument("workspace", "is not aligned to 16 bytes");
  }
  TILE_TRY(check_apart_from_others(workspace));
  return dbias.data ? tile::check_apart(workspace, dbias) : Status{};
}

// A block has 32 threads along a row, with 16 bytes each, and 8 rows at a time, of which it takes
// four at once. The blocks are four rounds for 132 multiprocessors with 4 blocks of 256 threads
// each, but no more than have a row for each thread to begin with.
std::int64_t row_groups(const ActivateBackwardProblem& p) {
  constexpr std::int64_t kBlocks = 4 * 132 * 4, kRows = 32;
  const std::int64_t block_cols = 32 * (16 / element_bytes(p.type));
  const std::int64_t across = (p.cols - 1) / block_cols + 1, most = (p.rows + kRows - 1) / kRows;
  return std::min(std::max<std::int64_t>(kBlocks / across, 1), most);
}

std::int64_t workspace_bytes(const ActivateBackwardProblem& p) {
  if (is_empty(p)) return 0;
  return tile::product({row_groups(p), p.cols, std::int64_t{sizeof(float)}});
}

Status has_workspace(const ActivateBackwardProblem& p, const ActivateBackwardBuffers& b,
                     const tile::Device&) {
  return b.dbias ? tile::check_workspace(workspace_bytes(p), b.workspace_bytes) : Status{};
}

}  // namespace matmul
