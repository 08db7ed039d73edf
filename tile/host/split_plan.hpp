// How blocks of the whole card share the rows of a matrix.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tile/host/device.hpp"
#include "tile/host/dtype.hpp"

namespace tile {

inline constexpr int kSplitThreads = 256;  // of a block
inline constexpr int kSplitChunks = 4;     // of 16 bytes, of a thread: a piece of a row has 16 KiB

/// Pieces of rows, and the order in which blocks work on them.
struct SplitPlan {
  std::int64_t rows;
  std::int64_t pieces;  // of a row, which may begin anywhere in its first chunk
  std::int64_t lag;     // rows that are read before a row is read for the second time

  /// Each piece twice. The items of rows before the first and after the last do nothing.
  std::int64_t items() const { return (rows + lag) * 2 * pieces; }
};

// snippet-begin lag
/// A row is read again when as many pieces of later rows have been taken as the card holds blocks:
/// by then, as a rule, its own are finished, and its elements are still in the L2.
inline SplitPlan split_plan(std::int64_t rows, std::int64_t cols, std::size_t element_bytes) {
  constexpr std::int64_t kBlocksOfMultiprocessor = 6;  // at least as many as fit
  const auto width = static_cast<std::int64_t>(16 / element_bytes);
  const std::int64_t piece = kSplitThreads * kSplitChunks * width;
  const std::int64_t pieces = (cols + width - 1 + piece - 1) / piece;
  const std::int64_t blocks = device().multiprocessors * kBlocksOfMultiprocessor;
  return {rows, pieces, std::min(rows - 1, (blocks + pieces - 1) / pieces)};
}
// snippet-end lag

/// Whether rows that clusters could share are too few to fill the card with clusters of 16 blocks.
/// Rows of less than 64 KiB take microseconds, however they are shared.
template <class Problem>
bool is_short_of_rows(const Problem& p, const Device& device) {
  const auto element = static_cast<std::int64_t>(size_bytes(p.type));
  return p.cols >= (64 << 10) / element && p.rows < (device.multiprocessors + 15) / 16;
}

/// Bytes through which blocks exchange values: counters, a value of `value_bytes` for each piece
/// and each row, and 4 more for each row. INT64_MAX if they overflow.
inline std::int64_t split_bytes(std::int64_t rows, std::int64_t cols, std::size_t element_bytes,
                                std::size_t value_bytes) {
  if (rows <= 0 || cols <= 0) return 0;
  const auto width = static_cast<std::int64_t>(16 / element_bytes);
  const std::int64_t values = cols / (kSplitThreads * kSplitChunks * width) + 3;  // rounded up
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(values, static_cast<std::int64_t>(value_bytes), &bytes) ||
      __builtin_add_overflow(bytes, 8, &bytes) || __builtin_mul_overflow(bytes, rows, &bytes) ||
      bytes > INT64_MAX - 64) {
    return INT64_MAX;
  }
  return (bytes + 63) / 16 * 16;
}

}  // namespace tile
