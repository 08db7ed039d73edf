// What is refused, and by which words.
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "layernorm.hpp"
#include "tile/host/chunks.hpp"
#include "tile/host/matrix_argument.hpp"

namespace layernorm {
namespace {

struct Argument : tile::MatrixArgument {
  bool written;
  bool required = true;   // otherwise it may be null
  bool in_place = false;  // an output, or an input that it may be with the same rows
};

constexpr bool kRead = false, kWritten = true, kRequired = true, kOptional = false;

/// Makes arguments of what a pass reads and writes.
template <class Problem>
struct ArgumentsOf {
  const Problem& p;
  std::int64_t element = static_cast<std::int64_t>(tile::size_bytes(p.type));
  // A kernel's statistics are fp32. The reference in fp64 has them in fp64.
  std::int64_t statistic = p.type == tile::DType::fp64 ? 8 : 4;

  tile::MatrixArgument matrix(const char* name, const char* ld_name, const void* data,
                              std::int64_t ld) const {
    return {name, ld_name, data, p.rows, p.cols, ld, element};
  }
  tile::MatrixArgument of_cols(const char* name, const void* data, bool used = true) const {
    const std::int64_t cols = used ? p.cols : 0;
    return {name, "cols", data, 1, cols, cols, element};
  }
  tile::MatrixArgument of_rows(const char* name, const void* data) const {
    const std::int64_t rows = p.cols == 0 ? 0 : p.rows;
    return {name, "rows", data, rows, 1, 1, statistic};
  }
};

/// What a pass reads, and then what it writes. Arguments that it does not use are empty: without
/// columns all of them, without rows all but dgamma and dbeta.
std::vector<Argument> arguments_of(const ForwardProblem& p, const ForwardBuffers& b) {
  const ArgumentsOf<ForwardProblem> make{p};
  return {{make.matrix("x", "ldx", b.x, p.ldx), kRead, kRequired, true},
          {make.of_cols("gamma", b.gamma, p.rows > 0), kRead, kOptional},
          {make.of_cols("beta", b.beta, p.rows > 0), kRead, kOptional},
          {make.matrix("y", "ldy", b.y, p.ldy), kWritten, kRequired, true},
          {make.of_rows("mean", b.mean), kWritten, kOptional},
          {make.of_rows("rstd", b.rstd), kWritten, kOptional}};
}
std::vector<Argument> arguments_of(const BackwardProblem& p, const BackwardBuffers& b) {
  const ArgumentsOf<BackwardProblem> make{p};
  return {{make.matrix("x", "ldx", b.x, p.ldx), kRead, kRequired, true},
          {make.of_cols("gamma", b.gamma, p.rows > 0), kRead, kOptional},
          {make.of_rows("mean", b.mean), kRead, p.norm == Norm::layer},
          {make.of_rows("rstd", b.rstd), kRead},
          {make.matrix("dy", "lddy", b.dy, p.lddy), kRead, kRequired, true},
          {make.matrix("dx", "lddx", b.dx, p.lddx), kWritten, kRequired, true},
          {make.of_cols("dgamma", b.dgamma), kWritten, kOptional},
          {make.of_cols("dbeta", b.dbeta), kWritten, kOptional}};
}

/// Whether the output is the input, row by row: a lone row has no distance to the next.
bool same_rows(const Argument& output, const Argument& input) {
  return output.in_place && input.in_place && output.data == input.data &&
         (output.rows == 1 || output.ld == input.ld);
}

/// An output overlaps no argument that is listed before it.
tile::Status check_overlaps(const std::vector<Argument>& arguments) {
  for (auto output = arguments.begin(); output != arguments.end(); ++output) {
    if (!output->written) continue;
    for (auto other = arguments.begin(); other != output; ++other) {
      if (same_rows(*output, *other)) continue;
      TILE_TRY(tile::check_apart(*output, *other));
    }
  }
  return {};
}

/// A workspace of so many bytes overlaps nothing.
template <class Problem, class Buffers>
tile::Status check_workspace(const Problem& p, const Buffers& buffers, std::int64_t bytes) {
  const void* data = buffers.workspace;
  if (!data) return tile::invalid_argument("workspace", "is null");
  if (reinterpret_cast<std::uintptr_t>(data) % 16) {
    return tile::invalid_argument("workspace", "is not aligned to 16 bytes");
  }
  const tile::MatrixArgument workspace{"workspace", "", data, 1, bytes, bytes, 1};
  for (const Argument& argument : arguments_of(p, buffers)) {
    if (argument.empty() || !argument.data) continue;
    TILE_TRY(tile::check_apart(workspace, argument));
  }
  return {};
}

template <class Problem>
tile::Status check_sizes(const Problem& p, const std::vector<Argument>& arguments) {
  if (p.norm != Norm::layer && p.norm != Norm::rms) {
    return tile::invalid_argument(
        "norm", std::to_string(static_cast<int>(p.norm)) + " is neither layer nor rms");
  }
  for (const auto& [name, extent] : {std::pair{"rows", p.rows}, std::pair{"cols", p.cols}}) {
    if (extent < 0) return tile::invalid_argument(name, std::to_string(extent) + " is negative");
  }
  for (const Argument& argument : arguments) {
    TILE_TRY(tile::check_size(argument));
  }
  return {};
}

tile::Status check_pointers(std::vector<Argument> arguments) {
  std::erase_if(arguments, [](const Argument& x) { return x.empty() || (!x.data && !x.required); });
  for (const Argument& argument : arguments) {
    TILE_TRY(tile::check_pointer(argument));
  }
  return check_overlaps(arguments);
}

tile::Status check_absent(const char* name, const void* data) {
  if (!data) return {};
  return tile::invalid_argument(name, "is given, and RMSNorm has none");
}

}  // namespace

tile::Status validate_matrices(const ForwardProblem& p, const ForwardBuffers& b) {
  TILE_TRY(validate_sizes(p));
  if (p.norm == Norm::rms) {
    TILE_TRY(check_absent("beta", b.beta));
    TILE_TRY(check_absent("mean", b.mean));
  }
  return check_pointers(arguments_of(p, b));
}

tile::Status validate_matrices(const BackwardProblem& p, const BackwardBuffers& b) {
  TILE_TRY(validate_sizes(p));
  if (p.norm == Norm::rms) {
    TILE_TRY(check_absent("mean", b.mean));
    TILE_TRY(check_absent("dbeta", b.dbeta));
  }
  return check_pointers(arguments_of(p, b));
}

tile::Status validate_sizes(const ForwardProblem& p) {
  TILE_TRY(check_sizes(p, arguments_of(p, {})));
  if (std::isfinite(p.eps) && p.eps >= 0) return {};
  return tile::invalid_argument("eps", std::to_string(p.eps) + " is negative or not finite");
}

tile::Status validate_sizes(const BackwardProblem& p) {
  return check_sizes(p, arguments_of(p, {}));
}

tile::Status validate(const ForwardProblem& p, const ForwardBuffers& b) {
  TILE_TRY(tile::check_requirements(kTypes, {}, p.type));
  TILE_TRY(validate_matrices(p, b));
  if (b.workspace_bytes < 0) return tile::invalid_argument("workspace_bytes", "is negative");
  return is_empty(p) || b.workspace_bytes == 0 ? tile::Status{}
                                               : check_workspace(p, b, b.workspace_bytes);
}

tile::Status validate(const BackwardProblem& p, const BackwardBuffers& b) {
  TILE_TRY(tile::check_requirements(kTypes, {}, p.type));
  TILE_TRY(validate_matrices(p, b));
  return p.cols == 0 ? tile::Status{} : check_workspace(p, b, workspace_bytes(p));
}

// A row of gamma or beta has no distance to the next: 0 is a multiple of everything, and a null
// pointer is aligned.
tile::Status check_chunks(const ForwardProblem& p, const ForwardBuffers& b) {
  TILE_TRY(tile::check_chunks(p.type, p.cols, "x", b.x, "ldx", p.ldx));
  TILE_TRY(tile::check_chunks(p.type, p.cols, "y", b.y, "ldy", p.ldy));
  TILE_TRY(tile::check_chunks(p.type, p.cols, "gamma", b.gamma, "", 0));
  return tile::check_chunks(p.type, p.cols, "beta", b.beta, "", 0);
}

tile::Status check_chunks(const BackwardProblem& p, const BackwardBuffers& b) {
  TILE_TRY(tile::check_chunks(p.type, p.cols, "x", b.x, "ldx", p.ldx));
  TILE_TRY(tile::check_chunks(p.type, p.cols, "dy", b.dy, "lddy", p.lddy));
  TILE_TRY(tile::check_chunks(p.type, p.cols, "dx", b.dx, "lddx", p.lddx));
  return tile::check_chunks(p.type, p.cols, "gamma", b.gamma, "", 0);
}

tile::Status check_rows_begin_alike(const BackwardProblem& p, const BackwardBuffers& b) {
  if (check_chunks(p, b).ok()) return {};
  if (reinterpret_cast<std::uintptr_t>(b.x) % 16 != 0) {
    return tile::unsupported("x", "is not aligned to 16 bytes");
  }
  const auto width = static_cast<std::int64_t>(16 / tile::size_bytes(p.type));
  for (const auto& [name, ld] : {std::pair{"ldx", p.ldx}, {"lddy", p.lddy}}) {
    if (ld == p.cols || ld % width == 0) continue;
    return tile::unsupported(name, "rows begin within 16 bytes that are not all of rows");
  }
  TILE_TRY(tile::check_alike(p.type, b.x, p.ldx, "dy", b.dy, "lddy", p.lddy));
  TILE_TRY(tile::check_alike(p.type, b.x, p.ldx, "dx", b.dx, "lddx", p.lddx));
  if (!b.dx || (b.dx != b.x && b.dx != b.dy)) return {};
  return tile::unsupported("dx", "is an input, in which neighbours of a row are read");
}

}  // namespace layernorm
