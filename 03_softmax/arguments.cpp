// What is refused, and by which words.
#include <cmath>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "softmax.hpp"
#include "tile/host/chunks.hpp"
#include "tile/host/matrix_argument.hpp"

namespace softmax {
namespace {

template <class Problem>
tile::Status check_extents(const Problem& p) {
  for (const auto& [name, extent] : {std::pair{"rows", p.rows}, std::pair{"cols", p.cols}}) {
    if (extent < 0) return tile::invalid_argument(name, std::to_string(extent) + " is negative");
  }
  if (!(p.scale > 0) || !std::isfinite(p.scale * std::numbers::log2e_v<float>)) {
    return tile::invalid_argument(
        "scale", std::to_string(p.scale) + " is not positive, or too large for exp(scale x)");
  }
  const bool divides = p.rows == 0 || (p.queries > 0 && p.rows % p.queries == 0);
  if (p.causal && (p.queries < 0 || !divides)) {
    return tile::invalid_argument("queries", std::to_string(p.queries) + " is no part of " +
                                                 std::to_string(p.rows) + " rows");
  }
  return {};
}

/// A workspace overlaps nothing. Its bytes are one row.
template <class Buffers>
tile::MatrixArgument workspace_of(const Buffers& b) {
  return {"workspace", "", b.workspace, 1, b.workspace_bytes, b.workspace_bytes, 1};
}

tile::Status check_matrices(const std::vector<tile::MatrixArgument>& inputs,
                            const tile::MatrixArgument& output,
                            const tile::MatrixArgument& workspace) {
  if (workspace.cols < 0) return tile::invalid_argument("workspace_bytes", "is negative");
  if (output.empty()) return {};
  for (const tile::MatrixArgument& input : inputs) {
    TILE_TRY(tile::check_pointer(input));
  }
  TILE_TRY(tile::check_pointer(output));
  for (const tile::MatrixArgument& input : inputs) {
    TILE_TRY(tile::check_apart_or_same(output, input));
  }
  if (workspace.empty()) return {};
  TILE_TRY(tile::check_pointer(workspace));
  if (reinterpret_cast<std::uintptr_t>(workspace.data) % 16) {
    return tile::invalid_argument("workspace", "is not aligned to 16 bytes");
  }
  for (const tile::MatrixArgument& input : inputs) {
    TILE_TRY(tile::check_apart(workspace, input));
  }
  return tile::check_apart(workspace, output);
}

template <class Problem>
tile::MatrixArgument matrix(const Problem& p, const char* name, const char* ld_name,
                            const void* data, std::int64_t ld) {
  const auto element = static_cast<std::int64_t>(tile::size_bytes(p.type));
  return {name, ld_name, data, p.rows, p.cols, ld, element};
}

/// Two chunks of 16 bytes: rows that begin anywhere then have a whole one.
template <class Problem>
bool has_chunks(const Problem& p) {
  return p.cols * static_cast<std::int64_t>(tile::size_bytes(p.type)) >= 32;
}

}  // namespace

tile::Status validate(const ForwardProblem& p, const ForwardBuffers& buffers) {
  TILE_TRY(tile::check_requirements(kTypes, {}, p.type));
  return validate_matrices(p, buffers);
}

tile::Status validate(const BackwardProblem& p, const BackwardBuffers& buffers) {
  TILE_TRY(tile::check_requirements(kTypes, {}, p.type));
  return validate_matrices(p, buffers);
}

tile::Status validate_sizes(const ForwardProblem& p) {
  TILE_TRY(check_extents(p));
  TILE_TRY(tile::check_size(matrix(p, "x", "ldx", nullptr, p.ldx)));
  return tile::check_size(matrix(p, "y", "ldy", nullptr, p.ldy));
}

tile::Status validate_sizes(const BackwardProblem& p) {
  TILE_TRY(check_extents(p));
  TILE_TRY(tile::check_size(matrix(p, "y", "ldy", nullptr, p.ldy)));
  TILE_TRY(tile::check_size(matrix(p, "dy", "lddy", nullptr, p.lddy)));
  return tile::check_size(matrix(p, "dx", "lddx", nullptr, p.lddx));
}

tile::Status validate_matrices(const ForwardProblem& p, const ForwardBuffers& b) {
  TILE_TRY(validate_sizes(p));
  return check_matrices({matrix(p, "x", "ldx", b.x, p.ldx)}, matrix(p, "y", "ldy", b.y, p.ldy),
                        workspace_of(b));
}

tile::Status validate_matrices(const BackwardProblem& p, const BackwardBuffers& b) {
  TILE_TRY(validate_sizes(p));
  return check_matrices({matrix(p, "y", "ldy", b.y, p.ldy), matrix(p, "dy", "lddy", b.dy, p.lddy)},
                        matrix(p, "dx", "lddx", b.dx, p.lddx), workspace_of(b));
}

tile::Status check_chunks(const ForwardProblem& p, const ForwardBuffers& b) {
  TILE_TRY(tile::check_chunks(p.type, p.cols, "x", b.x, "ldx", p.ldx));
  return tile::check_chunks(p.type, p.cols, "y", b.y, "ldy", p.ldy);
}

tile::Status check_chunks(const BackwardProblem& p, const BackwardBuffers& b) {
  TILE_TRY(tile::check_chunks(p.type, p.cols, "y", b.y, "ldy", p.ldy));
  TILE_TRY(tile::check_chunks(p.type, p.cols, "dy", b.dy, "lddy", p.lddy));
  return tile::check_chunks(p.type, p.cols, "dx", b.dx, "lddx", p.lddx);
}

tile::Status check_alike(const ForwardProblem& p, const ForwardBuffers& b) {
  return tile::check_alike(p.type, b.x, p.ldx, "y", b.y, "ldy", p.ldy);
}

tile::Status check_alike(const BackwardProblem& p, const BackwardBuffers& b) {
  TILE_TRY(tile::check_alike(p.type, b.y, p.ldy, "dy", b.dy, "lddy", p.lddy, "y"));
  return tile::check_alike(p.type, b.y, p.ldy, "dx", b.dx, "lddx", p.lddx, "y");
}

bool begin_alike(const ForwardProblem& p, const ForwardBuffers& b) {
  return has_chunks(p) && check_alike(p, b).ok();
}

bool begin_alike(const BackwardProblem& p, const BackwardBuffers& b) {
  return has_chunks(p) && check_alike(p, b).ok();
}

}  // namespace softmax
