// Checks exercise 05.1. Not part of the task.
// Shipped: every block goes through all tiles
#include <array>
#include <functional>

#include "test/exercises/checks.hpp"

using flash_attention::Mask;
using flash_attention::Values;
using tile::Expected;

namespace {

constexpr int kQueries = 8, kKeys = 32;  // of a block, of a tile

struct Range {
  int first, last;
  int count() const { return std::max(0, last - first); }
};
/// Which tiles a block visits whose first query is this one.
using RangeOf = std::function<Range(const Mask&, int first_query)>;

int last_query(const Mask& mask, int first_query) {
  return std::min(first_query + kQueries, mask.queries) - 1;
}
int rounded_up(int keys) { return (keys + kKeys - 1) / kKeys; }

/// Asks every query of the block about every key.
Range needed(const Mask& mask, int first_query) {
  Range range{0, 0};
  for (int key = mask.keys - 1; key >= 0; --key) {
    for (int query = first_query; query <= last_query(mask, first_query); ++query) {
      if (!mask.sees(query, key)) continue;
      if (range.last == 0) range.last = key / kKeys + 1;
      range.first = key / kKeys;
    }
  }
  return range;
}

struct Task {
  Mask mask;
  int dim;
  Values q, k, v;

  Task(const Mask& some_mask, int some_dim)
      : mask(some_mask),
        dim(some_dim),
        q(tile::normal(mask.queries * dim, tile::DType::fp32, 1)),
        k(tile::normal(mask.keys * dim, tile::DType::fp32, 2)),
        v(tile::normal(mask.keys * dim, tile::DType::fp32, 3, 1)) {}

  float scale() const { return 1 / std::sqrt(static_cast<float>(dim)); }
  int blocks() const { return (mask.queries + kQueries - 1) / kQueries; }
  std::string text() const {
    return "queries = " + std::to_string(mask.queries) + ", keys = " + std::to_string(mask.keys) +
           ", each query sees " + std::to_string(mask.left) + " keys to the left of its own and " +
           std::to_string(mask.right) + " to the right";
  }
  /// The chapter's: this kernel rounds no more than its steps do.
  Expected right() const {
    tile::AttentionForward p{{.type = tile::DType::fp32,
                              .batch = 1,
                              .heads = 1,
                              .queries = mask.queries,
                              .keys = mask.keys,
                              .head_dim = dim}};
    p.left = mask.left, p.right = mask.right, p.scale = scale();
    return flash_attention::reference(p, {q, k, v, {}, {}}).o;
  }
  /// How many tiles each block visits if they are these.
  Values visited(const RangeOf& range_of) const {
    Values counts;
    for (int block = 0; block < blocks(); ++block) {
      counts.push_back(range_of(mask, block * kQueries).count());
    }
    return counts;
  }
  /// o if each block visits these tiles.
  Expected if_tiles_were(const RangeOf& range_of) const {
    Values o;
    for (int query = 0; query < mask.queries; ++query) {
      const Range range = range_of(mask, query / kQueries * kQueries);
      double sum = 0;
      Values row(static_cast<std::size_t>(dim), 0.0);
      for (int key = 0; key < mask.keys; ++key) {
        if (!mask.sees(query, key) || key / kKeys < range.first || key / kKeys >= range.last)
          continue;
        double score = 0;
        for (int d = 0; d < dim; ++d) score += at(q, query, d) * at(k, key, d);
        const double weight = std::exp(scale() * score);
        sum += weight;
        for (int d = 0; d < dim; ++d) row[static_cast<std::size_t>(d)] += weight * at(v, key, d);
      }
      for (const double each : row) o.push_back(sum == 0 ? 0 : each / sum);
    }
    return flash_attention::if_it_were(right(), [&](std::size_t i) { return o[i]; });
  }
  double at(const Values& rows, int row, int d) const {
    return rows[static_cast<std::size_t>(row * dim + d)];
  }
};

struct Guess {
  const char* explanation;
  RangeOf range_of;
};
const Guess kGuesses[] = {
    {"every block goes through all tiles, as if there were no mask",
     [](const Mask& m, int) {
       return Range{0, rounded_up(m.keys)};
     }},
    {"every block goes through the tiles from the first one on: with a window on the left, none of "
     "its queries sees those",
     [](const Mask& m, int q) {
       return Range{0, needed(m, q).last};
     }},
    {"every block goes on to the last tile: none of its queries sees keys after its last "
     "query's",
     [](const Mask& m, int q) {
       return Range{needed(m, q).first, rounded_up(m.keys)};
     }},
    {"the tiles end where the block's first query sees its last key: the others see further",
     [](const Mask& m, int q) {
       return Range{m.first_key(q) / kKeys, rounded_up(m.end_key(q))};
     }},
    {"the tiles begin where the block's last query sees its first key: the others see keys before "
     "it",
     [](const Mask& m, int q) {
       const int last = last_query(m, q);
       return Range{m.first_key(last) / kKeys, rounded_up(m.end_key(last))};
     }},
    {"of the last tile a block sees a part only, and it is left out. Is the division rounded up?",
     [](const Mask& m, int q) {
       return Range{m.first_key(q) / kKeys, m.end_key(last_query(m, q)) / kKeys};
     }},
    {"of the first tile a block sees a part only, and it is left out. Is the division rounded "
     "down?",
     [](const Mask& m, int q) {
       return Range{rounded_up(m.first_key(q)), rounded_up(m.end_key(last_query(m, q)))};
     }},
    {"where the last key that a block sees is the last of its tile, the next tile is visited as "
     "well",
     [](const Mask& m, int q) {
       return Range{m.first_key(q) / kKeys, m.end_key(last_query(m, q)) / kKeys + 1};
     }},
    {"in the last block not every warp has a query. end_key() of one that does not exist is 0",
     [](const Mask& m, int q) {
       return Range{m.first_key(q) / kKeys, rounded_up(m.end_key(q + kQueries - 1))};
     }},
    {"query i is taken to stand beside key i. It stands beside key i + keys - queries",
     [](const Mask& m, int q) {
       const int end = std::min(m.keys, last_query(m, q) + m.right + 1);
       return Range{std::max(0, q - m.left) / kKeys, rounded_up(end)};
     }},
    {"j <= i is the formula of a causal mask with as many keys as queries. In general query i "
     "stands beside key i + mask.keys - mask.queries, and sees mask.left keys before that "
     "one and mask.right after it: mask.first_key(i) and mask.end_key(i) say which",
     [](const Mask& m, int q) {
       return Range{0, rounded_up(std::min(m.keys, last_query(m, q) + 1))};
     }},
    {"a key is missing at the end: is the tile of the last key itself visited?",
     [](const Mask& m, int q) {
       return Range{m.first_key(q) / kKeys, rounded_up(m.end_key(last_query(m, q)) - 1)};
     }},
};

/// `counts` are not looked at where they are empty.
std::string explain(const Task& t, const Values& o, const Values& counts) {
  for (const Guess& guess : kGuesses) {
    if (t.visited(guess.range_of) != counts) continue;
    const Expected expected = t.if_tiles_were(guess.range_of);
    if (tile::compare("o", o, expected).ok()) return std::string("\nHint: ") + guess.explanation;
  }
  if (std::ranges::any_of(o, [](double x) { return std::isnan(x); }) &&
      !flash_attention::any_unwritten(o)) {
    return "\nHint: a tile before the first one is visited, so values are read that are none";
  }
  return {};
}

/// A line for the first blocks: what each has.
std::string line(const std::string& name, const Values& counts) {
  constexpr std::size_t kMost = 14;
  std::string text = "\n  " + name;
  for (std::size_t i = 0; i < std::min(kMost, counts.size()); ++i) {
    const std::string number = std::to_string(static_cast<int>(counts[i]));
    text += std::string(number.size() < 4 ? 4 - number.size() : 1, ' ') + number;
  }
  return text + (counts.size() > kMost ? " …" : "");
}

void check(const Task& t) {
  INFO(t.text());
  const tile::DeviceBuffer q = flash_attention::input("q", t.q),
                           k = flash_attention::input("k", t.k),
                           v = flash_attention::input("v", t.v);
  for (const tile::Poison poison : tile::kOutputPoisons) {
    const tile::DeviceBuffer o = flash_attention::output("o", t.q.size(), poison),
                             visited = flash_attention::output(
                                 "visited", static_cast<std::size_t>(t.blocks()), poison);
    using flash_attention::floats;
    const flash_attention::MaskedHead head{t.mask,    t.dim,     t.scale(), floats(q),
                                           floats(k), floats(v), floats(o), floats(visited)};
    tile::run_answer([&] { return flash_attention::visible_tiles(head); },
                     std::array{&q, &k, &v, &o, &visited},
                     "\nHint: is a tile visited that lies before the first or after the last?");
    const Values got = o.download(), counts = visited.download(), least = t.visited(needed);
    tile::require_right("o", got, t.right(), [&] { return explain(t, got, counts); });
    REQUIRE_MESSAGE((counts == least),
                    "the output is right, but tiles are visited of which no query of the block "
                    "sees a key",
                    line("block   ",
                         [&] {
                           Values numbers;
                           for (int i = 0; i < t.blocks(); ++i) numbers.push_back(i);
                           return numbers;
                         }()),
                    line("visited ", counts), line("needed  ", least), explain(t, got, counts));
  }
}

}  // namespace

TEST_CASE("05.1 tiles that no query sees") {
  constexpr int kAll = 1000;  // a window wider than everything here
  // No mask at all.
  for (const auto& [queries, keys] : {std::pair{16, 64}, {13, 70}, {1, 1}, {1, 33}}) {
    check(Task({queries, keys, kAll, kAll}, 24));
  }
  // Causal, as many queries as keys. Then fewer queries, so that blocks begin anywhere in a tile;
  // and more, so that the first ones see nothing.
  for (const int n : {128, 100, 61, 32, 1}) check(Task({n, n, kAll, 0}, 20));
  for (int keys = 90; keys < 125; ++keys) check(Task({29, keys, kAll, 0}, 3));
  for (const int keys : {1, 8, 31, 32, 40, 71}) check(Task({100, keys, kAll, 0}, 5));
  // Windows.
  for (const int left : {0, 5, 31, 32, 33, 50}) {
    for (const int right : {0, 3, 32, 40}) {
      check(Task({64, 64, left, right}, 7));
      check(Task({45, 131, left, right}, 2));
      check(Task({130, 70, left, right}, 2));
    }
  }
  check(Task({50, 100, kAll, 10}, 32));
  check(Task({50, 100, 10, kAll}, 32));
}
