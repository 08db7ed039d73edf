// LayerNorm and RMSNorm along the rows of a matrix, forward and backward: the problem, the table of
// steps and the reference.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "harness/compare.hpp"
#include "tile/host/step.hpp"

namespace layernorm {

inline constexpr std::string_view kName = "04_layernorm";  // the folder's
inline constexpr std::string_view kTitle =
    "LayerNorm: a variance in one pass, and gradients that sum over all rows";

/// layer: Ba, Kiros and Hinton, "Layer Normalization" (2016), arXiv 1607.06450.
/// rms: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019), arXiv 1910.07467, whose
/// mean is taken to be 0.
enum class Norm { layer, rms };

/// Forward, every row for itself, with n = cols:
///
///     mean = sum x / n  (rms: 0)          rstd = 1 / sqrt(sum (x - mean)^2 / n + eps)
///     xhat = (x - mean) rstd              y = gamma xhat + beta
///
/// Backward, from the gradient dy of a loss with respect to y, and with w = gamma dy:
///
///     dx = rstd (w - sum w / n - xhat sum (w xhat) / n)        (rms: without sum w / n)
///     dgamma = sum over rows of dy xhat                 dbeta = sum over rows of dy
struct Problem {
  tile::DType type;
  std::int64_t rows, cols;
  Norm norm = Norm::layer;
  tile::Direction direction = tile::Direction::forward;
  float eps = 1e-5f;                      // finite and not negative
  std::int64_t ldx = cols, ldy = cols;    // elements from one row of x to the next, and of y
  std::int64_t lddy = cols, lddx = cols;  // likewise of dy and dx
};

/// Device pointers to the first elements, aligned to an element.
///
/// Forward reads x, gamma and beta; writes y, which may be x with the same rows; and writes what
/// backward needs: mean (layer only) and rstd. Backward reads x, gamma, mean, rstd and dy; writes
/// dx, which may be x or dy with the same rows, dgamma and dbeta, and uses the workspace. Otherwise
/// what is written overlaps nothing else.
struct Buffers {
  const void* x = nullptr;
  const void* gamma = nullptr;  // [cols] of the problem's type; null: all ones
  const void* beta = nullptr;   // [cols] likewise; null: all zeros. layer only
  void* y = nullptr;
  float* mean = nullptr;  // [rows]; forward: null if nobody needs it
  float* rstd = nullptr;  // [rows] likewise
  const void* dy = nullptr;
  void* dx = nullptr;
  void* dgamma = nullptr;     // [cols] of the problem's type; null if nobody needs it
  void* dbeta = nullptr;      // [cols] likewise. layer only
  void* workspace = nullptr;  // workspace_bytes(problem), aligned to 16 bytes; holds nothing after
};

/// What every step checks before it launches. The Status names the argument that is wrong.
tile::Status validate(const Problem& problem, const Buffers& buffers);

/// Everything of that but the element type and the workspace. With fp64, mean and rstd are fp64.
tile::Status validate_matrices(const Problem& problem, const Buffers& buffers);

/// The part of that which asks for no pointer: sizes and options.
tile::Status validate_sizes(const Problem& problem);

/// How many partial sums of dgamma, and of dbeta, a step may keep for each column: more than an
/// H200 runs blocks at one time, but no more than 2^22 for all columns.
constexpr std::int64_t most_partial_sums(std::int64_t cols) {
  constexpr std::int64_t kAll = std::int64_t{1} << 22, kMost = 2048;
  const std::int64_t fit = kAll / (cols > 0 ? cols : 1);
  return fit < 1 ? 1 : fit < kMost ? fit : kMost;
}

/// The device memory that backward needs beside its arguments, for any step: fp32 partial sums. At
/// most 32 MiB up to 4 million columns. Forward needs none.
constexpr std::int64_t workspace_bytes(const Problem& p) {
  if (p.direction == tile::Direction::forward || p.cols <= 0) return 0;
  return 2 * most_partial_sums(p.cols) * p.cols * static_cast<std::int64_t>(sizeof(float));
}

// The steps. Each computes one direction, or both, in the given stream (a cudaStream_t).
tile::Status two_pass(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status welford(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status registers(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status atomics(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status two_stage(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status persistent(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status four_rows(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status cluster(const Problem& problem, const Buffers& buffers, void* stream);

/// Which direction a step knows.
inline tile::Status forward_only(const Problem& p) {
  if (p.direction == tile::Direction::forward) return {};
  return tile::unsupported("direction", "this step knows the forward pass only");
}
inline tile::Status backward_only(const Problem& p) {
  if (p.direction == tile::Direction::backward) return {};
  return tile::unsupported("direction", "this step knows the backward pass only");
}
inline tile::Status any(const Problem&) { return {}; }

using Step = tile::Step<Problem, Buffers>;
inline constexpr tile::EnumSet<tile::DType> kTypes{tile::DType::fp32, tile::DType::fp16,
                                                   tile::DType::bf16};
inline constexpr Step kSteps[] = {
    {"two_pass",
     "forward: the mean, then the variance around it",
     kTypes,
     {},
     forward_only,
     two_pass},
    {"welford", "forward: mean and variance in one pass", kTypes, {}, forward_only, welford},
    {"registers",
     "forward: the row stays in registers and is read once",
     kTypes,
     {},
     forward_only,
     registers},
    {"atomics", "backward: every row adds to dgamma and dbeta", kTypes, {}, backward_only, atomics},
    {"two_stage",
     "backward: groups of rows are summed, then the groups, always in the same order",
     kTypes,
     {},
     backward_only,
     two_stage},
    {"persistent",
     "backward: a block walks over its rows and keeps its sums in registers",
     kTypes,
     {tile::Feature::cp_async},
     backward_only,
     persistent},
    {"four_rows",
     "forward: a thread has its columns of four rows",
     kTypes,
     {},
     forward_only,
     four_rows},
    {"cluster",
     "both: a row in the shared memory of several blocks",
     kTypes,
     {tile::Feature::cluster},
     any,
     cluster},
};

/// What forward, and likewise backward, computes in double, and how far a correct kernel may be
/// from it. Inputs hold the values that the kernel sees, without padding; an empty gamma is all
/// ones, an empty beta all zeros.
struct ForwardReference {
  tile::Expected y, mean, rstd;
};
ForwardReference reference(const Problem& problem, std::span<const double> x,
                           std::span<const double> gamma, std::span<const double> beta);

/// `mean` and `rstd` are what the kernel is given: fp32 values, as the forward pass rounded them.
struct BackwardReference {
  tile::Expected dx, dgamma, dbeta;
};
BackwardReference backward_reference(const Problem& problem, std::span<const double> x,
                                     std::span<const double> gamma, std::span<const double> mean,
                                     std::span<const double> rstd, std::span<const double> dy);

}  // namespace layernorm
