// Checking some rows of a result that is too large for a reference of all of it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "harness/compare.hpp"
#include "tile/host/dtype.hpp"
#include "tile/host/status.hpp"

namespace tile {

/// 0, 1, … rows - 1.
std::vector<std::int64_t> all_rows(std::int64_t rows);

/// Rows of a matrix of `rows` rows, ascending: the first and the last, those on both sides of
/// borders where tiles of 8 to 256 rows can end, and one at random out of each 64th of the matrix,
/// so that no tile of a 64th or more is left out. All rows if that would be most of them. The same
/// on every call.
std::vector<std::int64_t> sample_rows(std::int64_t rows);

/// Reads these rows of a matrix on the device, each of `cols` elements of `dtype` and right after
/// the one before. Fails, and leaves `values` alone, if CUDA does.
Status download_rows(const void* matrix, DType dtype, std::int64_t cols,
                     std::span<const std::int64_t> rows, std::vector<double>* values);

/// Compares rows of a matrix, named by their numbers in `rows`. `got` and `expected`, of the shape
/// {number of such rows, columns}, hold these rows only. The message is that of the first row that
/// differs.
Comparison compare_rows(std::string_view name, std::span<const std::int64_t> rows,
                        std::span<const double> got, const Expected& expected);

}  // namespace tile
