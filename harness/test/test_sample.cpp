#include "harness/sample.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

#include "harness/buffer.hpp"

namespace tile {
namespace {

bool contains(const std::vector<std::int64_t>& rows, std::int64_t row) {
  return std::ranges::binary_search(rows, row);
}

/// What sample_rows() took out of a matrix of `rows` rows and 5 columns that a kernel computed
/// right. Element [row][column] is row + column / 8, and may be off by 1/64.
struct Sampled {
  explicit Sampled(std::int64_t all_rows) : rows(sample_rows(all_rows)) {
    expected.shape = {std::ssize(rows), 5};
    for (const std::int64_t row : rows) {
      for (int column = 0; column < 5; ++column) {
        got.push_back(static_cast<double>(row) + column / 8.0);
        expected.value.push_back(got.back() + 1.0 / 128);
        expected.bound.push_back(1.0 / 64);
      }
    }
  }
  Comparison compare() const { return compare_rows("c", rows, got, expected); }

  std::vector<std::int64_t> rows;
  std::vector<double> got;
  Expected expected;
};

TEST_CASE("sampled rows: ascending, each once, all inside, the same again") {
  for (const std::int64_t rows : {0, 1, 2, 255, 256, 257, 300, 1025, 2047, 4096, 8192, 100'003}) {
    CAPTURE(rows);
    const auto sample = sample_rows(rows);
    CHECK(std::ranges::adjacent_find(sample, std::greater_equal{}) == sample.end());
    if (rows == 0) CHECK(sample.empty());
    if (rows > 0) CHECK((sample.front() == 0 && sample.back() == rows - 1));
    CHECK(sample == sample_rows(rows));
  }
}

TEST_CASE("sampled rows: all of a small matrix") {
  CHECK(sample_rows(256).size() == 256);
  CHECK(sample_rows(3) == std::vector<std::int64_t>{0, 1, 2});
}

TEST_CASE("sampled rows: of a large matrix few, on both sides of borders, and in every 64th") {
  for (const std::int64_t rows : {2048, 4097, 8192, 16'384}) {
    CAPTURE(rows);
    const auto sample = sample_rows(rows);
    CHECK(sample.size() <= 100);
    CHECK(sample.size() >= 64);
    const std::int64_t last = (rows - 1) / 128 * 128;
    for (const std::int64_t border : {std::int64_t{32}, std::int64_t{128}, last}) {
      CHECK(contains(sample, border - 1));
      CHECK(contains(sample, border));
    }
    for (std::int64_t strip = 0; strip < 64; ++strip) {
      const std::int64_t begin = rows * strip / 64, end = rows * (strip + 1) / 64;
      CHECK(std::ranges::lower_bound(sample, begin) != std::ranges::lower_bound(sample, end));
    }
  }
}

TEST_CASE("downloading rows: those that are asked for, in their order") {
  std::vector<double> all(5 * 3);
  std::iota(all.begin(), all.end(), 0);
  const DeviceBuffer matrix = DeviceBuffer::input("c", matrix_layout(DType::bf16, 5, 3, 3), all);
  std::vector<double> values{7};
  CHECK(download_rows(matrix.raw(), DType::bf16, 3, std::vector<std::int64_t>{4, 0, 2}, &values)
            .ok());
  CHECK(values == std::vector<double>{12, 13, 14, 0, 1, 2, 6, 7, 8});
  CHECK(download_rows(matrix.raw(), DType::bf16, 3, {}, &values).ok());
  CHECK(values.empty());
  values = {7};
  CHECK_FALSE(download_rows(nullptr, DType::bf16, 3, std::vector<std::int64_t>{0}, &values).ok());
  CHECK(values == std::vector<double>{7});

  // All rows in their order are one copy, in another order they are not.
  GuardedMemory memory("c", matrix_layout(DType::bf16, 5, 3, 3));
  memory.upload(all);
  CHECK(memory.rows(all_rows(5)) == all);
  CHECK(memory.rows(std::vector<std::int64_t>{1, 0, 2, 2, 4}) ==
        std::vector<double>{3, 4, 5, 0, 1, 2, 6, 7, 8, 6, 7, 8, 12, 13, 14});
}

TEST_CASE("comparing rows: right rows pass, with the worst error's place in the whole matrix") {
  Sampled sampled(8192);
  CHECK(sampled.compare().ok());
  CHECK(sampled.compare().worst_ratio == 0.5);
  CHECK(sampled.compare().count == std::ssize(sampled.got));
  const std::size_t row = sampled.rows.size() - 2;
  sampled.got[row * 5 + 3] = sampled.expected.value[row * 5 + 3] + 1.0 / 80;
  CHECK(sampled.compare().ok());
  CHECK(sampled.compare().worst == std::vector<std::int64_t>{sampled.rows[row], 3});
}

TEST_CASE("comparing rows: one wrong element is found wherever it is, and named by its real row") {
  const Sampled right(8192);
  for (std::size_t i = 0; i < right.got.size(); ++i) {
    Sampled wrong = right;
    wrong.got[i] += 1;
    const Comparison found = wrong.compare();
    const std::int64_t row = right.rows[i / 5], column = static_cast<std::int64_t>(i % 5);
    CHECK_FALSE(found.ok());
    CHECK(found.mismatches == 1);
    CHECK(found.first == std::vector<std::int64_t>{row, column});
    const std::string name = "c[" + std::to_string(row) + "][" + std::to_string(column) + "] is ";
    CHECK_MESSAGE(found.message.find(name) != std::string::npos, found.message);
  }
}

TEST_CASE("comparing rows: NaN is found, and so is a row of another row's values") {
  Sampled sampled(8192);
  sampled.got[17] = std::numeric_limits<double>::quiet_NaN();
  CHECK(sampled.compare().mismatches == 1);
  Sampled shifted(8192);
  std::copy_n(shifted.got.begin() + 5, 5, shifted.got.begin());
  CHECK(shifted.compare().mismatches == 5);
  Sampled all_shifted(8192);
  std::rotate(all_shifted.got.begin(), all_shifted.got.begin() + 5, all_shifted.got.end());
  const std::string count = std::to_string(all_shifted.rows.size());
  CHECK(all_shifted.compare().message.find(count + " of " + count + " rows compared differ") !=
        std::string::npos);
}

TEST_CASE("comparing rows: sizes that disagree are refused") {
  Sampled sampled(8192);
  sampled.got.pop_back();
  CHECK_THROWS_AS(sampled.compare(), std::invalid_argument);
  Sampled fewer(8192);
  fewer.rows.pop_back();
  CHECK_THROWS_AS(fewer.compare(), std::invalid_argument);
}

}  // namespace
}  // namespace tile
