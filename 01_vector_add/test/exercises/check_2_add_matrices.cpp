// Checks exercise 01.2. Not part of the task.
#include <algorithm>
#include <array>

#include "exercises/exercises.hpp"
#include "harness/answer.hpp"
#include "harness/inputs.hpp"
#include "harness/poison.hpp"

using tile::DeviceBuffer;
using tile::DType;
using tile::Poison;

namespace {

// Where the first wrong element lies tells the common mistakes apart.
std::string hint(const tile::Comparison& result, const std::vector<double>& c) {
  constexpr std::int64_t kRowsPerBlock = 8;
  if (result.ok() || result.first.empty()) return {};
  if (result.first[1] == kRowsPerBlock) {
    return "\nHint: column 8 is the first wrong one, and 8 threads of a block lie along y: does y "
           "walk along the row? It should be x";
  }
  const bool all_written = std::ranges::none_of(c, [](double x) {
    return tile::is_poison(x, Poison::unwritten_nan) ||
           tile::is_poison(x, Poison::unwritten_finite);
  });
  if (result.first[0] == 1 && result.first[1] == 0 && all_written) {
    return "\nHint: row 0 is right and row 1 is not: each matrix has an ld of its own";
  }
  return {};
}

}  // namespace

TEST_CASE("01.2 adding matrices") {
  const std::int64_t extents[][2] = {{1, 1},  {1, 33}, {9, 1},   {8, 32},
                                     {7, 31}, {9, 33}, {17, 65}, {100, 3}};
  for (const auto& extent : extents) {
    const std::int64_t rows = extent[0], cols = extent[1];
    CAPTURE(rows);
    CAPTURE(cols);
    const auto a = tile::normal(rows * cols, DType::fp32, 1);
    const auto b = tile::normal(rows * cols, DType::fp32, 2);
    auto layout = [rows, cols](std::int64_t padding) {
      return tile::matrix_layout(DType::fp32, rows, cols, cols + padding);
    };
    for (const Poison poison : tile::kOutputPoisons) {
      DeviceBuffer device_a = DeviceBuffer::input("a", layout(3), a);
      DeviceBuffer device_b = DeviceBuffer::input("b", layout(5), b);
      DeviceBuffer device_c = DeviceBuffer::output("c", layout(1), poison);
      auto matrix = [](const DeviceBuffer& buffer) {
        return vector_add::Matrix{static_cast<float*>(buffer.raw()), buffer.layout().ld};
      };
      tile::run_answer(
          [&] {
            return vector_add::add_matrices(matrix(device_a), matrix(device_b), matrix(device_c),
                                            rows, cols);
          },
          std::array{&device_a, &device_b, &device_c});

      tile::Expected expected{{rows, cols}, {}, std::vector<double>(a.size(), 0.0)};
      for (std::size_t i = 0; i < a.size(); ++i) {
        expected.value.push_back(static_cast<double>(static_cast<float>(a[i] + b[i])));
      }
      const std::vector<double> got = device_c.download();
      const tile::Comparison result = tile::compare("c", got, expected);
      REQUIRE_MESSAGE(result.ok(), result.message, hint(result, got));
    }
  }
}
