// Chapter 04's tests: every step on every type, in shapes, options and places.
#include "test_support.hpp"

namespace layernorm {
namespace {

// Around warps, blocks and chunks of 16 bytes, one and two of them; whole chunks that leave lanes
// without one; and primes.
constexpr std::int64_t kCols[] = {1,   2,   3,   7,   8,   9,   15,  16,   17,   31,  32,  33,
                                  40,  63,  64,  65,  97,  113, 127, 128,  129,  200, 255, 256,
                                  257, 511, 512, 513, 587, 776, 799, 1023, 1024, 1025};
constexpr std::int64_t kRows[] = {1, 2, 3, 5, 7};

Problem on_gpu(Problem p, std::int64_t rows) {
  if (!tile::device().simulated) p.rows = rows;
  return p;
}

}  // namespace

TEST_SUITE("step") {
  TEST_CASE("all sizes, with and without gamma and beta") {
    for_each_direction([](const Step& step, DType type, Direction direction) {
      tile::Selection selection(step.types, type);
      std::size_t turn = 0;
      for (const std::int64_t cols : kCols) {
        for (const Norm norm : kNorms) {
          ++turn;
          if (!selection.takes_next()) continue;
          // A block may have several of the short ones.
          const std::int64_t rows = kRows[turn % std::size(kRows)] + (cols <= 33 ? 26 : 0);
          const Problem p = toward(plain(type, rows, cols, norm), direction);
          check_step(step, p, normal(p, turn % 5 != 0, turn % 3 != 0));
        }
      }
    });
  }

  TEST_CASE("whatever may be null is null, alone and together") {
    for_each_direction([](const Step& step, DType type, Direction direction) {
      tile::Selection selection(step.types, type);
      for (const std::int64_t cols : {45, 264}) {
        for (const Norm norm : kNorms) {
          for (const bool gamma : {false, true}) {
            for (const bool beta : {false, true}) {
              for (const bool first : {false, true}) {
                for (const bool second : {false, true}) {
                  if (beta && (norm == Norm::rms || direction == Direction::backward)) continue;
                  if (!selection.takes_next()) continue;
                  const Problem p = toward(plain(type, 5, cols, norm), direction);
                  check_step(step, p, normal(p, gamma, beta), {first, second, first, second});
                }
              }
            }
          }
        }
      }
    });
  }

  TEST_CASE("long rows") {
    for_each_direction([](const Step& step, DType type, Direction direction) {
      std::vector<std::int64_t> lengths{2048,   5000,   8191,   8192,   8193,  8200,
                                        16'383, 16'384, 16'392, 32'768, 32'769};
      if (tile::device().simulated) {
        lengths.insert(lengths.end(), {40'000, 70'001, 70'008});  // 2 or 4 blocks of a cluster
      } else {
        lengths.insert(lengths.end(), {32'767, 65'536, 131'072, 131'080, 1'000'003, 1 << 20});
      }
      tile::Selection selection(step.types, type);
      std::int64_t turn = 0;
      for (const std::int64_t cols : lengths) {
        ++turn;
        if (!selection.takes_next() && cols < 40'000) continue;
        const Problem p = toward(plain(type, 1 + turn % 2, cols, kNorms[turn / 2 % 2]), direction);
        check_step(step, p, normal(p));
      }
    });
  }

  TEST_CASE("so many rows that a block has several") {
    for_each_direction([](const Step& step, DType type, Direction direction) {
      struct Shape {
        std::int64_t rows, cols, rows_on_gpu;
      };
      tile::Selection selection(step.types, type);
      std::size_t turn = 0;
      for (const Shape shape :
           {Shape{700, 70, 100'003}, Shape{203, 72, 100'003}, Shape{300, 33, 65'537},
            Shape{140, 264, 20'011}, Shape{131, 1032, 2011}, Shape{517, 8, 40'009},
            Shape{9, 12'296, 301}, Shape{8, 20'008, 301}}) {
        if (!selection.takes_next()) continue;
        const Norm norm = kNorms[turn++ % 2];
        const Problem p =
            on_gpu(toward(plain(type, shape.rows, shape.cols, norm), direction), shape.rows_on_gpu);
        check_step(step, p, normal(p));
      }
    });
  }

  TEST_CASE("pointers aligned in every way") {
    for_each_direction([](const Step& step, DType type, Direction direction) {
      constexpr std::int64_t Offsets::*kOf[] = {
          &Offsets::x,    &Offsets::gamma, &Offsets::beta, &Offsets::y,      &Offsets::mean,
          &Offsets::rstd, &Offsets::dy,    &Offsets::dx,   &Offsets::dgamma, &Offsets::dbeta};
      std::vector<Offsets> all{{}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {3, 3, 3, 3, 3, 3, 3, 3, 3, 3}};
      for (const auto of : kOf) {
        // Those that the direction has.
        const bool forward_only = of == &Offsets::beta || of == &Offsets::y;
        const bool backward_only = of == &Offsets::dy || of == &Offsets::dx ||
                                   of == &Offsets::dgamma || of == &Offsets::dbeta;
        if (direction == Direction::forward ? backward_only : forward_only) continue;
        for (const std::int64_t offset : {1, 3}) {
          all.emplace_back();
          all.back().*of = offset;
        }
      }
      tile::Selection selection(step.types, type);
      for (const Offsets& offsets : all) {
        for (const std::int64_t cols : {1032, 77}) {
          if (!selection.takes_next() && tile::size_bytes(type) == 2) continue;
          const Problem p = toward(plain(type, 5, cols), direction);
          check_step(step, p, normal(p), {.offsets = offsets});
        }
      }
    });
  }

  TEST_CASE("rows that do not follow one another, at distances of their own") {
    for_each_direction([](const Step& step, DType type, Direction direction) {
      tile::Selection selection(step.types, type);
      for (const Paddings padding :
           {Paddings{8, 16, 24, 32}, Paddings{1, 2, 3, 5}, Paddings{1, 0, 0, 0},
            Paddings{0, 1, 0, 0}, Paddings{0, 0, 1, 0}, Paddings{0, 0, 0, 1}, Paddings{4, 4, 4, 4},
            Paddings{0, 0, 0, 0}, Paddings{1000, 3000, 2000, 4000}}) {
        for (const std::int64_t cols : {1032, 77}) {
          for (const std::int64_t offset : {0, 1}) {
            if (!selection.takes_next()) continue;
            const Problem p = padded(toward(plain(type, 5, cols), direction), padding);
            check_step(step, p, normal(p),
                       {.offsets = {.x = offset, .y = offset, .dy = offset, .dx = offset}});
          }
        }
      }
    });
  }

  TEST_CASE("the output takes the place of an input") {
    for_each_direction([](const Step& step, DType type, Direction direction) {
      tile::Selection selection(step.types, type);
      std::size_t turn = 0;
      for (const Place place : {Place::on_x, Place::on_dy}) {
        if (place == Place::on_dy && direction == Direction::forward) continue;
        for (const std::int64_t cols : {1, 45, 264, 1032, 8200, 20'000}) {
          for (const std::int64_t padding : {0, 3, 8}) {
            if (!selection.takes_next()) continue;
            const Norm norm = kNorms[turn++ % 2];
            const Problem p =
                padded(toward(plain(type, cols < 8200 ? 5 : 2, cols, norm), direction),
                       {padding, padding, padding, padding});
            check_step(step, p, normal(p), {.place = place});
          }
        }
      }
    });
  }

  TEST_CASE("no rows, no columns") {
    for_each_direction([](const Step& step, DType type, Direction direction) {
      for (const Norm norm : kNorms) {
        for (const std::int64_t rows : {0, 1, 5}) {
          for (const std::int64_t cols : {0, 1, 300}) {
            if (rows > 0 && cols > 0) continue;
            const Problem p = toward(plain(type, rows, cols, norm), direction);
            CAPTURE(step.name);
            CAPTURE(rows);
            CAPTURE(cols);
            Inputs in{{}, Values(static_cast<std::size_t>(cols), 2.0)};
            // Without columns nothing means anything, and nothing is written.
            in.mean.assign(static_cast<std::size_t>(norm == Norm::layer ? rows : 0), 0.0);
            in.rstd.assign(static_cast<std::size_t>(rows), 1.0);
            for (const Poison poison : tile::kOutputPoisons) {
              Arrays arrays(p, in, {}, poison);
              const Status done = tile::run_step(step, p, arrays.buffers());
              CHECK_MESSAGE(done.ok(), done.message);
              if (cols == 0 || direction == Direction::forward) {
                arrays.check_untouched();
                continue;
              }
              arrays.check_intact();
              const Outputs out = arrays.download();
              const Expected zero{{cols},
                                  Values(static_cast<std::size_t>(cols), 0.0),
                                  Values(static_cast<std::size_t>(cols), 0.0)};
              check_values("dgamma", out.dgamma, zero);
              if (norm == Norm::layer) check_values("dbeta", out.dbeta, zero);
            }
          }
        }
      }
    });
  }

  TEST_CASE("repeated runs give the same bytes") {
    for_each_direction([](const Step& step, DType type, Direction direction) {
      CAPTURE(step.name);
      // Blocks add in the order in which they come, so that sums over rows may differ in their last
      // bits. What belongs to a row may not.
      const bool sums_may_differ = step.name == "atomics";
      for (const auto& [rows, cols] :
           {std::pair{131, 133}, std::pair{37, 1032}, std::pair{3, 9000}}) {
        const Problem p = toward(plain(type, rows, cols), direction);
        const Inputs in = normal(p);
        std::vector<std::byte> first, first_sums;
        const int runs = tile::device().simulated ? 2 : 250;
        for (int i = 0; i < runs; ++i) {
          CAPTURE(i);
          Arrays arrays(p, in, {}, tile::kOutputPoisons[i % 2]);
          const Status done = tile::run_step(step, p, arrays.buffers());
          REQUIRE_MESSAGE(done.ok(), done.message);
          const auto bytes = arrays.result_bytes(), sums = arrays.sums_bytes();
          if (i == 0) first = bytes, first_sums = sums;
          const bool same = bytes == first, same_sums = sums == first_sums;
          REQUIRE(same);
          if (!sums_may_differ) REQUIRE(same_sums);
        }
      }
    });
  }
}

}  // namespace layernorm
