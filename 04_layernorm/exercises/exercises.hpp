// What the exercises of chapter 04 are to define. All arrays are fp32 in device memory.
#pragma once

#include "layernorm.hpp"

namespace layernorm {

/// Rows of numbers that others have cut into parts: of each part how many numbers it has, their
/// mean, and the sum of the squares of their distances from it. A part without numbers has neither:
/// those elements were never written.
struct Parts {
  std::int64_t rows, parts;
  const float* count;    // [rows][parts], integers whose sum over a row is below 2^24
  const float* mean;     // [rows][parts]
  const float* squares;  // [rows][parts]
};

/// 04.1: mean and 1 / sqrt(variance + eps) of each row. Without any numbers both mean and variance
/// are 0.
tile::Status merge_statistics(const Parts& parts, float eps, float* mean, float* rstd);

/// 04.2: dx of RMSNorm from x, gamma (which may be null) and dy. No rstd was saved: it is
/// 1 / sqrt(sum x^2 / n + eps). dx may be x or dy with the same rows.
tile::Status rms_backward(const BackwardProblem& problem, float eps,
                          const BackwardBuffers& buffers);

/// A tensor [batch][channels][positions] without padding. Each group has channels / groups
/// neighbouring channels.
struct Grouped {
  std::int64_t batch, channels, positions, groups;
  float eps = 1e-5f;

  std::int64_t numbers() const { return channels / groups * positions; }  // of a group
};

/// 04.3: GroupNorm, y = gamma (x - mean) rstd + beta with the mean and rstd of each element's
/// group. gamma and beta have an element for each channel.
tile::Status group_norm(const Grouped& shape, const float* x, const float* gamma, const float* beta,
                        float* y);

}  // namespace layernorm
