// Chapter 06's tests: the rotation of q and k.
#include <algorithm>
#include <cmath>

#include "harness/pairs.hpp"
#include "test_support.hpp"

namespace rope {
namespace {

using Step = tile::TestedStep<RotaryLadder>;

constexpr auto need_not_run = tile::OwnKernel::need_not_run;

}  // namespace

TEST_SUITE("step") {
  TEST_CASE("rotary: each value of an option with each value of the others") {
    tile::for_each_step(
        kRotaryLadder,
        [](const Step& step, DType type) {
          enum class Positions { counted, from_11, by_ids };
          const auto cases = tile::drawn_cases(step.number, [&](tile::Pick& pick) {
            const Sizes n = pick({Sizes{2, 37, 4, 2, 64, 64},
                                  {1, 3, 1, 1, 128, 64},
                                  {3, 5, 9, 3, 64, 48},
                                  {1, 1, 2, 0, 32, 32},
                                  {2, 7, 0, 5, 16, 16},
                                  {1, 19, 3, 1, 256, 256},
                                  {1, 5, 17, 17, 80, 32}});
            const Layout layout = pick(kLayouts);
            Case c = simple(type, n, layout, pick(kPasses));
            c.p.attention_factor = pick({1.0f, 1.25f});
            c.in_place = pick({false, true});
            const Positions positions =
                pick({Positions::counted, Positions::from_11, Positions::by_ids});
            if (positions == Positions::from_11) {
              c.p.first_position = 11, c.p.table_positions += 11;
            }
            for (int i = 0; positions == Positions::by_ids && i < n.batch * n.length; ++i) {
              c.positions.push_back(i * 7 % static_cast<int>(n.length));
            }
            return c;
          });
          for (const Case& c : cases) check_step(step, c);
        },
        tile::OwnKernel::must_run, tile::Types::all);
  }

  TEST_CASE("rotary: dimensions that fill no chunk, and none that turns") {
    tile::for_each_step(
        kRotaryLadder,
        [](const Step& step, DType type) {
          for (const Layout layout : kLayouts) {
            for (const Sizes& n : {Sizes{2, 3, 2, 1, 2, 2},
                                   {1, 5, 3, 3, 7, 6},
                                   {2, 3, 2, 2, 64, 60},
                                   {1, 4, 2, 1, 33, 10},
                                   {2, 2, 2, 1, 64, 0}}) {
              check_step(step, simple(type, n, layout));
            }
          }
        },
        need_not_run);
  }

  TEST_CASE("rotary: positions: an offset, packed texts, positions outside of the tables") {
    tile::for_each_step(kRotaryLadder, [](const Step& step, DType type) {
      for (const Layout layout : kLayouts) {
        Case c = simple(type, {2, 6, 2, 1, 64, 48}, layout);
        c.p.first_position = 11;
        c.p.table_positions = 17;
        check_step(step, c);
        // Two texts in each row of the batch, and tokens whose positions are not in the tables.
        c.positions = {0, 1, 2, 0, 1, 16, 5, -1, 0, 17, 3, 1 << 30};
        check_step(step, c);
      }
    });
  }

  TEST_CASE("rotary: strides: heads first, packed q, k and v, gaps") {
    tile::for_each_step(kRotaryLadder, [](const Step& step, DType type) {
      const Sizes n{2, 7, 4, 2, 64, 64};
      const std::int64_t row = (n.heads + 2 * n.kv_heads) * n.head_dim;
      for (const Layout layout : kLayouts) {
        Case packed = simple(type, n, layout);
        packed.p.q = packed.p.k = {n.length * row, n.head_dim, row};
        packed.offset.k = 16;
        check_step(step, packed);
        packed.in_place = true;
        packed.p.q_out = packed.p.q, packed.p.k_out = packed.p.k;
        check_step(step, packed);
        Case first = simple(type, n, layout);
        first.p.q = tile::heads_first(n.length, n.heads, n.head_dim);
        first.p.k = tile::heads_first(n.length, n.kv_heads, n.head_dim, 8);
        first.p.q_out = tile::heads_first(n.length, n.heads, n.head_dim, 16);
        first.p.k_out = tile::heads_first(n.length, n.kv_heads, n.head_dim);
        check_step(step, first);
      }
    });
  }

  TEST_CASE("rotary: pointers and rows aligned in every way") {
    tile::for_each_step(
        kRotaryLadder,
        [](const Step& step, DType type) {
          const auto half = static_cast<std::int64_t>(8 / tile::size_bytes(type));
          for (const std::int64_t offset : {half, std::int64_t{1}, std::int64_t{3}}) {
            for (std::int64_t Case::Offsets::*each :
                 {&Case::Offsets::q, &Case::Offsets::k, &Case::Offsets::q_out,
                  &Case::Offsets::k_out, &Case::Offsets::tables}) {
              Case c = simple(type, {1, 3, 2, 1, 64, 64});
              c.offset.*each =
                  each == &Case::Offsets::tables ? std::min<std::int64_t>(offset, 2) : offset;
              check_step(step, c);
            }
            for (Strides RotaryProblem::*each : {&RotaryProblem::q, &RotaryProblem::k,
                                                 &RotaryProblem::q_out, &RotaryProblem::k_out}) {
              for (std::int64_t Strides::*which :
                   {&Strides::batch, &Strides::row, &Strides::head}) {
                Case c = simple(type, {2, 3, 2, 2, 64, 64});
                (c.p.*each).head += 8, (c.p.*each).row += 32, (c.p.*each).batch += 128;
                c.p.*each.*which += offset;
                check_step(step, c);
              }
            }
          }
        },
        need_not_run);
  }

  // An angle in fp32 would be off by thousandths there.
  TEST_CASE("rotary: far out in a text the angles are as exact as at its beginning") {
    tile::for_each_step(kRotaryLadder, [](const Step& step, DType type) {
      Case c = simple(type, {1, 3, 1, 1, 64, 64});
      c.p.first_position = 131'069;
      c.p.table_positions = 131'072;
      check_step(step, c);
    });
  }

  TEST_CASE("rotary: position 0 and what does not turn keep their bits, all of them") {
    tile::for_each_step(kRotaryLadder, [](const Step& step, DType type) {
      for (const Layout layout : kLayouts) {
        const Case c = simple(type, {1, 40, 2, 1, 64, 32}, layout);
        Rows in = normal(c.p);
        const Values odd = tile::adversarial(std::ssize(in.q), type);
        for (std::size_t i = 0; i < in.q.size(); ++i) {
          if (i % 64 >= 32) in.q[i] = odd[i];
        }
        const Rows out = run(step, c, in);
        for (std::size_t i = 0; i < in.q.size(); ++i) {
          if (i >= 2 * 64 && i % 64 < 32) continue;
          CHECK(tile::matches(out.q[i], in.q[i], 0));
        }
      }
    });
  }

  TEST_CASE("rotary: one-hot rows: which elements are a pair") {
    tile::for_each_step(kRotaryLadder, [](const Step& step, DType type) {
      for (const Layout layout : kLayouts) {
        // Token t has a one in column t; position 1.
        Case c = simple(type, {1, 64, 1, 0, 64, 48}, layout);
        c.p.table_positions = 2;
        c.positions.assign(64, 1);
        Rows in{Values(64 * 64, 0.0), {}};
        for (std::size_t t = 0; t < 64; ++t) in.q[t * 64 + t] = 1;
        const Rows out = run(step, c, in);
        for (std::size_t t = 0; t < 64; ++t) {
          const std::size_t partner = t >= 48                        ? t
                                      : layout == Layout::half_split ? (t + 24) % 48
                                                                     : t ^ 1;
          for (std::size_t col = 0; col < 64; ++col) {
            CHECK((out.q[t * 64 + col] != 0) == (col == t || col == partner));
          }
        }
      }
    });
  }

  TEST_CASE("rotary: lengths of rows stay, and a score depends on the distance alone") {
    tile::for_each_step(
        kRotaryLadder,
        [](const Step& step, DType type) {
          if (type != DType::fp32) return;
          for (const Layout layout : kLayouts) {
            // The same q and k at each position.
            const Case c = simple(type, {1, 50, 1, 1, 64, 64}, layout);
            const Values q = tile::normal(64, type, 63), k = tile::normal(64, type, 64);
            Rows in;
            for (int t = 0; t < 50; ++t) {
              in.q.insert(in.q.end(), q.begin(), q.end());
              in.k.insert(in.k.end(), k.begin(), k.end());
            }
            const Rows out = run(step, c, in);
            const auto score = [](const Values& a, std::size_t i, const Values& b, std::size_t j) {
              double sum = 0;
              for (std::size_t e = 0; e < 64; ++e) sum += a[i * 64 + e] * b[j * 64 + e];
              return sum;
            };
            // Each of the 128 elements is off by 6 u of its pair's length at most.
            const double bound =
                2 * 6 * 0x1p-24 * 2 * std::sqrt(score(in.q, 0, in.q, 0) * score(in.k, 0, in.k, 0));
            for (std::size_t t = 0; t < 50; ++t) {
              const double length = score(in.q, 0, in.q, 0);
              CHECK(std::abs(score(out.q, t, out.q, t) - length) <= 24 * 0x1p-24 * length);
              if (t >= 7) {
                CHECK(std::abs(score(out.q, t, out.k, t - 7) - score(out.q, 7, out.k, 0)) <= bound);
              }
            }
            CHECK(std::abs(score(out.q, 7, out.k, 0) - score(out.q, 0, out.k, 7)) > 1000 * bound);
          }
        },
        need_not_run);
  }

  TEST_CASE("rotary: the backward pass undoes the forward pass where the factor is 1") {
    tile::for_each_step(
        kRotaryLadder,
        [](const Step& step, DType type) {
          if (type != DType::fp32) return;
          for (const Layout layout : kLayouts) {
            const Case there = simple(type, {1, 30, 2, 1, 64, 48}, layout);
            const Case back = simple(type, {1, 30, 2, 1, 64, 48}, layout, Pass::backward);
            const Rows in = normal(there.p), out = run(step, back, run(step, there, in));
            for (std::size_t i = 0; i < in.q.size(); ++i) {
              CHECK(std::abs(out.q[i] - in.q[i]) <= 1e-5);  // 14 u of a pair's length, below 8
            }
          }
        },
        need_not_run);
  }

  TEST_CASE("rotary: no token, no head, no batch") {
    tile::for_each_step(
        kRotaryLadder,
        [](const Step& step, DType type) {
          for (const Sizes& n :
               {Sizes{0, 3, 2, 1, 64, 64}, {2, 0, 2, 1, 64, 64}, {2, 3, 0, 0, 64, 64}}) {
            check_step(step, simple(type, n));
          }
        },
        need_not_run);
  }
}

}  // namespace rope
