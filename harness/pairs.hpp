// Cases of a test whose options are drawn so that each two values of two options meet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

namespace tile {

/// The number of the value that each option has.
using Draw = std::vector<std::size_t>;

/// For options of `counts` values each: draws in which every value of an option meets every value
/// of every other option. They are not many more than the two options with the most values have
/// pairs. Which values meet a third one depends on the seed; the same seed gives the same draws.
std::vector<Draw> draw_pairs(std::span<const std::size_t> counts, std::uint64_t seed);

/// Gives an option its value: one of a list.
class Pick {
 public:
  /// Without a draw the options are only counted: each has its first value.
  explicit Pick(std::vector<std::size_t>* counts, const Draw* draw = nullptr)
      : counts_(counts), draw_(draw) {}

  /// The list must be as long as that of the same option in every other case, and the options must
  /// be as many.
  template <class T>
  T operator()(std::span<const T> values) {
    if (!draw_) {
      counts_->push_back(values.size());
      return values[0];
    }
    if (counts_->at(next_) != values.size()) throw std::out_of_range("a list of another length");
    return values[(*draw_)[next_++]];
  }
  template <class T, std::size_t kCount>
  T operator()(const T (&values)[kCount]) {
    return (*this)(std::span<const T>(values));
  }
  template <class T>
  T operator()(const std::vector<T>& values) {
    return (*this)(std::span<const T>(values));
  }

 private:
  std::vector<std::size_t>* counts_;
  const Draw* draw_;
  std::size_t next_ = 0;
};

/// The cases that `make(pick)` makes of all draws of its options, which it gets from `pick`.
template <class Make>
auto drawn_cases(std::uint64_t seed, const Make& make) {
  std::vector<std::size_t> counts;
  Pick count(&counts);
  std::vector<decltype(make(count))> cases;
  make(count);
  for (const Draw& draw : draw_pairs(counts, seed)) {
    Pick pick(&counts, &draw);
    cases.push_back(make(pick));
  }
  return cases;
}

}  // namespace tile
