// Chapter 03's tests: every step on every type and in every mode, in shapes and values.
#include <set>

#include "test_support.hpp"

namespace softmax {
namespace {

// Around what a thread, a lane's vectors, a warp and a block hold in the steps that keep a row in
// registers; and odd ones.
std::vector<std::int64_t> some_columns() {
  const std::vector<std::int64_t> odd = tile::odd_sizes(32);
  std::set<std::int64_t> all(odd.begin(), odd.end());
  for (const std::int64_t size :
       {4, 8, 128, 8 * 32, 16 * 32, 32 * 32, 2048, 4096, 8192, 16 * 1024}) {
    all.insert({size - 1, size, size + 1, size + 8});
  }
  return {all.begin(), all.end()};
}

// So long that registers cannot hold them, but shared memory of 1 to 16 blocks.
std::vector<std::int64_t> many_columns(bool log) {
  std::vector<std::int64_t> all{32 * 1024 - 1, 32 * 1024,     32 * 1024 + 1,
                                32 * 1024 + 8, 64 * 1024 + 8, 70'001};
  if (!log || !tile::device().simulated) all.insert(all.end(), {131'080, 300'040});
  if (!tile::device().simulated) {
    all.insert(all.end(), {131'072, 262'144, 262'145, 524'288, 524'296, 1'000'003, 1 << 20});
  }
  return all;
}

}  // namespace

TEST_SUITE("step") {
  TEST_CASE("exact results, at all sizes") {
    for_each_step([](const auto& step, DType type) {
      Cases cases(step, type);
      std::int64_t turn = 0;
      for (const bool log : {false, true}) {
        for (const std::int64_t cols : columns_of(step, some_columns())) {
          const auto p = plain(step, type, 1 + ++turn % 5, cols, log);
          if (cases.runs(step, p)) check_exact(step, p);
        }
      }
    });
  }

  TEST_CASE("exact results in long rows") {
    for_each_step([](const auto& step, DType type) {
      Cases cases(step, type);
      for (const bool log : {false, true}) {
        for (const std::int64_t cols : columns_of(step, many_columns(log))) {
          // What takes every row shows nothing more in the longest.
          if (!step.takes && cols > (tile::device().simulated ? 40'000 : 150'000)) continue;
          const auto p = plain(step, type, cols < 100'000 ? 2 : 1, cols, log);
          if (cases.runs(step, p)) check_exact(step, p);
        }
      }
    });
  }

  TEST_CASE("random values") {
    for_each_step(
        [](const auto& step, DType type) {
          Cases cases(step, type);
          for (const bool log : {false, true}) {
            // The longest for clusters of more than 32 warps, which merge what they have seen
            // twice.
            for (const std::int64_t cols :
                 columns_of(step, {2, 3, 7, 31, 33, 97, 113, 255, 257, 587, 799, 1023, 1025, 2056,
                                   5003, 33'000, 131'080})) {
              if (!step.takes && cols > 40'000) continue;
              const auto p = plain(step, type, cols < 100'000 ? 3 : 1, cols, log);
              if (cases.runs(step, p)) check_step(step, p, normal(p));
            }
          }
        },
        tile::OwnKernel::must_run, tile::Types::all);
  }

  TEST_CASE("many rows") {
    for_each_step([](const auto& step, DType type) {
      Cases cases(step, type);
      using Size = std::pair<std::int64_t, std::int64_t>;
      std::vector<Size> sizes{{129, 3}, {150, 8}, {65, 40}, {33, 130}, {9, 513}, {5, 1024}};
      sizes.push_back({7, step.shows.small[1]});
      if (!tile::device().simulated) {
        sizes.insert(sizes.end(), {{10'007, 5}, {10'007, 70}, {307, 4096}});
      }
      for (const bool log : {false, true}) {
        for (const auto& [rows, cols] : sizes) {
          const auto p = plain(step, type, rows, cols, log);
          if (cases.runs(step, p)) check_exact(step, p);
        }
      }
    });
  }

  // Steps that keep chunks in shared memory have 7 to 14 elements beside them, of 2 bytes, or 3 to
  // 6: before the chunks as many as the row's address says, after them the others.
  TEST_CASE("rows of chunks with single elements before and after them") {
    for_each_step(
        [](const auto& step, DType type) {
          if (step.name != "shared" && step.name != "cluster" && step.name != "queue") return;
          const std::int64_t vector = vector_length(type);
          // More than a block holds, or as in the tour.
          const std::int64_t cols =
              step.name == "queue" ? (128 * 1024 + 32) / (16 / vector) : step.shows.small[1];
          std::size_t number = 0;
          for (const bool log : {false, true}) {
            for (std::int64_t more = 1; more <= vector; ++more) {
              // Rows follow one another, and so begin in all ways, or in a few; or they all begin
              // `more` elements after a multiple of 16 bytes.
              const std::int64_t rows = more == 1 ? vector + 1 : 3;
              auto p = plain(step, type, rows, cols + more, log);
              Three offset{0, 0, 0};
              if (more == vector) {
                p = plain(step, type, 2, p.cols - vector, log);
                offset = {3, 3 + vector, 3 + 2 * vector};
              } else if (more % 3 == 2) {
                p = padded(p, {more, more + vector, more + 3 * vector});
                offset = {more, more + vector, more + 2 * vector};
              }
              REQUIRE(takes(step, p, offset));
              if (!tile::takes_case(step, type, number++)) continue;
              check_exact(step, p, offset);
              // The last visible column is one of the last, in the last chunks or after them.
              check_step(step, causal(p, p.rows), normal(p), offset);
            }
          }
        },
        tile::OwnKernel::need_not_run, tile::Types::all);
  }

  // A kernel that stays for several rows must keep them apart: what it knows of them, and in the
  // memory of one row the next one's chunks, of which causal rows have more or less.
  TEST_CASE("more long rows than a card holds at one time") {
    for_each_step(
        [](const auto& step, DType type) {
          if (!step.needs.contains(tile::Feature::cluster)) return;
          Cases cases(step, type);
          const std::int64_t rows = tile::device().simulated ? 24 : 312;
          const std::int64_t vector = vector_length(type);
          for (const bool log : {false, true}) {
            // 64 KiB and a little, which three blocks share with up to 32 KiB each; or 70,008.
            auto p = plain(step, type, rows, 4096 * vector + 5 * vector, log);
            if (!takes(step, p)) p = plain(step, type, rows / 4, step.shows.small[1], log);
            if (cases.runs(step, p)) check_exact(step, p);
            // Rows that begin otherwise than the one before.
            const auto odd = plain(step, type, p.rows, p.cols + 3, log);
            if (cases.runs(step, odd)) check_exact(step, odd);
            // The reference of so many rows takes its time.
            if (!tile::device().simulated && (log || !is_forward(p))) continue;
            if (cases.runs(step, p)) check_step(step, p, normal(p));
            if (cases.runs(step, causal(p, 6))) check_step(step, causal(p, 6), normal(p));
            if (cases.runs(step, causal(odd, 6))) check_step(step, causal(odd, 6), normal(odd));
            // 512 KiB and a little.
            const auto longer = plain(step, type, 5, 32'768 * vector + vector, log);
            if (!tile::device().simulated && cases.runs(step, causal(longer, 5))) {
              check_step(step, causal(longer, 5), normal(longer));
            }
          }
        },
        tile::OwnKernel::need_not_run);
  }

  TEST_CASE("rows for which the shared memory of a card, or of half a card, has no room") {
    for_each_step(
        [](const auto& step, DType type) {
          if (step.name != "split") return;
          const tile::Device& card = tile::device();
          // Of one matrix; backward there are two.
          const std::int64_t all = card.multiprocessors * card.shared_bytes_of_multiprocessor /
                                   static_cast<std::int64_t>(tile::size_bytes(type));
          const std::int64_t room = is_forward(plain(step, type, 1, 1)) ? all : all / 2;
          for (const bool log : {false, true}) {
            check_exact(step, plain(step, type, 1, room + 1001, log));
            // The block's room is a little less than its part of a multiprocessor.
            check_exact(step, plain(step, type, 2, room / 2 + 1, log));
            check_exact(step, causal(plain(step, type, 3, room / 2 + 1, log), 3));
          }
        },
        tile::OwnKernel::need_not_run);
  }

  TEST_CASE("pointers and rows aligned in every way") {
    for_each_step([](const auto& step, DType type) {
      const std::int64_t vector = vector_length(type);
      const Three offsets[] = {{0, 0, 0},
                               {1, 0, 0},
                               {0, 1, 0},
                               {0, 0, 1},
                               {1, 1, 1},
                               {3, 3, 3},
                               {vector, 0, 2 * vector}};
      const Three paddings[] = {
          {0, 0, 0}, {vector, 2 * vector, 3 * vector}, {1, 2, 3}, {1, 0, 0}, {0, 1, 0}, {0, 0, 1},
          {5, 5, 5}};
      // Whole vectors, unless offset or padding forbid it, and not: in a part of a warp, in a warp,
      // in a block. Their number has no divisor in common with those above.
      constexpr std::int64_t kCols[] = {40, 37, 264, 1000, 1032};
      Cases cases(step, type);
      std::size_t turn = 0;
      for (const bool log : {false, true}) {
        for (const Three offset : offsets) {
          for (const Three padding : paddings) {
            const std::int64_t cols = kCols[++turn % std::size(kCols)];
            const auto p = padded(plain(step, type, 3, cols, log), padding);
            if (cases.runs(step, p, offset)) check_exact(step, p, offset);
          }
        }
        // A step's own size, with each offset and each padding.
        for (std::size_t i = 0; i < std::size(offsets); ++i) {
          const auto p = padded(plain(step, type, 2, step.shows.small[1], log), paddings[i]);
          const Three offset = offsets[(i + 3) % std::size(offsets)];
          if (cases.runs(step, p, offset)) check_exact(step, p, offset);
        }
        // Whole vectors in all sizes.
        for (const std::int64_t cols : columns_of(step, {std::begin(kCols), std::end(kCols)})) {
          for (const Three padding : {paddings[0], paddings[1]}) {
            const auto p = padded(plain(step, type, 3, cols, log), padding);
            if (cases.runs(step, p, offsets[6])) check_exact(step, p, offsets[6]);
          }
        }
      }
    });
  }

  // Rows that follow one another at an odd distance begin at every distance from 16 bytes. The
  // columns are the fewest and the most of each plan of step registers: eight, 16 and 32 lanes, and
  // blocks of two and three warps.
  TEST_CASE("rows that begin anywhere, in chunks and ends") {
    for_each_step(
        [](const auto& step, DType type) {
          if (step.name != "registers") return;
          const std::int64_t vector = vector_length(type);
          std::size_t turn = 0;
          for (const std::int64_t chunk_cols :
               {8,   64,  72,  128, 136,  192,  200,  256,  264,  384, 392,
                512, 520, 768, 776, 1024, 1032, 1536, 1544, 2048, 2056}) {
            // One row of each distance; the last ones fill no block.
            const bool log = ++turn % 2 == 0;
            const std::int64_t cols = chunk_cols + (turn % 3 == 0 ? 2 * vector - 1 : vector + 1);
            const auto p = plain(step, type, vector + 1, cols, log);
            const std::int64_t odd = 1 - cols % 2;
            const auto alike = padded(p, {odd, odd + vector, odd + 2 * vector});
            const auto at = static_cast<std::int64_t>(turn) % vector;
            check_exact(step, alike, {at, at, at});
            check_step(step, alike, normal(p));
            // Rows that end in the tail, in a chunk and in the head.
            check_step(step, causal(alike, vector + 1), normal(p));
            const auto shorter = plain(step, type, cols, vector + 1, log);
            if (cols < 100) check_step(step, causal(shorter, cols), normal(shorter));
          }
        },
        tile::OwnKernel::need_not_run, tile::Types::all);
  }

  TEST_CASE("rows half a vector further apart, or shorter, than whole vectors") {
    // A check for less than the 16 bytes of a vector lets this pass.
    for_each_step(
        [](const auto& step, DType type) {
          const std::int64_t half = vector_length(type) / 2;
          for (const bool log : {false, true}) {
            for (const std::int64_t cols : columns_of(step, {40, 1032})) {
              const auto whole = plain(step, type, 2, cols, log);
              const auto shorter = plain(step, type, 2, cols - half, log);
              if (!takes(step, whole)) continue;
              for (const auto& p :
                   {padded(whole, {half, 0, 0}), padded(whole, {0, half, 0}),
                    padded(whole, {0, 0, half}), padded(shorter, {half, half, half})}) {
                if (takes(step, p)) check_exact(step, p);
              }
            }
          }
        },
        tile::OwnKernel::need_not_run);
  }

  TEST_CASE("rows far apart: a read of one too many meets a bad address") {
    for_each_step([](const auto& step, DType type) {
      Cases cases(step, type);
      for (const bool log : {false, true}) {
        for (const std::int64_t cols : columns_of(step, {5, 40, 300, 1100})) {
          constexpr std::int64_t kPadding = std::int64_t{1} << 17;
          const auto p = padded(plain(step, type, 2, cols, log), {kPadding, kPadding, kPadding});
          if (cases.runs(step, p)) check_exact(step, p);
        }
      }
    });
  }

  TEST_CASE("no rows, no columns, one column") {
    for_each_step(
        [](const auto& step, DType type) {
          for (const bool log : {false, true}) {
            for (const auto& [rows, cols] : {std::pair{0, 5}, {5, 0}, {0, 0}}) {
              check_step(step, plain(step, type, rows, cols, log), {});
            }
            check_step(step, causal(plain(step, type, 0, 5, log), 0), {});
            check_step(step, causal(plain(step, type, 0, 5, log), 3), {});

            // Everything is in the one column: 1, its logarithm 0, and nothing changes that.
            const auto p = plain(step, type, 29, 1, log);
            CAPTURE(step.name);
            const std::string problem = describe(p);
            CAPTURE(problem);
            const double only = is_forward(p) && !p.log ? 1 : 0;
            Inputs in{tile::adversarial_finite(29, type)};
            if (!is_forward(p)) in = {Values(29, p.log ? 0.0 : 1.0), tile::normal(29, type, 3)};
            if (takes(step, p)) CHECK(run(step, p, in) == Values(29, only));
          }
        },
        tile::OwnKernel::need_not_run);
  }

  TEST_CASE("denormals, large numbers and ramps") {
    for_each_step([](const auto& step, DType type) {
      Cases cases(step, type);
      for (const bool log : {false, true}) {
        for (const std::int64_t cols : columns_of(step, {31, 62, 300, 1057})) {
          const auto p = plain(step, type, 7, cols, log);
          if (!cases.runs(step, p)) continue;
          Inputs in = inputs_of(p, tile::adversarial_finite(p.rows * cols, type));
          if (!is_forward(p)) {
            in = normal(p);
            in.dy = tile::adversarial_finite(p.rows * cols, type);
            for (double& x : in.dy) {
              if (std::abs(x) > 1e30) x *= 0x1p-16;  // so that no sum overflows
            }
          }
          check_step(step, p, in);
        }
      }
    });
  }

  TEST_CASE("rows of large numbers, of very negative ones, ascending and descending") {
    for_each_step([](const auto& step, DType type) {
      Cases cases(step, type);
      for (const bool log : {false, true}) {
        for (const std::int64_t cols : columns_of(step, {37, 264, 1031, 9000})) {
          const auto p = plain(step, type, 5, cols, log);
          if (!cases.runs(step, p)) continue;
          Values x = tile::all_very_negative(5 * cols, type);
          const Values random = tile::normal(cols, type, 31);
          for (std::int64_t col = 0; col < cols; ++col) {
            const auto at = static_cast<std::size_t>(col);
            const auto n = static_cast<std::size_t>(cols);
            const double part = static_cast<double>(col) / static_cast<double>(cols);
            x[n + at] = random[at] * 1e4;
            x[2 * n + at] = 40 * part;  // each number is the greatest so far
            x[3 * n + at] = -40 * part;
            x[4 * n + at] = 1e4 + 8 * part;
          }
          tile::round_to(x, type);
          check_step(step, p, inputs_of(p, x));
        }
      }
    });
  }

  TEST_CASE("scale") {
    for_each_step([](const auto& step, DType type) {
      Cases cases(step, type);
      const std::vector<std::int64_t> all = columns_of(step, {45, 264, 1031, 40, 1032});
      std::size_t turn = 0;
      for (const bool log : {false, true}) {
        for (const float scale : {0.125f, 0.08838834764f, 3.7f, 1e-4f, 1e-42f, 1e30f}) {
          auto p = scaled(plain(step, type, 3, all[++turn % all.size()], log), scale);
          if (!takes(step, p)) p = scaled(plain(step, type, 1, all.back(), log), scale);
          if (cases.runs(step, p)) check_step(step, p, normal(p));
        }
      }
    });
  }

  TEST_CASE("a scale that is a power of two may as well be in x, to the bit") {
    for_each_step([](const auto& step, DType type) {
      for (const bool log : {false, true}) {
        for (const std::int64_t cols : columns_of(step, {37, 264, 1031})) {
          CAPTURE(step.name);
          const auto p = plain(step, type, 3, cols, log);
          if (!takes(step, p)) continue;
          const std::string problem = describe(p);
          CAPTURE(problem);
          Inputs in = normal(p);
          const Values with_scale = run(step, scaled(p, 4), in);
          for (double& x : is_forward(p) ? in.first : in.dy) x *= 4;  // dx is proportional to it
          const bool same = run(step, p, in) == with_scale;
          CHECK(same);
        }
      }
    });
  }

  TEST_CASE("a number added to a whole row changes nothing, to the bit") {
    tile::for_each_step(kForwardTests, [](const auto& step, DType type) {
      for (const bool log : {false, true}) {
        for (const std::int64_t cols : columns_of(step, {37, 264, 1031})) {
          CAPTURE(step.name);
          const ForwardProblem p = plain(step, type, 3, cols, log);
          if (!takes(step, p)) continue;
          const std::string problem = describe(p);
          CAPTURE(problem);
          // Integers, whose sums with the shift are exact in all types.
          Values x = tile::integers(3 * cols, type, 41, -20, 20);
          const Values before = run(step, p, {x});
          for (const double shift : {100.0, -200.0}) {
            for (double& each : x) each += shift;
            const bool same = run(step, p, {x}) == before;
            CHECK(same);
          }
        }
      }
    });
  }

  TEST_CASE("probabilities add up to 1") {
    tile::for_each_step(kForwardTests, [](const auto& step, DType type) {
      for (const std::int64_t cols : columns_of(step, {5, 37, 264, 1031})) {
        CAPTURE(step.name);
        CAPTURE(cols);
        const ForwardProblem p = plain(step, type, 4, cols);
        if (!takes(step, p)) continue;
        const Inputs in = normal(p);
        const Values y = run(step, p, in);
        const Values bound = reference(p, in.first).bound;
        for (std::size_t row = 0; row < 4; ++row) {
          double sum = 0, most = 0;
          for (std::size_t i = row * static_cast<std::size_t>(cols);
               i < (row + 1) * static_cast<std::size_t>(cols); ++i) {
            sum += y[i];
            most += bound[i];
          }
          CHECK(std::abs(sum - 1) <= most);
          CHECK(most < 0.02);
        }
      }
    });
  }

  TEST_CASE("repeated runs give the same bytes") {
    for_each_step([](const auto& step, DType type) {
      for (const bool log : {false, true}) {
        for (const std::int64_t cols : columns_of(step, {61, 1031})) {
          const auto p = plain(step, type, cols < 10'000 ? 9 : 2, cols, log);
          if (!takes(step, p)) continue;
          CAPTURE(step.name);
          const std::string problem = describe(p);
          CAPTURE(problem);
          const Inputs in = normal(p);
          const Values first = run(step, p, in);
          const int runs = tile::device().simulated ? 2 : 100;
          for (int i = 0; i < runs; ++i) {
            const bool same = run(step, p, in, {0, 0, 0}, tile::kOutputPoisons[i % 2]) == first;
            REQUIRE(same);
          }
        }
      }
    });
  }
}

}  // namespace softmax
