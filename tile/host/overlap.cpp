#include "tile/host/overlap.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

namespace tile {
namespace {

__extension__ using Wide = __int128;  // of distances between addresses, up to 2^64 bytes each

/// n times stride, where n is from `first` to `last`.
struct Term {
  Wide stride, first, last;
};

/// Finds out whether one value of each term can add up to a sum between `least` and `most`.
class Search {
 public:
  explicit Search(std::vector<Term> terms) : terms_(std::move(terms)) {
    // The longest strides leave the fewest choices.
    std::ranges::sort(terms_, std::ranges::greater{}, &Term::stride);
    lowest_.assign(terms_.size() + 1, 0);
    highest_ = lowest_;
    for (std::size_t i = terms_.size(); i-- > 0;) {
      lowest_[i] = lowest_[i + 1] + terms_[i].first * terms_[i].stride;
      highest_[i] = highest_[i + 1] + terms_[i].last * terms_[i].stride;
    }
  }
  /// Not all n may be 0, if `not_all_zero`.
  bool find(Wide least, Wide most, bool not_all_zero) { return find(0, least, most, not_all_zero); }

 private:
  static Wide floor_of(Wide a, Wide b) { return a / b - (a % b != 0 && a < 0); }

  /// With the terms from `at` on.
  bool find(std::size_t at, Wide least, Wide most, bool not_all_zero) {
    if (--steps_ < 0) return false;
    if (at == terms_.size()) return least <= 0 && 0 <= most && !not_all_zero;
    const Term& term = terms_[at];
    // What follows adds from lowest_ to highest_.
    const Wide first = -floor_of(highest_[at + 1] - least, term.stride);
    const Wide last = floor_of(most - lowest_[at + 1], term.stride);
    for (Wide n = std::max(first, term.first); n <= std::min(last, term.last); ++n) {
      const Wide here = n * term.stride;
      if (find(at + 1, least - here, most - here, not_all_zero && n == 0)) return true;
      if (steps_ < 0) return false;
    }
    return false;
  }

  std::vector<Term> terms_;
  std::vector<Wide> lowest_, highest_;
  int steps_ = 100'000;
};

Wide begin_of(const Region& x) { return reinterpret_cast<std::uintptr_t>(x.data); }
Wide end_of(const Region& x) {
  Wide end = begin_of(x) + x.row_bytes;
  for (const auto& [count, stride] : x.dimensions) end += Wide{count - 1} * stride;
  return end;
}

}  // namespace

bool overlap(const Region& a, const Region& b) {
  if (end_of(a) <= begin_of(b) || end_of(b) <= begin_of(a)) return false;
  // A row of b begins at a distance from a row of a that is this sum. Equal strides are one term:
  // only the difference of their two numbers matters.
  std::map<std::int64_t, Term> terms;
  const auto add = [&terms](const Region& x, int sign) {
    for (const auto& [count, stride] : x.dimensions) {
      if (count <= 1 || stride == 0) continue;
      Term& term = terms.try_emplace(stride, Term{stride, 0, 0}).first->second;
      (sign > 0 ? term.last : term.first) += sign * (count - 1);
    }
  };
  add(b, 1), add(a, -1);
  std::vector<Term> all;
  for (const auto& [stride, term] : terms) all.push_back(term);
  const Wide distance = begin_of(b) - begin_of(a);
  return Search(std::move(all)).find(1 - b.row_bytes - distance, a.row_bytes - 1 - distance, false);
}

bool overlaps_itself(const Region& x) {
  std::vector<Term> terms;
  for (const auto& [count, stride] : x.dimensions) {
    if (count <= 1) continue;
    if (stride == 0) return true;
    terms.push_back({stride, 1 - count, count - 1});
  }
  return Search(std::move(terms)).find(1 - x.row_bytes, x.row_bytes - 1, true);
}

}  // namespace tile
