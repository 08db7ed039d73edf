// softmax along the rows of a matrix, forward and backward: the problem, the table of steps and the
// reference.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "harness/compare.hpp"
#include "tile/host/step.hpp"

namespace softmax {

inline constexpr std::string_view kName = "03_softmax";  // the folder's
inline constexpr std::string_view kTitle =
    "softmax: many threads agree on a maximum and a sum, and read each row once";

/// Forward, with z = scale x and every row for itself:
///
///     y = exp(z - max z) / sum exp(z - max z)        or, if `log` is set, its logarithm
///
/// Backward, from the forward pass's y and the gradient dy of a loss with respect to it:
///
///     dx = scale y (dy - sum y dy)                   or  scale (dy - exp(y) sum dy)
///
/// A column that is not visible is not read, and has y = 0 (or -infinity) and dx = 0. If nothing in
/// a row has a weight, because no column is visible or all that are hold -infinity, all of its y
/// are 0 (or -infinity), as attention wants it for a query without keys; PyTorch gives NaN. A NaN
/// or +infinity makes its whole visible row NaN, and no other.
struct Problem {
  tile::DType type;
  std::int64_t rows, cols;
  tile::Direction direction = tile::Direction::forward;
  bool log = false;
  /// Row r is query r % queries of a matrix of scores. Query i sees the keys up to its own, the
  /// last query all of them: columns j <= i + cols - queries.
  bool causal = false;
  std::int64_t queries = rows;            // divides rows; used if causal
  float scale = 1;                        // positive and finite
  std::int64_t ldx = cols, ldy = cols;    // elements from one row of x to the next, and of y
  std::int64_t lddy = cols, lddx = cols;  // likewise of dy and dx
};

/// Device pointers to the first elements, aligned to an element. Forward reads x and writes y,
/// which may be x, with the same rows. Backward reads y and dy and writes dx, which may be either
/// of them likewise. Otherwise what is written overlaps nothing that is read.
struct Buffers {
  const void* x = nullptr;
  void* y = nullptr;
  const void* dy = nullptr;
  void* dx = nullptr;
};

/// What every step checks before it launches. The Status names the argument that is wrong.
tile::Status validate(const Problem& problem, const Buffers& buffers);

/// Everything of that but the element type.
tile::Status validate_matrices(const Problem& problem, const Buffers& buffers);

// The steps. Each computes its direction of the problem in the given stream (a cudaStream_t).
tile::Status thread_per_row(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status block_per_row(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status shuffles(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status online(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status registers(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status shared(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status cluster(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status queue(const Problem& problem, const Buffers& buffers, void* stream);

/// What no step refuses for its size.
inline tile::Status any_size(const Problem&) { return {}; }

using Step = tile::Step<Problem, Buffers>;
inline constexpr tile::EnumSet<tile::DType> kTypes{tile::DType::fp32, tile::DType::fp16,
                                                   tile::DType::bf16};
inline constexpr Step kSteps[] = {
    {"thread_per_row", "a thread reads its row three times", kTypes, {}, any_size, thread_per_row},
    {"block_per_row",
     "a block shares a row, and a tree in shared memory adds up",
     kTypes,
     {},
     any_size,
     block_per_row},
    {"shuffles", "lanes exchange registers", kTypes, {}, any_size, shuffles},
    {"online", "maximum and sum in one pass", kTypes, {}, any_size, online},
    {"registers", "the row stays in registers and is read once", kTypes, {}, any_size, registers},
    {"shared",
     "a long row stays in shared memory, and more blocks are under way",
     kTypes,
     {tile::Feature::cp_async},
     any_size,
     shared},
    {"cluster",
     "a row in the shared memory of several blocks",
     kTypes,
     {tile::Feature::cluster},
     any_size,
     cluster},
    {"queue",
     "clusters stay, and take one row after the other",
     kTypes,
     {tile::Feature::cluster},
     any_size,
     queue},
};

/// y or dx in double, as the problem says, and how far a correct kernel may be from it. Forward
/// takes x for `first`, backward y; `dy` is used backward. They hold the values that the kernel
/// sees, without padding.
tile::Expected reference(const Problem& problem, std::span<const double> first,
                         std::span<const double> dy = {});

}  // namespace softmax
