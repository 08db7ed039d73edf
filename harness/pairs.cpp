#include "harness/pairs.hpp"

#include <algorithm>
#include <numeric>
#include <random>

namespace tile {
namespace {

/// Which values of two options have not met yet. A value meets itself in its first draw.
class Pairs {
 public:
  explicit Pairs(std::span<const std::size_t> counts) {
    std::size_t sum = 0;
    for (const std::size_t count : counts) first_.push_back(sum), sum += count;
    values_ = sum;
    open_.assign(sum * sum, false);
    for (std::size_t a = 0; a < counts.size(); ++a) {
      for (std::size_t b = 0; b < counts.size(); ++b) {
        for (std::size_t x = 0; x < counts[a]; ++x) {
          for (std::size_t y = 0; y < counts[b]; ++y) open_[at(a, x, b, y)] = a != b || x == y;
        }
      }
    }
  }
  bool is_open(std::size_t a, std::size_t x, std::size_t b, std::size_t y) const {
    return open_[at(a, x, b, y)];
  }
  /// Of value x of option a, with all others.
  std::ptrdiff_t open_of(std::size_t a, std::size_t x) const {
    const auto row = open_.begin() + static_cast<std::ptrdiff_t>((first_[a] + x) * values_);
    return std::count(row, row + static_cast<std::ptrdiff_t>(values_), true);
  }
  bool any_open() const { return std::find(open_.begin(), open_.end(), true) != open_.end(); }
  void meet(const Draw& draw) {
    for (std::size_t a = 0; a < draw.size(); ++a) {
      for (std::size_t b = 0; b < draw.size(); ++b) open_[at(a, draw[a], b, draw[b])] = false;
    }
  }

 private:
  std::size_t at(std::size_t a, std::size_t x, std::size_t b, std::size_t y) const {
    return (first_[a] + x) * values_ + first_[b] + y;
  }
  std::vector<std::size_t> first_;  // of each option among the values of all
  std::size_t values_;
  std::vector<bool> open_;  // [value][value]
};

}  // namespace

// Greedy: the options in random order, the first one with the value that has missed the most
// others, each further one with the value that has missed the most of those before. Of some such
// draws the one in which the most meet for the first time is kept.
std::vector<Draw> draw_pairs(std::span<const std::size_t> counts, std::uint64_t seed) {
  constexpr int kTries = 20;
  std::mt19937_64 random(seed);
  Pairs pairs(counts);
  std::vector<Draw> draws;
  std::vector<std::size_t> order(counts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  while (pairs.any_open()) {
    Draw best;
    std::ptrdiff_t most = 0;
    for (int i = 0; i < kTries; ++i) {
      for (std::size_t left = order.size(); left > 1; --left) {
        std::swap(order[left - 1], order[random() % left]);
      }
      Draw draw(counts.size());
      std::ptrdiff_t met = 0;
      for (std::size_t k = 0; k < order.size(); ++k) {
        const std::size_t a = order[k], from = random() % counts[a];
        std::ptrdiff_t best_of_values = -1, met_by_best = 0;
        for (std::size_t y = 0; y < counts[a]; ++y) {
          const std::size_t x = (from + y) % counts[a];
          std::ptrdiff_t meets = pairs.is_open(a, x, a, x);
          for (std::size_t before = 0; before < k; ++before) {
            meets += pairs.is_open(a, x, order[before], draw[order[before]]);
          }
          const std::ptrdiff_t of_value = k == 0 ? pairs.open_of(a, x) : meets;
          if (of_value > best_of_values) {
            draw[a] = x, best_of_values = of_value, met_by_best = meets;
          }
        }
        met += met_by_best;
      }
      if (met > most) best = draw, most = met;
    }
    if (most == 0) continue;  // no order began with an option that has missed any
    pairs.meet(best);
    draws.push_back(best);
  }
  return draws;
}

}  // namespace tile
