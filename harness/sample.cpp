#include "harness/sample.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>

#include "harness/convert.hpp"
#include "harness/inputs.hpp"
#include "tile/host/cuda_check.hpp"
#include "tile/host/text.hpp"

namespace tile {
namespace {

constexpr std::int64_t kStrips = 64;

}  // namespace

std::vector<std::int64_t> all_rows(std::int64_t rows) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(rows));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::vector<std::int64_t> sample_rows(std::int64_t rows) {
  if (rows <= 4 * kStrips) return all_rows(rows);
  std::set<std::int64_t> sample{0, rows - 1};
  // Of the first tile, the second and the last; the last may be cut off.
  for (std::int64_t tile = 8; tile <= 256; tile *= 2) {
    for (const std::int64_t border : {tile, 2 * tile, (rows - 1) / tile * tile}) {
      sample.insert(std::min(border - 1, rows - 1));
      sample.insert(std::min(border, rows - 1));
    }
  }
  const std::vector<double> random = uniform(kStrips, DType::fp64, 64, 0, 1);
  for (std::int64_t strip = 0; strip < kStrips; ++strip) {
    const std::int64_t begin = rows * strip / kStrips, end = rows * (strip + 1) / kStrips;
    sample.insert(begin + static_cast<std::int64_t>(random[static_cast<std::size_t>(strip)] *
                                                    static_cast<double>(end - begin)));
  }
  return {sample.begin(), sample.end()};
}

Status download_rows(const void* matrix, DType dtype, std::int64_t cols,
                     std::span<const std::int64_t> rows, std::vector<double>* values) {
  const std::size_t row_bytes = static_cast<std::size_t>(cols) * size_bytes(dtype);
  std::vector<std::byte> bytes(rows.size() * row_bytes);
  for (std::size_t i = 0, count = 0; i < rows.size(); i += count) {
    count = 1;  // neighbours are read in one copy
    while (i + count < rows.size() && rows[i + count] == rows[i + count - 1] + 1) {
      ++count;
    }
    const std::byte* row =
        static_cast<const std::byte*>(matrix) + static_cast<std::size_t>(rows[i]) * row_bytes;
    TILE_RETURN_IF_CUDA_ERROR(
        cudaMemcpy(bytes.data() + i * row_bytes, row, count * row_bytes, cudaMemcpyDeviceToHost));
  }
  *values = to_double(bytes.data(), dtype, std::ssize(rows) * cols);
  return {};
}

Comparison compare_rows(std::string_view name, std::span<const std::int64_t> rows,
                        std::span<const double> got, const Expected& expected) {
  const bool fits =
      expected.shape.size() == 2 && expected.shape[0] == std::ssize(rows) && expected.shape[1] >= 0;
  const std::size_t columns = fits ? static_cast<std::size_t>(expected.shape[1]) : 0;
  const std::size_t count = rows.size() * columns;
  if (!fits || got.size() != count || expected.value.size() != count ||
      expected.bound.size() != count) {
    throw std::invalid_argument("compare_rows: not as many rows as there are numbers of rows");
  }
  Comparison all = compare(name, got, expected);
  if (all.ok()) {
    if (!all.worst.empty()) all.worst[0] = rows[static_cast<std::size_t>(all.worst[0])];
    return all;
  }
  all = {};  // row by row, for the message
  std::int64_t wrong_rows = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    auto part = [&](const std::vector<double>& values) {
      const auto begin = values.begin() + static_cast<std::int64_t>(i * columns);
      return std::vector<double>(begin, begin + static_cast<std::int64_t>(columns));
    };
    const Expected row{{expected.shape[1]}, part(expected.value), part(expected.bound)};
    const std::string row_name =
        std::string(name).append("[").append(std::to_string(rows[i])).append("]");
    const Comparison one = compare(row_name, got.subspan(i * columns, columns), row);
    all.count += one.count;
    all.mismatches += one.mismatches;
    auto at = [&](const std::vector<std::int64_t>& column) {
      return std::vector<std::int64_t>{rows[i], column.at(0)};
    };
    if (one.count > 0 && (all.worst.empty() || one.worst_ratio > all.worst_ratio)) {
      all.worst_ratio = one.worst_ratio;
      all.worst = at(one.worst);
    }
    if (one.ok()) continue;
    if (++wrong_rows > 1) continue;
    all.message = one.message;
    if (!one.first.empty()) all.first = at(one.first);
  }
  if (wrong_rows > 1) {
    all.message += "\n  " + std::to_string(wrong_rows) + " of " + counted(std::ssize(rows), "row") +
                   " compared differ";
  }
  return all;
}

}  // namespace tile
