// Checks exercise 02.2. Not part of the task.
// Shipped: no tile is loaded yet
#include <algorithm>
#include <limits>

#include "test/exercises/checks.hpp"

using matmul::Task;

namespace {

constexpr std::int64_t kTileM = 16, kTileK = 32, kThreads = 256;

// What has likely happened, as far as the result tells it.
std::string explain(const Task& t, const std::vector<double>& got, bool one_tile_was_right) {
  std::vector<tile::Mistake> mistakes;
  if (t.p.m == t.p.k && t.p.k == t.p.n) {
    mistakes.push_back({"this is transpose(A) * B: rows and columns of A are exchanged",
                        t.if_terms_were([&](auto row, auto col, auto l) {
                          return t.a_at(l, row) * t.b_at(l, col);
                        })});
    mistakes.push_back({"this is A * transpose(B): rows and columns of B are exchanged",
                        t.if_terms_were([&](auto row, auto col, auto l) {
                          return t.a_at(row, l) * t.b_at(col, l);
                        })});
    mistakes.push_back({"this is transpose(A) * transpose(B): rows and columns are exchanged",
                        t.if_terms_were([&](auto row, auto col, auto l) {
                          return t.a_at(l, row) * t.b_at(col, l);
                        })});
  }
  const struct {
    const char* explanation;
    bool of_a, of_b;
  } first_tiles[] = {
      {"every step along k gave the first tiles again: k0 is missing from an index", true, true},
      {"every step along k gave A's first tile again: is k0 missing from its index?", true, false},
      {"every step along k gave B's first tile again: is k0 missing from its index?", false, true}};
  for (const auto& first : first_tiles) {
    mistakes.push_back({first.explanation, t.if_terms_were([&](auto row, auto col, auto l) {
                          return t.a_at(row, first.of_a ? l % kTileK : l) *
                                 t.b_at(first.of_b ? l % kTileK : l, col);
                        })});
  }
  // The last tile along k ends before the shared one does. What is not overwritten there is what
  // the tile before it left.
  mistakes.push_back(
      {"at the end of k the tiles keep what the ones before left there: the places "
       "for which there is no element must become 0",
       t.if_terms_were([&](auto row, auto col, auto l) {
         const bool again =
             l < t.p.k / kTileK * kTileK && t.p.k % kTileK != 0 && l + kTileK >= t.p.k;
         return (again ? 2 : 1) * t.a_at(row, l) * t.b_at(l, col);
       })});
  // Fresh shared memory is NaN on the CPU device, and often 0 on a GPU.
  for (const double fresh : {std::numeric_limits<double>::quiet_NaN(), 0.0}) {
    mistakes.push_back({"only the first 256 elements of A's tile are loaded, one for each thread",
                        t.if_terms_were([&](auto row, auto col, auto l) {
                          const std::int64_t place = row % kTileM * kTileK + l % kTileK;
                          return (place < kThreads ? t.a_at(row, l) : fresh) * t.b_at(l, col);
                        })});
  }
  if (std::string found = tile::explain_mistake(got, mistakes); !found.empty()) return found;
  const bool nothing = std::ranges::all_of(
      got, [](double x) { return x == 0 || tile::is_poison(x, tile::Poison::uninitialised); });
  if (nothing && !one_tile_was_right) {
    return "\nHint: no tile is loaded yet, or only a part of B's: it has 2,048 elements, and 256 "
           "threads load them";
  }
  if (one_tile_was_right && t.p.k % kTileK == 0) {
    return "\nHint: one tile along k was right, and several are not. Can a thread load the next "
           "tile while another still multiplies with this one?";
  }
  return {};
}

void check(const Task& task, const std::vector<double>& got, bool one_tile_was_right) {
  tile::require_right("c", got, task.right(),
                      [&] { return explain(task, got, one_tile_was_right); });
}

}  // namespace

TEST_CASE("02.2 rectangular tiles") {
  const std::int64_t extents[][3] = {{32, 32, 32},  // one tile along k
                                     {16, 64, 64},  // two
                                     {16, 64, 33},  // the second not full
                                     {17, 65, 5},  {1, 1, 1}, {100, 130, 97}, {35, 200, 515}};
  for (const auto& extent : extents) {
    const Task task(extent[0], extent[1], extent[2]);
    INFO(task.text());
    check(task, run(task, matmul::rectangular_tiles), &extent != extents);
  }

  if (!tile::device_reads_host_memory()) return;
  const std::int64_t edges[][3] = {{17, 64, 32}, {16, 65, 32}, {16, 64, 33}};
  for (const auto& extent : edges) {
    Task task(extent[0], extent[1], extent[2]);
    task.p.lda = task.p.k;
    task.p.ldb = task.p.n;
    INFO(task.text());
    const matmul::AtTheEdge a(task.a), b(task.b);
    check(task,
          run(task.p, {a.data(), b.data(), nullptr}, tile::Poison::unwritten_nan,
              matmul::rectangular_tiles,
              "\nHint: A and B end where readable memory ends here. Is each row and each column "
              "compared with m, n or k before the element is read?"),
          true);
  }
}
