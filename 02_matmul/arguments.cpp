// What is refused, and by which words; and which problems the steps leave to others.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "matmul.hpp"
#include "tile/host/matrix_argument.hpp"
#include "tile/host/tensor_argument.hpp"

namespace matmul {

tile::Status validate(const Problem& p, const Buffers& buffers) {
  TILE_TRY(tile::check_requirements(kTypes, {}, p.type));
  return validate_matrices(p, buffers);
}

// The three matrices.
static std::array<tile::MatrixArgument, 3> matrices(const Problem& p, const Buffers& buffers) {
  const auto element = static_cast<std::int64_t>(tile::size_bytes(p.type)),
             c_element = static_cast<std::int64_t>(tile::size_bytes(type_of_c(p)));
  return {{{"a", "lda", buffers.a, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.lda,
            element},
           {"b", "ldb", buffers.b, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.ldb,
            element},
           {"c", "ldc", buffers.c, p.m, p.n, p.ldc, c_element}}};
}

tile::Status check_activation(Activation activation) {
  switch (activation) {
    case Activation::none:
    case Activation::relu:
    case Activation::gelu: return {};
  }
  return tile::invalid_argument(
      "activation", std::to_string(static_cast<int>(activation)) + " is none of those known");
}

tile::Status validate_sizes(const Problem& p) {
  TILE_TRY(check_activation(p.activation));
  const struct {
    const char* name;
    std::int64_t value;
  } extents[] = {{"m", p.m}, {"n", p.n}, {"k", p.k}};
  for (const auto& extent : extents) {
    if (extent.value < 0) {
      return tile::invalid_argument(extent.name, std::to_string(extent.value) + " is negative");
    }
  }
  for (const tile::MatrixArgument& x : matrices(p, {})) TILE_TRY(tile::check_size(x));
  return {};
}

tile::Status validate_matrices(const Problem& p, const Buffers& buffers) {
  TILE_TRY(validate_sizes(p));
  const std::pair<const char*, const float*> scales[] = {{"a_scale", buffers.a_scale},
                                                         {"b_scale", buffers.b_scale}};
  for (const auto& [name, scale] : scales) {
    if (!scale) continue;
    if (p.type != tile::DType::e4m3) return tile::invalid_argument(name, "is for e4m3 alone");
    if (reinterpret_cast<std::uintptr_t>(scale) % sizeof(float)) {
      return tile::invalid_argument(name, "is not aligned to an element");
    }
  }

  using tile::MatrixArgument;
  const auto [a, b, c] = matrices(p, buffers);
  const MatrixArgument bias{"bias", "", buffers.bias, 1, p.n, p.n, c.element_bytes};
  if (buffers.workspace_bytes < 0) return tile::invalid_argument("workspace_bytes", "is negative");
  if (c.empty()) return {};
  TILE_TRY(tile::check_pointer(c));
  const MatrixArgument workspace{
      "workspace", "", buffers.workspace, 1, buffers.workspace_bytes, buffers.workspace_bytes, 1};
  if (!workspace.empty()) {
    TILE_TRY(tile::check_pointer(workspace));
    if (reinterpret_cast<std::uintptr_t>(workspace.data) % 16) {
      return tile::invalid_argument("workspace", "is not aligned to 16 bytes");
    }
    TILE_TRY(tile::check_apart(workspace, c));
  }
  if (bias.data) {
    TILE_TRY(tile::check_pointer(bias));
    TILE_TRY(tile::check_apart(c, bias));
    TILE_TRY(tile::check_apart(workspace, bias));
  }
  if (p.k == 0 || p.alpha == 0) return {};  // A and B are not read
  for (const MatrixArgument& x : {a, b}) TILE_TRY(tile::check_pointer(x));
  for (const auto& [name, scale] : scales) {
    if (scale) {
      TILE_TRY(tile::check_apart(c, MatrixArgument{name, "", scale, 1, 1, 1, sizeof(float)}));
    }
  }
  for (const MatrixArgument& output : {c, workspace}) {
    for (const MatrixArgument& x : {a, b}) TILE_TRY(tile::check_apart(output, x));
  }
  return {};
}

// ---- What the steps take ----

static tile::Status takes_rows(const char* name, const void* data, std::int64_t ld,
                               tile::DType type) {
  const auto element = static_cast<std::int64_t>(tile::size_bytes(type));
  const bool ok = reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && ld * element % 16 == 0;
  return ok ? tile::Status{}
            : tile::unsupported(name, "TMA copies rows that begin at multiples of 16 bytes");
}

static std::int64_t bytes_of(std::int64_t elements, tile::DType type) {
  return elements * static_cast<std::int64_t>(tile::size_bytes(type));
}
static bool has_product(const Problem& p) { return p.alpha != 0 && p.k > 0; }

static bool is_odd(std::int64_t ld, tile::DType type) {
  return ld % (16 / static_cast<std::int64_t>(tile::size_bytes(type))) != 0;
}
bool pads_a(const Problem& p) {
  return has_product(p) && p.n >= kUsesForCopy && is_odd(p.lda, p.type);
}
bool pads_b(const Problem& p) {
  return has_product(p) && p.m >= kUsesForCopy && is_odd(p.ldb, p.type);
}

std::int64_t padded_bytes(const Problem& p) {
  const auto copy = [&](bool pads, std::int64_t rows, std::int64_t cols) {
    return pads ? tile::product({rows, (bytes_of(cols, p.type) + 15) / 16, 16}) : 0;
  };
  const std::int64_t a = copy(pads_a(p), p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k),
                     b = copy(pads_b(p), p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n);
  return a > INT64_MAX - b ? INT64_MAX : a + b;
}

static tile::Status takes_coordinates(const Problem& p) {
  constexpr std::int64_t kMost = (std::int64_t{1} << 31) - 1024;  // a tile more must fit
  if (!has_product(p)) return tile::unsupported("k", "there is nothing to multiply");
  if (std::max({p.m, p.n, p.k}) > kMost) {
    return tile::unsupported("m, n and k", "a coordinate of TMA has 32 bits");
  }
  return {};
}

tile::Status takes_boxes(const Problem& p, const Buffers& buffers, const tile::Device&) {
  TILE_TRY(takes_coordinates(p));
  TILE_TRY(takes_rows("a", buffers.a, p.lda, p.type));
  return takes_rows("b", buffers.b, p.ldb, p.type);
}

tile::Status takes_padded_boxes(const Problem& p, const Buffers& buffers, const tile::Device&) {
  TILE_TRY(takes_coordinates(p));
  if (!pads_a(p)) TILE_TRY(takes_rows("a", buffers.a, p.lda, p.type));
  if (!pads_b(p)) TILE_TRY(takes_rows("b", buffers.b, p.ldb, p.type));
  return tile::check_workspace(padded_bytes(p), buffers.workspace_bytes);
}

tile::Status takes_boxes_of_c(const Problem& p, const Buffers& buffers, const tile::Device& d) {
  TILE_TRY(takes_padded_boxes(p, buffers, d));
  if (p.n < 8) return tile::unsupported("n", "TMA stores 16 bytes at a time");
  return takes_rows("c", buffers.c, p.ldc, p.type);
}

tile::Status takes_boxes_of_8_bits(const Problem& p, const Buffers& buffers,
                                   const tile::Device& d) {
  if (p.transpose_a) return tile::unsupported("transpose_a", "of 8 bits A is stored m x k");
  if (!p.transpose_b) return tile::unsupported("transpose_b", "of 8 bits B is stored n x k");
  if (!has_product(p)) return {};
  TILE_TRY(takes_boxes(p, buffers, d));
  return takes_rows("c", buffers.c, p.ldc, type_of_c(p));
}

// The blocks of a cluster lie within one GPC, a part of the card, and not all GPCs have the same
// number of multiprocessors: an H200 has room for 66 clusters of two blocks and 30 of four, but
// only for 15 of eight (cudaOccupancyMaxActiveClusters). One more would need a second round.
static std::int64_t most_split_blocks(std::int64_t splits) { return splits > 2 ? 120 : 128; }
constexpr std::int64_t kMostSplits = 8;
// A block that shares a tile leaves 64 KiB of sums in shared memory, at 128 bytes a cycle, and
// reads as many of its neighbours', at perhaps 32 (not measured): 2,560 cycles. An iteration (a
// turn) of 128 x 128 x 64 products takes the tensor cores 512, at 2,048 a cycle. So sharing costs
// as much as five iterations, and halving a share of less than eight gains less than that.
constexpr std::int64_t kLeastTurns = 4;

static std::int64_t split_tiles(const Problem& p) {
  return ((p.m - 1) / kSplitTile + 1) * ((p.n - 1) / kSplitTile + 1);
}

unsigned k_splits(const Problem& p) {
  const std::int64_t tiles = split_tiles(p), turns = (p.k - 1) / kSplitBlockK + 1;
  for (std::int64_t splits = kMostSplits; splits > 1; splits -= 2) {
    if (splits * tiles <= most_split_blocks(splits) && turns / splits >= kLeastTurns) {
      return static_cast<unsigned>(splits);
    }
  }
  return 1;
}

// An iteration on tiles of 128 x 128 takes 640 cycles of shared memory (cycles_in_tiles), and a
// block that shares its tile some 9,000 more: 5 us on an H200. Without a share, too, the sums go
// through shared memory once more.
static std::int64_t split_cycles(std::int64_t turns, std::int64_t splits) {
  return ((turns - 1) / splits + 1) * 640 + (splits > 1 ? 9000 : 1500);
}

tile::Status takes_few_tiles(const Problem& p, const Buffers& buffers, const tile::Device& d) {
  TILE_TRY(takes_padded_boxes(p, buffers, d));
  const std::int64_t splits = k_splits(p), turns = (p.k - 1) / kSplitBlockK + 1;
  if (split_tiles(p) <= most_split_blocks(splits) / splits) {
    constexpr std::int64_t kPairs = 66;  // at one time, on an H200
    const TileExtents other = kTileShapes[fastest_tile(p, kPairs)];
    if (split_cycles(turns, splits) < cycles_in_tiles(p, other, kPairs)) return {};
  }
  return tile::unsupported("m, n and k", "without a split they take less time");
}

// Step `swap_ab`: for so many blocks memory delivers B as fast as it can. Each has up to 112 KiB
// under way, and 96 of them 10 MiB, more than twice what memory delivers within its latency, 1 us
// at 4 TB/s.
constexpr std::int64_t kSwapBlocks = 96;

unsigned swap_splits(const Problem& p) {
  const std::int64_t tiles = (p.n - 1) / kSwapColumns + 1, turns = (p.k - 1) / kSwapBlockK + 1;
  std::int64_t splits = 1;
  for (const std::int64_t more : {2, 4, 6, 8}) {
    if (splits * tiles < kSwapBlocks && turns / more >= kLeastTurns) splits = more;
  }
  return static_cast<unsigned>(splits);
}

tile::Status takes_swap_ab(const Problem& p, const Buffers& buffers, const tile::Device& d) {
  TILE_TRY(takes_padded_boxes(p, buffers, d));
  if (p.m <= kSwapRows) return {};
  return tile::unsupported("m", std::to_string(p.m) + " rows are more than 64");
}

// How long the steps in fp32 take, in cycles of a multiprocessor at 1,755 MHz. The numbers were
// fitted to what 42 products took on an H200, single calls with a cold L2 cache; the mean error is
// 3 %.
// snippet-begin tiles
struct TileCost {
  int rows, columns;  // of C
  // For one k, b blocks of a multiprocessor together take hypot(b * shared, alone). Many of them
  // hide each other's waits for copies and barriers, and one block cannot.
  double shared, alone;
  int at_once;  // blocks of a multiprocessor
};
// The multiply-adds of one k take the 128 fp32 units of a multiprocessor 32, 64 and 128 cycles.
constexpr TileCost kShareTiles[] = {{kShareRows, 64, 46, 59, share_blocks(64)},
                                    {kShareRows, 128, 82, 64, share_blocks(128)}};
constexpr TileCost kDoubleBuffered{128, 128, 165, 94, 2};
// snippet-end tiles
// One k brings 128 floats of B. Memory gives a multiprocessor about 14 bytes a cycle if two blocks
// ask for them, and two thirds of that if one does.
constexpr TileCost kFewRowsTile{kFewRows, kFewColumns, 28, 47, 2};

static std::int64_t count_tiles(const Problem& p, const TileCost& tile) {
  return ((p.m - 1) / tile.rows + 1) * ((p.n - 1) / tile.columns + 1);
}
// Of a wave of blocks: the first loads, and the last stores, 16 bytes a cycle.
static double wave_cycles(int rows, int columns) { return 1000 + 4. * rows * columns / 16; }

// snippet-begin cycles
/// How long it takes with these tiles, if k is split into so many shares.
static double cycles(const Problem& p, const TileCost& tile, std::int64_t shares,
                     int multiprocessors) {
  const double blocks = 1. * count_tiles(p, tile) * shares,
               at_once = tile.at_once * multiprocessors;
  const double waves = std::floor(blocks / at_once);                            // full ones
  const double left = std::ceil((blocks - waves * at_once) / multiprocessors);  // for each
  const auto one_k = [&](double tiles) {
    return tiles == 0 ? 0 : std::hypot(tiles * tile.shared, tile.alone);
  };
  // Element by element, where rows begin anywhere, loads take longer.
  const double loads = is_odd(p.lda, p.type) || is_odd(p.ldb, p.type) ? 1.06 : 1;
  const double k = 16 * std::ceil(std::ceil(p.k / 16.) / shares);  // of a share, in whole parts
  const double product = (waves * one_k(tile.at_once) + one_k(left)) * loads * k +
                         (waves + (left > 0)) * wave_cycles(tile.rows, tile.columns);
  if (shares == 1) return product;
  // Another kernel reads the sums again: 32 bytes a cycle and multiprocessor, written or read.
  constexpr double kLaunch = 6000;
  return product + kLaunch + (2. * shares + 1) * p.m * p.n * 4 / (32. * multiprocessors);
}
// snippet-end cycles

// snippet-begin shares
SharePlan share_plan(const Problem& p, int multiprocessors) {
  SharePlan best{};
  const auto try_tiles = [&](const TileCost& tile) {
    const std::int64_t parts = has_product(p) ? (p.k + 15) / 16 : 1,
                       fit = std::int64_t{multiprocessors} * tile.at_once / count_tiles(p, tile);
    // More shares only if the longest becomes shorter; and no more than run at one time.
    for (std::int64_t shares = 1; shares == 1 || shares <= fit;) {
      const double time = cycles(p, tile, shares, multiprocessors);
      if (best.shares == 0 || time < best.cycles) best = {tile.columns, shares, time};
      const std::int64_t longest = (parts + shares - 1) / shares;
      if (longest <= 2) break;
      shares = (parts + longest - 2) / (longest - 1);
    }
  };
  if (is_few_rows(p)) {
    try_tiles(kFewRowsTile);
  } else {
    for (const TileCost& tile : kShareTiles) try_tiles(tile);
  }
  return best;
}
// snippet-end shares

std::int64_t shares_bytes(const Problem& p) {
  if (is_empty(p)) return 0;
  const std::int64_t shares = share_plan(p, tile::device().multiprocessors).shares;
  return shares == 1 ? 0 : tile::product({shares, p.m, ld_of_sums(p), 4});
}

tile::Status takes_shares(const Problem& p, const Buffers& buffers, const tile::Device& d) {
  if (!is_few_rows(p)) {
    if (p.k > INT32_MAX) return tile::unsupported("k", "its blocks count in 32 bits");
    if (cycles(p, kDoubleBuffered, 1, d.multiprocessors) <=
        share_plan(p, d.multiprocessors).cycles) {
      return tile::unsupported("m, n and k", "whole tiles of 128 x 128 take less time");
    }
  }
  return tile::check_workspace(shares_bytes(p), buffers.workspace_bytes);
}

// Step `stream_k`: how long a plan takes.
// snippet-begin stream_cycles
static double stream_cycles(const StreamPlan& plan, int multiprocessors) {
  // Tiles by vectors take as long as in double_buffered, and tiles of 64 rows by words longer.
  const double shared = plan.words ? 86 : kDoubleBuffered.shared,
               alone = plan.words ? 129 : kDoubleBuffered.alone;
  const double blocks = std::ceil(1. * plan.pieces / multiprocessors);
  const double one_k = std::hypot(blocks * shared, alone),
               whole = 1. * (plan.tiles - plan.line) / plan.pieces * plan.tile,  // iterations
      product =
          one_k * 8 * whole + wave_cycles(plan.words ? stream_rows<true> : stream_rows<false>, 128);
  if (plan.line == 0) return product;
  // Blocks that begin within a tile share fewer loads. A launch more clears the counters. A block
  // begins anew for each tile of its piece, and the one with a tile's last k reads the other
  // blocks' sums, block after block.
  constexpr double kShareLess = 1.02, kCut = 8500, kPart = 1350;
  return product + one_k * 8 * kShareLess * (plan.length + (plan.longer > 0)) + kCut +
         kPart * (plan.tile / std::max(plan.length, 1u) + 1);
}
// snippet-end stream_cycles

// snippet-begin stream_plan
StreamPlan stream_plan(const Problem& p, int multiprocessors) {
  StreamPlan best{};
  if (!has_product(p)) return best;
  const auto try_plan = [&](bool words, std::int64_t tiles, std::int64_t line,
                            std::int64_t pieces) {
    const std::int64_t tile = (p.k - 1) / 8 + 1;
    const auto number = [](std::int64_t x) { return static_cast<unsigned>(x); };
    const StreamPlan plan{words,
                          number(tiles),
                          number(line),
                          number(tile),
                          number(pieces),
                          number(line * tile / pieces),
                          number(line * tile % pieces)};
    const auto time = [&](const StreamPlan& x) { return stream_cycles(x, multiprocessors); };
    if (best.pieces == 0 || time(plan) < time(best)) best = plan;
  };
  for (const bool words : {false, true}) {
    if (!words && (is_odd(p.lda, p.type) || is_odd(p.ldb, p.type))) continue;
    const int rows = words ? stream_rows<true> : stream_rows<false>;
    const std::int64_t tiles = ((p.m - 1) / rows + 1) * ((p.n - 1) / 128 + 1);
    const std::int64_t all = tile::product({tiles, (p.k - 1) / 8 + 1});
    if (all > INT32_MAX || p.k > INT32_MAX - 8) continue;  // kernels count in 32 bits
    // The blocks that run at one time, and the tiles in the line: less than two waves of them.
    const std::int64_t blocks = std::int64_t{kStreamThreads / rows} * multiprocessors;
    const std::int64_t last = tiles < 2 * blocks ? tiles : tiles % blocks + blocks;
    if (tiles <= blocks) try_plan(words, tiles, 0, tiles);
    if (tiles % blocks == 0) {
      try_plan(words, tiles, 0, blocks);
    } else {  // no piece has less than eight iterations
      try_plan(words, tiles, last, std::min(blocks, (all - 1) / 8 + 1));
    }
  }
  return best;
}
// snippet-end stream_plan

std::int64_t stream_bytes(const Problem& p) {
  if (is_empty(p)) return 0;
  const StreamPlan plan = stream_plan(p, tile::device().multiprocessors);
  if (plan.line == 0) return 0;
  const std::int64_t rows = plan.words ? stream_rows<true> : stream_rows<false>;
  return 4 * (stream_counters(plan) + plan.pieces * rows * 128);
}

tile::Status can_stream_k(const Problem& p, const Buffers& buffers, const tile::Device& d) {
  if (stream_plan(p, d.multiprocessors).pieces == 0) {
    return tile::unsupported("m, n and k", "no product, or too many iterations");
  }
  return tile::check_workspace(stream_bytes(p), buffers.workspace_bytes);
}

tile::Status takes_stream_k(const Problem& p, const Buffers& buffers, const tile::Device& d) {
  TILE_TRY(can_stream_k(p, buffers, d));
  const StreamPlan plan = stream_plan(p, d.multiprocessors);
  if (is_few_rows(p)) return tile::unsupported("m", "few rows are for step `shares`");
  const double whole = cycles(p, kDoubleBuffered, 1, d.multiprocessors);
  if (stream_cycles(plan, d.multiprocessors) >=
      std::min(whole, share_plan(p, d.multiprocessors).cycles)) {
    return tile::unsupported("m, n and k", "whole tiles, or shares of k, take less time");
  }
  return {};
}

}  // namespace matmul
