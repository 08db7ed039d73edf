// Chapter 05's tests: every step on every type, with every option.
#include <algorithm>
#include <array>

#include "test_support.hpp"

namespace flash_attention {
namespace {

constexpr std::int64_t kDims[] = {16, 32, 64, 128, 256};

struct Window {
  std::int64_t left, right;
};
constexpr Window kWindows[] = {{kUnlimited, kUnlimited}, {kUnlimited, 0}, {31, 0}, {20, 5}};

/// For a step that takes no more.
constexpr tile::Lengths kFewQueries[] = {{1, 300}, {3, 129}, {15, 31}, {16, 70}};

template <class Step>
std::vector<Case> drawn_cases(const Step& step, DType type) {
  const std::int64_t usual = usual_dim(step, type);
  const bool few_only = !takes(step, full(type, {1, 1, 1, 17, 64, usual})) &&
                        takes(step, full(type, {1, 1, 1, 16, 64, usual}));
  const std::span<const tile::Lengths> of_step = few_only ? kFewQueries
                                                 : step.types.contains(DType::fp32)
                                                     ? tile::kShortLengths
                                                     : tile::kLengths;
  const auto lengths = taken(step, of_step, [&](const tile::Lengths& n) {
    return full(type, {1, 1, 1, n.queries, n.keys, usual});
  });
  const auto dims = taken(step, kDims, [&](std::int64_t dim) {
    return full(type, {1, 1, 1, lengths[0].queries, lengths[0].keys, dim});
  });
  return tile::drawn_cases(step.number, [&](tile::Pick& pick) {
    Case c = tile::drawn_case(pick, type, dims, lengths);
    const auto [left, right] = pick(kWindows);
    return windowed(c, left, right);
  });
}

/// What a step's own kernel needs to show all it does, whatever else is drawn.
struct Border {
  bool is_forward;
  std::string_view step;
  Sizes sizes;
  std::int64_t left = tile::kUnlimited, right = 0;
  bool is_on_one = false;  // multiprocessor
};
constexpr Border kBorders[] = {
    {true, "scores", {1, 1, 1, 33, 65, 48}},
    {true, "tiles", {1, 1, 1, 33, 65, 48}},
    {true, "mma", {1, 1, 1, 65, 129, 64}},
    {true, "mma", {1, 1, 1, 65, 129, 128}},
    {true, "mma", {1, 1, 1, 65, 129, 256}},
    // Two buffers of 64 keys, or of 32.
    {true, "pipeline", {1, 1, 1, 65, 321, 64}},
    {true, "pipeline", {1, 1, 1, 65, 321, 128}},
    {true, "warp_tiles", {1, 1, 1, 129, 321, 64}},
    {true, "warp_tiles", {1, 1, 1, 129, 161, 128}},
    {true, "lazy", {1, 1, 1, 129, 321, 64}},
    {true, "lazy", {1, 1, 1, 129, 161, 128}},
    // Of 128, 64 or 32.
    {true, "interleaved", {1, 1, 1, 129, 641, 16}},
    {true, "interleaved", {1, 1, 1, 129, 641, 32}},
    {true, "interleaved", {1, 1, 1, 129, 641, 64}},
    {true, "interleaved", {1, 1, 1, 129, 321, 128}},
    {true, "interleaved", {1, 1, 1, 65, 161, 256}},
    // Five of 64 keys; of so many batch entries a block has all tiles. Only the first has them all.
    {true, "split_keys", {133, 1, 1, 1, 10 * 64 + 1, 64}},
    {true, "split_keys", {1, 15, 3, 16, 700, 64}},
    {true, "split_keys", {1, 15, 3, 16, 129, 256}},
    // More queries than are always few: two blocks of rows, and the last of them has few.
    {true, "split_keys", {1, 4, 2, 35, 1001, 128}},
    // Eight or four of 128 keys or values.
    {true, "wgmma", {1, 1, 1, 193, 11 * 128 + 1, 64}},
    {true, "wgmma", {1, 1, 1, 129, 5 * 128 + 1, 128}},
    {true, "turns", {1, 1, 1, 193, 11 * 128 + 1, 64}},
    {true, "turns", {1, 1, 1, 129, 5 * 128 + 1, 128}},
    {true, "queue", {1, 1, 1, 193, 11 * 128 + 1, 64}},
    {true, "queue", {1, 1, 1, 129, 5 * 128 + 1, 128}},
    {true, "persistent", {1, 1, 1, 193, 11 * 128 + 1, 64}},
    {true, "persistent", {1, 1, 1, 129, 5 * 128 + 1, 128}},
    {true, "e4m3", {1, 1, 1, 193, 11 * 128 + 1, 64}},
    {true, "e4m3", {1, 1, 1, 129, 9 * 128 + 1, 128}},
    {true, "tile_sums", {1, 1, 1, 193, 11 * 128 + 1, 64}},
    {true, "tile_sums", {1, 1, 1, 129, 9 * 128 + 1, 128}},
    // The second entry's last tile has three keys and rows to clear; not all consumers see it.
    {true, "turns", {2, 1, 1, 193, 262, 64}},
    {true, "queue", {2, 1, 1, 193, 262, 64}},
    {true, "persistent", {2, 1, 1, 193, 262, 64}},
    {true, "e4m3", {2, 1, 1, 193, 262, 64}},
    {true, "tile_sums", {2, 1, 1, 193, 262, 64}},
    // Two queries' stages, of one block; two entries of four have one key only.
    {true, "queue", {4, 1, 1, 385, 385, 64}, tile::kUnlimited, 0, true},
    {true, "queue", {4, 2, 1, 129, 257, 128}, tile::kUnlimited, 0, true},
    {true, "persistent", {4, 1, 1, 385, 385, 64}, tile::kUnlimited, 0, true},
    {true, "persistent", {4, 2, 1, 129, 257, 128}, tile::kUnlimited, 0, true},
    {true, "e4m3", {4, 1, 1, 385, 385, 64}, tile::kUnlimited, 0, true},
    {true, "e4m3", {4, 2, 1, 129, 257, 128}, tile::kUnlimited, 0, true},
    {true, "tile_sums", {4, 1, 1, 385, 385, 64}, tile::kUnlimited, 0, true},
    {true, "tile_sums", {4, 2, 1, 129, 257, 128}, tile::kUnlimited, 0, true},
    // Four stages of 80 keys; outputs beside ones of no keys, of one and of two tiles.
    {true, "wide", {1, 1, 1, 129, 5 * 80 + 1, 256}},
    {true, "wide", {4, 2, 1, 129, 257, 256}, tile::kUnlimited, 0, true},
    // Five stages; of so many heads a block has all tiles. Five tiles in shares of two, two and
    // one. Packs of four heads; with a window, parts that see nothing.
    {true, "split_tiles", {11, 7, 1, 1, 7 * 128 + 1, 128}},
    {true, "split_tiles", {8, 5, 1, 1, 601, 64}},
    {true, "split_tiles", {1, 8, 2, 21, 601, 64}},
    {true, "split_tiles", {2, 12, 3, 35, 501, 128}, 200, 2},
    // Ten heads, more than blocks take in a section, of two tiles.
    {true, "warp_tiles", {2, 5, 1, 129, 65, 64}},
    {true, "lazy", {2, 5, 1, 129, 65, 64}},
    {true, "interleaved", {2, 5, 1, 129, 65, 64}},
    {true, "wgmma", {2, 5, 1, 193, 65, 64}},
    {true, "turns", {2, 5, 1, 193, 65, 64}},
    {true, "queue", {2, 5, 1, 193, 65, 64}, tile::kUnlimited, tile::kUnlimited},
    {true, "persistent", {2, 5, 1, 193, 65, 64}, tile::kUnlimited, tile::kUnlimited},
    // One block, for which 8, 4, 16 or 64 heads are packed.
    {true, "persistent", {1, 8, 1, 17, 129, 64}, tile::kUnlimited, 0, true},
    {true, "wide", {2, 12, 3, 21, 81, 256}, 30, 2, true},
    {true, "persistent", {1, 16, 1, 17, 129, 128}, tile::kUnlimited, 0, true},
    {true, "persistent", {1, 64, 1, 19, 129, 64}, tile::kUnlimited, 0, true},
    {false, "scores", {1, 1, 1, 33, 65, 48}},
    {false, "tiles", {2, 6, 2, 33, 65, 48}},
    {false, "mma", {1, 1, 1, 129, 129, 64}},
    {false, "mma", {1, 1, 1, 129, 65, 256}},
    {false, "warp_tiles", {1, 1, 1, 129, 129, 64}},
    {false, "warp_tiles", {1, 1, 1, 129, 129, 128}},
    // Two of 64 queries, and where queries are kept two of 64 keys or 32.
    {false, "pipeline", {1, 1, 1, 321, 321, 32}},
    {false, "pipeline", {1, 1, 1, 321, 321, 64}},
    {false, "pipeline", {1, 1, 1, 321, 161, 128}},
    {false, "one_pass", {1, 1, 1, 321, 129, 32}},
    {false, "one_pass", {1, 1, 1, 321, 129, 64}},
    {false, "one_pass", {1, 1, 1, 321, 129, 128}},
    // Two tiles of 128 or of 64 queries, and of 128 keys.
    {false, "wgmma", {1, 1, 1, 641, 129, 64}},
    {false, "wgmma", {1, 1, 1, 321, 129, 128}},
    {false, "late_dq", {1, 1, 1, 641, 129, 64}},
    {false, "late_dq", {1, 1, 1, 321, 129, 128}},
    {false, "overlap", {1, 1, 1, 641, 129, 64}},
    {false, "overlap", {1, 1, 1, 321, 129, 128}},
    {false, "in_order", {1, 1, 1, 641, 129, 64}},
    {false, "in_order", {1, 1, 1, 321, 129, 128}},
    {false, "wide", {1, 1, 1, 321, 65, 256}},
    // Nothing is hidden, or scores of the first tile only: tiles end where queries and keys do. And
    // where one of these conditions does not hold.
    {false, "overlap", {1, 1, 1, 256, 384, 64}},
    {false, "in_order", {1, 1, 1, 256, 384, 64}},
    {false, "overlap", {1, 2, 1, 256, 256, 64}},
    {false, "overlap", {1, 1, 1, 256, 256, 64}, 40},
    {false, "overlap", {1, 1, 1, 256, 256, 64}, tile::kUnlimited, 5},
    {false, "overlap", {1, 2, 1, 256, 256, 64}, tile::kUnlimited, tile::kUnlimited},
    {false, "in_order", {1, 2, 1, 256, 256, 64}, tile::kUnlimited, tile::kUnlimited},
    {false, "overlap", {2, 1, 1, 256, 256, 64}, tile::kUnlimited, tile::kUnlimited},
    // Ten heads of keys, more than blocks take in a section, each of two heads of queries, of which
    // the first keys are seen by the first tiles only, and the last by the last.
    {false, "pipeline", {2, 10, 5, 260, 260, 64}, 20},
    {false, "one_pass", {2, 10, 5, 260, 260, 64}, 20},
    {false, "wgmma", {2, 10, 5, 260, 260, 64}, 20},
    {false, "late_dq", {2, 10, 5, 260, 260, 64}, 20},
    {false, "overlap", {2, 10, 5, 260, 260, 64}, 20},
    {false, "in_order", {2, 10, 5, 260, 260, 64}, 20},
};

bool adds_in_any_order(std::string_view step) {  // to dq
  return step == "one_pass" || step == "wgmma" || step == "late_dq" || step == "overlap" ||
         step == "wide";
}

}  // namespace

TEST_SUITE("step") {
  TEST_CASE("random values: each value of an option with each value of the others") {
    for_each_step(
        [](const auto& step, DType type) {
          const std::vector<Case> cases = drawn_cases(step, type);
          for (std::size_t i = 0; i < cases.size(); ++i) {
            CHECK(takes(step, cases[i]));
            if (tile::takes_case(step, type, i)) check_step(step, cases[i], normal(cases[i]));
          }
        },
        tile::OwnKernel::must_run, tile::Types::all);
  }

  TEST_CASE("each step's own borders: all of its stages three times, a row beyond its tiles") {
    for_each_step([](const auto& step, DType type) {
      bool has_some = false;
      for (const Border& border : kBorders) {
        if (step.name != border.step || kIsForward<decltype(step)> != border.is_forward) continue;
        has_some = true;
        Case c = windowed(full(type, border.sizes), border.left, border.right);
        if (border.is_on_one) c.p.free_multiprocessors = tile::device().multiprocessors - 1;
        for (std::int64_t entry = 0; c.p.batch > 1 && entry < c.p.batch; ++entry) {
          const auto keys = static_cast<int>(c.p.keys), queries = static_cast<int>(c.p.queries);
          c.key_lengths.push_back(entry == 0 ? keys : entry == 1 ? keys - 3 : 1);
          // Rows past it are hidden from keys that all queries of a tile see, too. Tiles of queries
          // that are whole stay so.
          if (queries % 128 != 0) {
            c.query_lengths.push_back(entry == 1 && queries > 3 ? queries - 3 : queries);
          }
        }
        CHECK(takes(step, c));
        check_step(step, c, normal(c));
      }
      CHECK(has_some);
    });
  }

  TEST_CASE("a head dimension of any size") {
    for_each_step(
        [](const auto& step, DType type) {
          Cases cases(step, type);
          for (const std::int64_t dim : {1, 8, 24, 80, 100, 255}) {
            cases.check(step, causal(full(type, {2, 2, 1, 33, 35, dim})));
          }
        },
        tile::OwnKernel::need_not_run);
  }

  TEST_CASE("pointers and rows aligned in every way") {
    for_each_step([](const auto& step, DType type) {
      const Case aligned =
          fitted(step, causal(full(type, {1, 2, 1, 17, 18, usual_dim(step, type)})));
      check_step(step, aligned, normal(aligned.p));
      Cases cases(step, type);
      const std::int64_t half = 8 / static_cast<std::int64_t>(tile::size_bytes(type));
      for (const std::int64_t offset : {half, std::int64_t{1}, std::int64_t{3}}) {
        for (std::int64_t Case::Offsets::*each :
             {&Case::Offsets::q, &Case::Offsets::k, &Case::Offsets::v, &Case::Offsets::o,
              &Case::Offsets::dout, &Case::Offsets::dq, &Case::Offsets::dk, &Case::Offsets::dv}) {
          Case c = aligned;
          c.offset.*each = offset;
          cases.check(step, c);
        }
        for (tile::TensorView AttentionForward::*each :
             {&AttentionForward::q, &AttentionForward::k, &AttentionForward::v,
              &AttentionForward::o}) {
          Case c = aligned;
          (c.p.*each).stride.row += offset;
          cases.check(step, c);
        }
      }
    });
  }

  TEST_CASE("large scores, rising and falling along the keys") {
    for_each_step([](const auto& step, DType type) {
      const std::int64_t dim = usual_dim(step, type);
      const Case c = fitted(step, full(type, {1, 1, 1, 64, 300, dim}));
      const auto columns = static_cast<std::size_t>(dim);
      Inputs in = normal(c.p);
      for (const double slope : {0.02, 1.0, -1.0}) {
        for (std::size_t key = 0; key < 300; ++key) {
          in.k[key * columns] = as_type(slope * (static_cast<double>(key) - 150), type);
        }
        for (std::size_t i = 0; i < in.q.size(); i += columns) in.q[i] = 16;
        if (takes(step, c)) check_step(step, c, in);
      }
    });
  }

  TEST_CASE("scores far below zero: a key past the end has no weight") {
    for_each_step([](const auto& step, DType type) {
      const std::int64_t dim = usual_dim(step, type);
      const Case c = fitted(step, full(type, {1, 1, 1, 256, 250, dim}));
      Inputs in = normal(c.p);
      const auto columns = static_cast<std::size_t>(dim);
      // Scores near -160. That of zeros past the end would have a weight of e^160, infinite in
      // fp32.
      const double key = as_type(-10 / static_cast<double>(c.p.scale), type);
      for (std::size_t i = 0; i < in.q.size(); i += columns) in.q[i] = 16;
      for (std::size_t i = 0; i < in.k.size(); i += columns) in.k[i] = key;
      if (takes(step, c)) check_step(step, c, in);
    });
  }

  TEST_CASE("the least scales: lse divided by the second one is infinite in fp32") {
    for_each_step([](const auto& step, DType type) {
      Case c = fitted(step, full(type, {1, 1, 1, 40, 70, usual_dim(step, type)}));
      for (const float scale : {1e-30f, 1.2e-38f}) {
        c.p.scale = scale;
        if (takes(step, c)) check_step(step, c, normal(c.p));
      }
    });
  }

  TEST_CASE("many keys of little weight: what is 2^-10 of the greatest is not lost") {
    tile::for_each_step(kForwardLadder, [](const auto& step, DType type) {
      const std::int64_t dim = usual_dim(step, type);
      const Case c = fitted(step, full(type, {1, 1, 1, 64, 640, dim}));
      const auto columns = static_cast<std::size_t>(dim);
      Inputs in = normal(c.p);
      for (std::size_t i = 0; i < in.q.size(); ++i) in.q[i] = i % columns == 0 ? 16 : 0;
      for (std::size_t i = 0; i < in.v.size(); ++i) in.v[i] = i < columns ? 0 : 1;
      // 16 times this, scaled, is 10.1 in units of log2.
      const double below = -as_type(7 / (16.0 * static_cast<double>(c.p.scale)), type);
      for (std::size_t i = columns; i < in.k.size(); i += columns) in.k[i] = below;
      in.k[0] = 0;
      if (takes(step, c)) check_step(step, c, in);
    });
  }

  TEST_CASE("a key of a later tile outweighs all before, wherever in the tile it stands") {
    tile::for_each_step(kForwardLadder, [](const auto& step, DType type) {
      const std::int64_t dim = usual_dim(step, type);
      const Case c = fitted(step, full(type, {1, 1, 1, 64, 256, dim}));
      Inputs in = normal(c.p);
      std::ranges::fill(in.q, 0), std::ranges::fill(in.k, 0);
      for (std::int64_t i = 0; i < c.p.queries; ++i) {
        in.q[static_cast<std::size_t>(i * dim + i)] = 16;
      }
      // Each 16 queries have theirs at other places of four: 2 i, 2 i + 1, 2 i + 8 or 2 i + 9.
      for (std::int64_t i = 0; i < 64; ++i) {
        const std::int64_t of_four = i / 32 * 8 + i / 16 % 2;
        const std::int64_t key = 192 + i % 16 / 4 * 16 + i % 4 * 2 + of_four;
        in.k[static_cast<std::size_t>(key * dim + i)] = 16;
      }
      if (takes(step, c)) check_step(step, c, in);
    });
  }

  TEST_CASE("a row has the same bits, whatever the greatest scores of its neighbours are") {
    tile::for_each_step(kForwardLadder, [](const auto& step, DType type) {
      const std::int64_t dim = usual_dim(step, type);
      const Case c = fitted(step, full(type, {1, 1, 1, 64, 256, dim}));
      if (!takes(step, c)) return;
      Inputs in = normal(c.p);
      std::ranges::fill(in.q, 0);
      const auto columns = static_cast<std::size_t>(dim);
      in.q[0] = in.q[columns + 1] = 16;  // query 0 asks for column 0 of the keys, query 1 for 1
      for (std::size_t key = 0; key < 256; ++key) {
        in.k[key * columns] = -static_cast<double>(key % 8) / 8, in.k[key * columns + 1] = 0;
      }
      in.k[192 * columns] = 0.75;  // above those before, but a weight that fits
      const Values alone = run(step, c, in).o;
      in.k[193 * columns + 1] = 8;
      const Values beside = run(step, c, in).o;
      CHECK(std::equal(alone.begin(), alone.begin() + dim, beside.begin()));
    });
  }

  TEST_CASE("multiprocessors that are left free change no bit") {
    tile::for_each_step(kForwardLadder, [](const auto& step, DType type) {
      const std::int64_t dim = usual_dim(step, type);
      Case c = fitted(step, full(type, {2, 2, 1, 257, 129, dim}));
      if (!takes(step, c)) return;
      const Inputs in = normal(c.p);
      const Values all = run(step, c, in).o;
      for (const int free : {tile::device().multiprocessors - 1, 1 << 30}) {
        c.p.free_multiprocessors = free;
        CHECK(run(step, c, in).o == all);
      }
    });
  }

  TEST_CASE("equal scores: the output is the mean of what is seen, to the bit") {
    tile::for_each_step(kForwardLadder, [](const auto& step, DType type) {
      const std::int64_t dim = usual_dim(step, type);
      const std::int64_t n = fitted(step, full(type, {1, 2, 1, 128, 128, dim})).p.queries;
      const Case c = causal(full(type, {1, 2, 1, n, n, dim}));
      const auto columns = static_cast<std::size_t>(dim);
      Inputs in = normal(c.p);
      for (double& q : in.q) q = 0;
      in.v = tile::integers(std::ssize(in.v), type, 34, -8, 8);
      const Outputs got = run(step, c, in);
      for (std::size_t query = 0; query < static_cast<std::size_t>(n); query = 2 * query + 1) {
        for (std::size_t d = 0; d < columns; ++d) {
          double sum = 0;
          for (std::size_t key = 0; key <= query; ++key) sum += in.v[key * columns + d];
          const double mean = as_type(sum / static_cast<double>(query + 1), output_type(c.p));
          CHECK(got.o[(query * 2 + 1) * columns + d] + 0.0 == mean + 0.0);
        }
      }
    });
  }

  // Other properties, as that keys can be permuted, that o is linear in v, or that parts can be
  // merged by lse, follow from the bounds around the reference.
  TEST_CASE("to the bit: of one key its value; a window as long as the keys hides nothing") {
    tile::for_each_step(kForwardLadder, [](const auto& step, DType type) {
      const std::int64_t dim = usual_dim(step, type);
      const auto columns = static_cast<std::size_t>(2 * dim);  // of a row's heads
      const Case one = fitted(step, full(type, {2, 2, 2, 33, 1, dim}));
      const Inputs in = normal(one.p);
      const Values o = run(step, one, in).o;
      for (std::size_t i = 0; i < o.size(); ++i) {
        const std::size_t entry = i / (o.size() / 2);
        CHECK(o[i] == in.v[entry * columns + i % columns]);
      }
      const Case c = fitted(step, causal(full(type, {1, 1, 1, 70, 70, dim})));
      const Inputs of_c = normal(c.p);
      CHECK(run(step, c, of_c).o == run(step, windowed(c, c.p.keys, 0), of_c).o);
    });
  }

  TEST_CASE("what a query does not see changes no bit of its output or its gradient") {
    for_each_step([](const auto& step, DType type) {
      const std::int64_t dim = usual_dim(step, type);
      const Case c = fitted(step, causal(full(type, {1, 1, 1, 130, 130, dim})));
      const auto columns = static_cast<std::size_t>(dim);
      // The first half of the queries does not see the keys beside the others.
      const auto half = static_cast<std::size_t>(c.p.queries / 2);
      const std::size_t first = static_cast<std::size_t>(c.p.keys - c.p.queries) + half;
      Inputs in = normal(c.p);
      const auto outputs = [&](const BackwardOnly& more) {
        if constexpr (kIsForward<std::remove_cvref_t<decltype(step)>>) {
          return run(step, c, in).o;
        } else {
          return run(step, c, in, more).dq;
        }
      };
      const BackwardOnly more = backward_only(c, in);
      const Values before = outputs(more);
      for (std::size_t i = first * columns; i < in.k.size(); ++i) {
        in.k[i] = as_type(in.k[i] * 1000, type);
        in.v[i] = as_type(in.v[i] * 1000, type);
      }
      const Values after = outputs(more);
      CHECK(std::equal(&before[0], &before[half * columns], &after[0]));
      CHECK(before != after);
    });
  }

  TEST_CASE("a NaN in a query is in its own row and in no other") {
    tile::for_each_step(kForwardLadder, [](const auto& step, DType type) {
      const std::int64_t dim = usual_dim(step, type);
      const Case c = fitted(step, causal(full(type, {1, 1, 1, 40, 150, dim})));
      const auto columns = static_cast<std::size_t>(dim);
      Inputs in = normal(c.p);
      const Outputs before = run(step, c, in);
      constexpr std::size_t kRow = 5;
      in.q[kRow * columns + 3] = kNaN;
      const Outputs after = run(step, c, in);
      for (std::size_t row = 0; row < before.lse.size(); ++row) {
        CHECK((std::isnan(after.lse[row]) ? row == kRow : after.lse[row] == before.lse[row]));
        for (std::size_t i = row * columns; i < (row + 1) * columns; ++i) {
          CHECK((row == kRow ? std::isnan(after.o[i]) : after.o[i] == before.o[i]));
        }
      }
    });
  }

  TEST_CASE("without a gradient of the output all gradients are exact zeros") {
    tile::for_each_step(kBackwardLadder, [](const auto& step, DType type) {
      const Case c = causal(full(type, {1, 2, 1, 70, 90, usual_dim(step, type)}));
      const Inputs in = normal(c.p);
      BackwardOnly more = backward_only(c, in);
      for (double& x : more.dout) x = 0;
      const Gradients got = run(step, c, in, more);
      for (const Values* each : {&got.dq, &got.dk, &got.dv}) {
        CHECK(std::all_of(each->begin(), each->end(), [](double x) { return x == 0; }));
      }
    });
  }

  TEST_CASE("the gradients are the same to the bit each time, but for dq added in any order") {
    tile::for_each_step(kBackwardLadder, [](const auto& step, DType type) {
      const bool simulated = tile::device().simulated;
      // Four tiles of keys or more, of which the third takes off what the second adds to the first
      // element of dq. What the others add is so little that it is rounded where it is added in
      // between: in another order dq would be another. That element enters no score.
      const std::int64_t dim = usual_dim(step, type);
      const Case c =
          full(type, {1, simulated ? 2 : 8, simulated ? 1 : 4, 64, simulated ? 512 : 1152, dim});
      const auto columns = static_cast<std::size_t>(dim);
      Inputs in = normal(c.p);
      for (std::size_t i = 0; i < in.q.size(); i += columns) in.q[i] = 0;
      const std::size_t row = static_cast<std::size_t>(c.p.kv_heads) * columns;
      for (std::size_t i = 0; i < in.k.size(); i += columns) in.k[i] = as_type(in.k[i] / 16, type);
      for (std::size_t i = 128 * row; i < 256 * row; ++i) {
        if (i % columns == 0) in.k[i] = 32'768;
        in.k[128 * row + i] = i % columns == 0 ? -in.k[i] : in.k[i];
        in.v[128 * row + i] = in.v[i];
      }
      BackwardOnly more{in.q, Values(in.q.size() / columns, 6),
                        tile::normal(std::ssize(in.q), type, 34)};
      const Gradients first = run(step, c, in, more);
      const auto same = [](const Values& a, const Values& b) {
        return std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
      };
      bool dq_is_same = true;
      // The check build, twenty times slower, looks for races itself.
      const bool checks = simulated && !tile::device_reads_host_memory();
      // one_pass shows that the test can tell the difference: two orders may give the same by
      // chance, thirty not. On a GPU the order may be the same each time.
      const bool differs = step.name == "one_pass" && simulated && !checks;
      // in_order must do in each of them what it does in none by chance.
      const bool waits = step.name == "in_order" && simulated && !checks;
      const int runs = !simulated ? 50 : waits ? 30 : differs ? 3 : 2;
      for (int seed = 1; seed < runs || (differs && dq_is_same && seed < 30); ++seed) {
        tile::shuffle_device(static_cast<std::uint64_t>(seed));
        const Gradients again = run(step, c, in, more);
        CHECK(same(again.dk, first.dk));
        CHECK(same(again.dv, first.dv));
        dq_is_same = dq_is_same && same(again.dq, first.dq);
      }
      tile::shuffle_device(0);
      if (!adds_in_any_order(step.name)) CHECK(dq_is_same);
      if (differs) CHECK(!dq_is_same);
    });
  }

  TEST_CASE("no query, no key, no batch") {
    for_each_step(
        [](const auto& step, DType type) {
          for (const Sizes& n :
               {Sizes{2, 2, 1, 0, 5, 64}, {0, 2, 1, 5, 5, 64}, {2, 2, 1, 5, 0, 64}}) {
            const Case c = full(type, n);
            check_step(step, c, normal(c.p));
          }
        },
        tile::OwnKernel::need_not_run);
  }
}

TEST_SUITE("chapter") {
  // CTest runs this on the CPU device as 7.5 and as 8.6, too: both have less shared memory, and 7.5
  // has tensor cores for fp16 only.
  TEST_CASE("every head dimension on every card, and in step mma by its own kernel") {
    const auto check = [](const auto& ladder, const Case& c) {
      using Tested = tile::TestedStep<std::remove_cvref_t<decltype(ladder)>>;
      const std::size_t mma = find_step(ladder, "mma");
      for (std::size_t number = mma; number < ladder.steps.size(); ++number) {
        const Tested step{ladder.steps[number], &ladder, number};
        if (!step.types.contains(c.p.type)) continue;
        if (number > mma && !takes(step, c)) continue;  // then an earlier one runs it
        const std::size_t before = tile::own_runs();
        check_step(step, c, normal(c.p));
        CHECK(tile::own_runs() > before);
      }
    };
    for (const DType type : {DType::fp16, DType::bf16}) {
      const Status able = tile::check_requirements(k16Bits, {tile::Feature::bf16_mma}, type);
      const bool lacks_bf16 = tile::device().capability < 80 && type == DType::bf16;
      CHECK((able.message.rfind("bf16_mma: ", 0) == 0) == lacks_bf16);
      for (const std::int64_t dim : kDims) {
        if (lacks_bf16) continue;
        for (const std::int64_t queries : {65, 15}) {
          const Case c = causal(full(type, {1, 2, 1, queries, 70, dim}));
          check(kForwardLadder, c);
          check(kBackwardLadder, c);
        }
      }
    }
  }

  TEST_CASE("the mask's tiles are those that some query sees, and the whole ones that all see") {
    for (const int queries : {1, 5, 16, 33}) {
      for (const int keys : {0, 1, 7, 32, 40}) {
        for (const int left : {-3, 0, 1, 9, kMaxLength}) {
          for (const int right : {-3, 0, 2, 17, kMaxLength}) {
            const Mask mask{queries, keys, left, right};
            const Mask transposed = mask.transposed();
            bool good = true;
            for (int query = 0; query < queries; ++query) {
              for (int key = 0; key < keys; ++key) {
                const int place = query + keys - queries;
                const bool seen = key >= place - left && key <= place + right;
                good = good && mask.sees(query, key) == seen && transposed.sees(key, query) == seen;
              }
            }
            for (const int tile : {4, 8}) {
              for (int first = 0; first < queries; first += 8) {
                const Mask::Tiles tiles = mask.tiles(first, 8, tile);
                for (int t = 0; t < (keys + tile - 1) / tile; ++t) {
                  bool any = false, all = true;
                  for (int query = first; query < first + 8; ++query) {
                    for (int key = t * tile; key < (t + 1) * tile; ++key) {
                      const bool seen = query < queries && key < keys && mask.sees(query, key);
                      any = any || seen, all = all && seen;
                    }
                  }
                  good = good && (!any || (t >= tiles.first && t < tiles.last));
                  good = good && all == (t >= tiles.whole_first && t < tiles.whole_last);
                }
                good = good && tiles.first <= tiles.whole_first &&
                       tiles.whole_first <= tiles.whole_last && tiles.whole_last <= tiles.last;
                // A tile of keys finds this one, too: in_order counts on it.
                for (int t = 0; t < (keys + tile - 1) / tile; ++t) {
                  const Mask::Tiles back = transposed.tiles(t * tile, tile, 8);
                  good = good && (t >= tiles.first && t < tiles.last) ==
                                     (first / 8 >= back.first && first / 8 < back.last);
                }
              }
            }
            CAPTURE(queries);
            CAPTURE(keys);
            CAPTURE(left);
            CAPTURE(right);
            CHECK(good);
          }
        }
      }
    }
  }

  TEST_CASE("queries are few if tiles of them would leave most of a card idle") {
    CHECK(has_few_queries(full(DType::bf16, {64, 32, 32, 16, 64, 128}).p));
    CHECK(has_few_queries(full(DType::bf16, {1, 32, 8, 64, 4096, 128}).p));
    CHECK(!has_few_queries(full(DType::bf16, {1, 32, 8, 64, 480, 128}).p));
    CHECK(!has_few_queries(full(DType::bf16, {8, 32, 8, 64, 4096, 128}).p));
    CHECK(!has_few_queries(full(DType::bf16, {1, 16, 16, 8192, 8192, 64}).p));
    // These see 191 keys at most.
    const Case c = windowed(full(DType::bf16, {1, 32, 8, 64, 4096, 128}), 127, 0);
    CHECK(!has_few_queries(c.p));
  }

  TEST_CASE("the keys of tiles are divided if neither whole rows nor tiles of mma are faster") {
    CHECK(divides_tiles(full(DType::bf16, {1, 32, 8, 64, 65536, 128}).p));
    CHECK(divides_tiles(full(DType::bf16, {1, 32, 8, 64, 4096, 64}).p));
    CHECK(!divides_tiles(full(DType::bf16, {1, 32, 8, 1, 65536, 128}).p));
    CHECK(!divides_tiles(full(DType::bf16, {1, 32, 8, 64, 480, 128}).p));
    CHECK(!divides_tiles(full(DType::bf16, {4, 32, 8, 256, 16384, 128}).p));
    CHECK(!divides_tiles(windowed(full(DType::bf16, {1, 32, 8, 64, 65536, 128}), 127, 0).p));
  }

  TEST_CASE("so many heads are packed as leave the fewest rounds of tiles, and no more") {
    struct Packed {
      Sizes sizes;
      int rows;
      unsigned blocks;
      int log2;
    };
    // Each with its tiles, for 1, 2, 4 … heads.
    for (const Packed& each : {
             Packed{{16, 32, 4, 48, 8192, 128}, 128, 132, 1},  // 512, 256, 256, 192
             Packed{{16, 32, 4, 48, 8192, 64}, 192, 132, 2},   // 512, 256, 128, 128
             Packed{{1, 16, 1, 17, 8192, 64}, 192, 132, 0},    // 16, one round
             Packed{{1, 16, 1, 17, 8192, 64}, 192, 5, 2},      // 16, 8, 4, 2, 2
             Packed{{1, 16, 1, 17, 8192, 64}, 192, 1, 3},
             Packed{{1, 16, 1, 17, 8192, 128}, 128, 1, 4},    // 16, 8, 4, 4, 3
             Packed{{1, 64, 1, 19, 8192, 64}, 192, 1, 6},     // 64, 32, 16, 8, 8, 8, 7
             Packed{{1, 128, 1, 33, 8192, 128}, 128, 1, 6},   // 128, 128, 96, 80, 72, 68, 66
             Packed{{8, 12, 1, 17, 8192, 64}, 192, 1, 2},     // 96, 48, 24; 8 do not divide 12
             Packed{{8, 12, 2, 17, 8192, 64}, 192, 1, 1},     // 96, 48
             Packed{{8, 12, 4, 17, 8192, 64}, 192, 1, 0},     // 96
             Packed{{1, 8, 1, 8192, 8192, 128}, 128, 7, 0},   // 512 of any
             Packed{{1, 8, 1, kMaxLength, 1, 64}, 192, 1, 0}  // a pack's rows would not be ints
         }) {
      CAPTURE(each.sizes.queries);
      CAPTURE(each.blocks);
      CHECK(log2_pack_of(full(DType::bf16, each.sizes).p, each.rows, each.blocks) == each.log2);
    }
  }

  TEST_CASE("the backward reference is the slope of the forward one") {
    Case c = windowed(full(DType::fp64, {2, 4, 2, 5, 6, 3}), 3, 1);
    c.query_lengths = {4, 5};
    c.key_lengths = {6, 4};
    const Inputs in = normal(c.p);  // finite where there is no query
    const auto outputs = [&c](const tile::AttentionRows& rows) {
      return expected_of(c, {rows.q, rows.k, rows.v});
    };
    const ForwardExpected forward = expected_of(c, in);
    const BackwardOnly more{forward.o.value, forward.lse.value,
                            tile::normal(std::ssize(in.q), DType::fp64, 34)};
    tile::check_slopes({.q = in.q, .k = in.k, .v = in.v, .dout = more.dout},
                       expected_of(c, in, more), outputs);
  }
}

}  // namespace flash_attention
