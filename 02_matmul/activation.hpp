// y = activation(x) as a call of its own, and its backward pass, for training. They are no rungs of
// the chapter's ladder: each has one step, for callers of the C interface and for tests.
#pragma once

#include "matmul.hpp"

namespace matmul {

/// y = activation(x), element by element.
struct ActivateProblem {
  tile::DType type;
  std::int64_t rows, cols;
  std::int64_t ldx = cols, ldy = cols;  // elements from one row to the next
  Activation activation = Activation::none;
};

/// Device pointers to the first elements, aligned to an element.
struct ActivateBuffers {
  const void* x;
  void* y;  // may be x, with the same rows, and does not overlap it otherwise
};

/// From dy, the gradient of a loss with respect to y = activation(x + bias):
///     dx = dy activation'(x)      dbias[j] = sum over rows of dx[i][j]
/// where x has the bias in it. relu'(0) is 0; gelu' is 0 at -infinity and 1 at infinity. The sum is
/// that of dx before it is rounded, in an order that depends on rows, cols and the type alone.
struct ActivateBackwardProblem {
  tile::DType type;
  std::int64_t rows, cols;
  std::int64_t ldx = cols, lddy = cols, lddx = cols;
  Activation activation = Activation::none;
};

struct ActivateBackwardBuffers {
  const void* x;  // not read without an activation; for relu y has the same signs, and will do
  const void* dy;
  void* dx;                   // may be dy, with the same rows; null: not wanted
  void* dbias;                // cols elements; null: not wanted
  void* workspace = nullptr;  // for dbias, aligned to 16 bytes; may hold anything
  std::int64_t workspace_bytes = 0;
};

/// What is checked before a launch. The Status names the argument that is wrong.
tile::Status validate(const ActivateProblem& problem, const ActivateBuffers& buffers);
tile::Status validate(const ActivateBackwardProblem& problem,
                      const ActivateBackwardBuffers& buffers);
/// The same for matrices of any type, on the host too.
tile::Status validate_matrices(const ActivateProblem& problem, const ActivateBuffers& buffers);
tile::Status validate_matrices(const ActivateBackwardProblem& problem,
                               const ActivateBackwardBuffers& buffers);
/// Of these checks, those of the sizes and options alone.
tile::Status validate_sizes(const ActivateBackwardProblem& problem);

inline bool is_empty(const ActivateProblem& p) { return p.rows == 0 || p.cols == 0; }
/// Without rows dbias is 0.
inline bool is_empty(const ActivateBackwardProblem& p) { return p.cols == 0; }

/// Among how many groups of rows the blocks of the backward pass divide the sums of columns.
std::int64_t row_groups(const ActivateBackwardProblem& problem);
/// The bytes of their sums: about 2 MiB, or one sum for each column if those are more.
std::int64_t workspace_bytes(const ActivateBackwardProblem& problem);
tile::Status has_workspace(const ActivateBackwardProblem& problem,
                           const ActivateBackwardBuffers& buffers, const tile::Device&);

tile::Status activate(const ActivateProblem& problem, const ActivateBuffers& buffers, void* stream);
tile::Status activate_backward(const ActivateBackwardProblem& problem,
                               const ActivateBackwardBuffers& buffers, void* stream);

inline constexpr tile::EnumSet<tile::DType> kActivateTypes{tile::DType::fp32, tile::DType::fp16,
                                                           tile::DType::bf16};
using ActivateLadder = tile::Ladder<ActivateProblem, ActivateBuffers>;
using ActivateBackwardLadder = tile::Ladder<ActivateBackwardProblem, ActivateBackwardBuffers>;

inline constexpr ActivateLadder::Step kActivateSteps[] = {{.name = "activate",
                                                           .idea = "16 bytes to a thread",
                                                           .types = kActivateTypes,
                                                           .needs = {},
                                                           .takes = nullptr,
                                                           .otherwise = "",
                                                           .shows = {},
                                                           .launch = activate}};
inline constexpr ActivateBackwardLadder::Step kActivateBackwardSteps[] = {
    {.name = "activate_backward",
     .idea = "dx and sums of its columns in one pass",
     .types = kActivateTypes,
     .needs = {},
     .takes = has_workspace,
     .otherwise = "",
     .shows = {},
     .launch = activate_backward,
     .workspace_bytes = workspace_bytes}};
inline constexpr ActivateLadder kActivateLadder{.name = "activate",
                                                .kernels = "matmul_",
                                                .steps = kActivateSteps,
                                                .validate = validate,
                                                .is_empty = is_empty};
inline constexpr ActivateBackwardLadder kActivateBackwardLadder{.name = "activate backward",
                                                                .kernels = "matmul_",
                                                                .steps = kActivateBackwardSteps,
                                                                .validate = validate,
                                                                .is_empty = is_empty};

}  // namespace matmul
