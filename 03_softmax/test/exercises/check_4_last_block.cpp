// Checks exercise 03.4. Not part of the task.
// Shipped: no block has written it
#include <algorithm>

#include "test/exercises/checks.hpp"
#include "tile/host/device.hpp"

using softmax::kInfinity;
using softmax::kPieceCols;
using softmax::Values;
using tile::DType;
using tile::Expected;

namespace {

/// log(sum exp) of each row's first columns, or of those of one piece.
Expected of_columns(const Values& x, std::int64_t rows, std::int64_t cols, std::int64_t first,
                    std::int64_t count) {
  Expected expected{{rows}, {}, {}};
  for (std::int64_t row = 0; row < rows; ++row) {
    double sum = 0;
    for (std::int64_t col = first; col < std::min(cols, first + count); ++col) {
      sum += std::exp(x[static_cast<std::size_t>(row * cols + col)]);
    }
    expected.value.push_back(std::log(sum));
    // A few for each merge: a thread has some of its own, and one of all pieces, if it is alone.
    expected.bound.push_back(4000 * tile::unit_roundoff(DType::fp32));
  }
  return expected;
}

/// The sums of the pieces added up, without a common maximum.
Expected if_not_scaled(const Values& x, std::int64_t rows, std::int64_t cols) {
  return softmax::if_it_were(of_columns(x, rows, cols, 0, cols), [&](std::int64_t row) {
    double sum = 0, greatest = -kInfinity;
    for (std::int64_t first = 0; first < cols; first += kPieceCols) {
      const auto begin = x.begin() + row * cols + first;
      const auto end = begin + std::min<std::int64_t>(kPieceCols, cols - first);
      const double max = *std::max_element(begin, end);
      greatest = std::max(greatest, max);
      for (auto at = begin; at != end; ++at) sum += std::exp(*at - max);
    }
    return greatest + std::log(sum);
  });
}

void check(std::int64_t rows, std::int64_t cols) {
  const std::string text = "rows = " + std::to_string(rows) + ", cols = " + std::to_string(cols);
  INFO(text);
  const std::int64_t pieces = (cols + kPieceCols - 1) / kPieceCols;
  Values x = tile::normal(rows * cols, DType::fp32, 1);
  for (std::int64_t i = 0; i < rows * cols; ++i) {  // maxima of pieces that are far apart
    x[static_cast<std::size_t>(i)] += static_cast<double>(i % cols / kPieceCols % 3);
  }
  tile::round_to(x, DType::fp32);
  const tile::DeviceBuffer in =
      tile::DeviceBuffer::input("x", tile::matrix_layout(DType::fp32, rows, cols, cols), x);
  // Blocks that begin in another order each time: which one is the last must not matter.
  for (const std::uint64_t seed : {0, 1, 2, 3}) {
    tile::shuffle_device(seed);
    const tile::DeviceBuffer arrived =
        tile::DeviceBuffer::in_out("arrived", tile::vector_layout(DType::fp32, rows),
                                   Values(static_cast<std::size_t>(rows), 0.0));
    const tile::DeviceBuffer pairs = tile::DeviceBuffer::output(
        "pairs", tile::vector_layout(DType::fp32, 2 * rows * pieces), tile::Poison::unwritten_nan);
    const Values got =
        softmax::run("result", tile::vector_layout(DType::fp32, rows),
                     tile::Poison::unwritten_finite, {&in, &arrived, &pairs}, [&](void* result) {
                       return softmax::last_block(
                           static_cast<const float*>(in.raw()), static_cast<float*>(result),
                           static_cast<unsigned*>(arrived.raw()), pairs.raw(), rows, cols);
                     });
    tile::shuffle_device(0);
    const Expected right = of_columns(x, rows, cols, 0, cols);
    tile::require_right("result", got, right, [&]() -> std::string {
      if (tile::is_poison(got[0], tile::Poison::unwritten_finite)) {
        return "\nHint: no block has written it. Which value does atomicAdd return to the last "
               "one?";
      }
      const tile::Mistake mistakes[] = {
          {"the sums of the pieces are added up as they are, each relative to a maximum of its own",
           if_not_scaled(x, rows, cols)}};
      if (std::string found = tile::explain_mistake(got, mistakes); !found.empty()) return found;
      if (pieces == 1) return {};
      return "\nHint: one piece was right. Does the block that merges come last, whatever its "
             "piece "
             "is? Does it merge all pieces, with all of its threads?";
    });
  }
}

}  // namespace

TEST_CASE("03.4 the last block merges") {
  check(3, 40);
  check(2, 2 * kPieceCols);
  check(3, 7 * kPieceCols + 1);
  check(1, 300 * kPieceCols - 1);  // more pieces than a block has threads
}
