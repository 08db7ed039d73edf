#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/poison.hpp"

namespace tile {

/// What a reference returns: for each element of a row-major tensor the value, computed in double
/// from the exact inputs that the kernel saw, and how far a correct kernel may be from it.
struct Expected {
  std::vector<std::int64_t> shape;  ///< extents, slowest first; {} is a scalar
  std::vector<double> value;
  std::vector<double> bound;  ///< absolute, >= 0 and finite; 0 asks for the same bits
};

/// The outcome of comparing every element. In a test:
///
///     const Comparison c = compare("c", buffer.download(), reference(a, b));
///     CHECK_MESSAGE(c.ok(), c.message);
struct Comparison {
  std::int64_t count = 0;           ///< elements compared
  std::int64_t mismatches = 0;      ///< how many of them are wrong
  double worst_ratio = 0;           ///< the greatest |got - value| / bound; above 1 is a mismatch
  std::vector<std::int64_t> first;  ///< coordinates of the first mismatch, empty if there is none
  std::vector<std::int64_t> worst;  ///< coordinates of the greatest ratio
  std::string message;              ///< empty if all is well

  bool ok() const { return mismatches == 0 && message.empty(); }
};

/// Whether one element passes: both are NaN, or both the same infinity, or both finite and
/// |got - value| <= bound. With bound 0 they must be the same bits: -0 is not +0.
/// A NaN for a bound passes nothing finite.
bool matches(double got, double value, double bound);

/// Compares all elements. Fails, with a message that says which and guesses why, if any of them
/// does not match; or if the sizes of `got`, value, bound and shape disagree; or if the bound of a
/// finite value is negative, NaN or infinite (where the value is NaN or infinite its bound is not
/// used). No elements at all is a success with count 0.
Comparison compare(std::string_view name, std::span<const double> got, const Expected& expected);

/// The poisons that a kernel must run with if this is expected of its outputs. An element that was
/// never written still holds a NaN, which passes only where a NaN is expected.
std::vector<Poison> poisons_for(std::initializer_list<const Expected*> all);

/// The coordinates of the element at `index` in row-major order.
std::vector<std::int64_t> coordinates(std::int64_t index, std::span<const std::int64_t> shape);

}  // namespace tile
