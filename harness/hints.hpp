#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "harness/compare.hpp"

namespace tile {

/// A failed comparison, as the hints see it.
struct Mismatches {
  const Expected& expected;
  std::span<const double> got;
  std::span<const std::int64_t> wrong;  ///< the mismatches' row-major indices, ascending, >= 1
};

/// A guess at what went wrong, from the pattern that one common mistake leaves: the first below
/// whose pattern is there, or nothing.
std::string hint(const Mismatches& m);

// The guesses one by one, those that are least likely to be chance first. Each returns an empty
// string when its pattern is not there. Those that could be right by chance ask for at least three
// mismatches.

/// Elements still hold the poison that the output was filled with.
std::string hint_unwritten(const Mismatches& m);
/// Elements are the NaN that lies around inputs and in their padding.
std::string hint_read_outside(const Mismatches& m);
/// Elements are the NaN that fresh shared and device memory holds on the CPU device.
std::string hint_uninitialised(const Mismatches& m);
/// got = -expected wherever it is wrong, and beyond the bounds.
std::string hint_sign(const Mismatches& m);
/// got = factor * expected everywhere, with one factor (neither 0 nor -1), and beyond the bounds.
std::string hint_factor(const Mismatches& m);
/// got[i] = expected[i + 1] or expected[i - 1] along one axis, wherever it is wrong.
std::string hint_shift(const Mismatches& m);
/// got[i][j] = expected[j][i] over the last two axes, wherever it is wrong.
std::string hint_transposed(const Mismatches& m);
/// Only the ends of one or several axes are wrong, from a multiple of 4 on.
std::string hint_tail(const Mismatches& m);

}  // namespace tile
