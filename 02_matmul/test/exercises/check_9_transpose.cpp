// Checks exercise 02.9. Not part of the task.
// Shipped: out is a copy of in
#include <array>
#include <cstdio>

#include "test/exercises/checks.hpp"
#include "tile/host/memory_requests.hpp"

using tile::DeviceBuffer;
using tile::DType;
using tile::Poison;

namespace {

constexpr std::int64_t kTile = 32, kSectorBytes = 32;

// Where the first wrong element lies tells the common mistakes apart.
std::string hint(const tile::Comparison& result, bool is_copy) {
  if (result.ok() || result.first.empty()) return {};
  if (is_copy) return "\nHint: out is a copy of in";
  const std::int64_t row = result.first[0], col = result.first[1];
  if (row >= kTile || col >= kTile) {
    return "\nHint: the first tile is right. A block's tile changes places too: its first row in "
           "out is its first column in in";
  }
  return "\nHint: out's element (i, j) is in's element (j, i), and a row of out has as many "
         "elements "
         "as in has rows";
}

void transpose_and_compare(std::int64_t rows, std::int64_t cols, Poison poison) {
  CAPTURE(rows);
  CAPTURE(cols);
  const auto values = tile::normal(rows * cols, DType::fp32, 1);
  const auto in =
      DeviceBuffer::input("in", tile::matrix_layout(DType::fp32, rows, cols, cols), values);
  const auto out =
      DeviceBuffer::output("out", tile::matrix_layout(DType::fp32, cols, rows, rows), poison);
  tile::run_answer(
      [&] {
        return matmul::transpose(static_cast<const float*>(in.raw()),
                                 static_cast<float*>(out.raw()), rows, cols);
      },
      std::array{&in, &out});
  tile::Expected expected{{cols, rows}, {}, std::vector<double>(values.size(), 0.0)};
  for (std::int64_t i = 0; i < cols; ++i) {
    for (std::int64_t j = 0; j < rows; ++j) {
      expected.value.push_back(values[static_cast<std::size_t>(j * cols + i)]);
    }
  }
  const std::vector<double> got = out.download();
  const tile::Comparison result = tile::compare("out", got, expected);
  REQUIRE_MESSAGE(result.ok(), result.message, hint(result, got == values));
}

bool is_shared(const tile::MemoryRequests& line) { return line.access.starts_with("shared"); }

std::string text_of(const tile::MemoryRequests& line) {
  const auto each = [&](std::int64_t sum) {
    return static_cast<double>(sum) / static_cast<double>(line.requests);
  };
  std::array<char, 100> text{};
  std::snprintf(text.data(), text.size(), "%.2f %s a request, %.2f will do", each(line.cost),
                is_shared(line) ? "wavefronts" : "sectors", each(line.least));
  return "\n  " + line.access + ", " + line.place + ":\n    " + text.data();
}

}  // namespace

TEST_CASE("02.9 a transpose that costs what a copy costs") {
  for (const Poison poison : tile::kOutputPoisons) {
    for (const auto& [rows, cols] : {std::pair{1, 1}, {32, 32}, {7, 31}, {33, 64}, {40, 100}}) {
      transpose_and_compare(rows, cols, poison);
    }
  }
  // What each line costs, where the device counts it: on whole tiles.
  if (!tile::count_memory_requests()) return;
  constexpr std::int64_t kRows = 64, kCols = 96;
  transpose_and_compare(kRows, kCols, Poison::unwritten_nan);
  std::string dear;
  std::int64_t sectors = 0;
  for (const tile::MemoryRequests& line : tile::memory_requests()) {
    if (line.cost > line.least) dear += text_of(line);
    if (!is_shared(line)) sectors += line.cost;
  }
  REQUIRE_MESSAGE(dear.empty(), "the transpose costs more than a copy:", dear);
  constexpr std::int64_t kLeast = 2 * kRows * kCols * 4 / kSectorBytes;
  REQUIRE_MESSAGE(sectors == kLeast, "global memory is asked for ", sectors, " sectors, where ",
                  kLeast, " will do: does each element move once?");
}
