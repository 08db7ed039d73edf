// Chapter 02's tests: every step on every type, in values and shapes.
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "test_support.hpp"

namespace matmul {
namespace {

/// What a step needs to show all it does, whatever else is drawn or thinned.
struct Border {
  std::string_view step;
  Shape shape;
  std::size_t transposes;
};
constexpr Border kBorders[] = {
    // Beyond a group of eight tiles of 128 rows.
    {"double_buffered", {1100, 150, 25}, 0},
    // Four stages of 32, or of 16; in the next ones, of several tiles.
    {"pipeline", {129, 136, 11 * 32 + 8}, 1},
    {"tf32", {129, 136, 11 * 16 + 4}, 2},
    {"persistent", {257, 264, 11 * 32 + 8}, 3},
    {"fused", {257, 264, 11 * 32 + 8}, 0},
    {"warp_tiles", {257, 264, 11 * 32 + 8}, 1},
    // Beyond a group of eight tiles, with two in the last one's rows.
    {"persistent", {1100, 264, 40}, 1},
    {"fused", {1100, 264, 40}, 2},
    {"warp_tiles", {1100, 264, 40}, 3},
    {"warp_tiles", {256, 512, 11 * 32}, 2},
    // Four stages of 64, and beyond a group of 16 tiles of 128 rows.
    {"warp_specialized", {136, 264, 11 * 64 + 8}, 3},
    {"persistent_ring", {136, 264, 11 * 64 + 8}, 0},
    {"persistent_ring", {2200, 264, 40}, 1},
    // Beyond a group of eight pairs.
    {"cluster_ring", {264, 264, 11 * 64 + 8}, 2},
    {"cluster_ring", {2200, 264, 40}, 3},
    // On two pairs of blocks, tiles of 128 x 256, 192 x 192, 128 x 192, 128 x 128, 64 x 128 and
    // 64 x 64, more of each than run at one time, and all stages twice.
    {"tile_shapes", {260, 400, 9 * 64 + 8}, 0},
    {"tile_shapes", {580, 380, 11 * 64 + 8}, 2},
    {"tile_shapes", {140, 526, 9 * 64 + 8}, 1},
    {"tile_shapes", {780, 76, 13 * 64 + 8}, 3},
    {"tile_shapes", {40, 274, 17 * 64 + 8}, 2},
    {"tile_shapes", {260, 40, 25 * 64 + 8}, 0},
    {"tma_store", {260, 400, 9 * 64 + 8}, 3},
    {"tma_store", {580, 380, 11 * 64 + 8}, 1},
    {"tma_store", {140, 526, 9 * 64 + 8}, 2},
    {"tma_store", {780, 76, 13 * 64 + 8}, 0},
    {"tma_store", {40, 274, 17 * 64 + 8}, 1},
    {"tma_store", {260, 40, 25 * 64 + 8}, 3},
    // Beyond a group of eight pairs, and half a tile of columns.
    {"tile_shapes", {4200, 392, 40}, 1},
    {"tma_store", {4200, 392, 40}, 0},
    {"tma_store", {400, 250, 11 * 64 + 8}, 2},
    // Seven stages of 64, of each of eight blocks.
    {"split_k", {24, 8, 8 * 15 * 64}, 2},
    {"split_k", {1030, 136, 8 * 64}, 3},  // more than a group of tiles, each of two blocks
    // 11 stages of 16 rows, nine of 32 and seven of 64, of each of eight blocks; more tiles than
    // blocks.
    {"swap_ab", {16, 8, 8 * 23 * 64}, 0},
    {"swap_ab", {31, 72, 8 * 19 * 64 + 8}, 0},
    {"swap_ab", {64, 136, 8 * 15 * 64}, 1},
    {"swap_ab", {32, 136, 5 * 64 + 8}, 1},
    {"swap_ab", {9, 1300, 40 * 64 + 8}, 1},
    {"swap_ab", {15, 136, 2 * 13 * 64}, 2},
    {"swap_ab", {50, 1300, 13 * 64}, 3},
    {"e4m3", {264, 264, 11 * 128 + 16}, 0},
    {"e4m3", {2200, 264, 48}, 0},
};

/// Small, and yet step stream_k cuts its tiles on cards of 4 to 170 multiprocessors.
constexpr Shape kOfStream{65, 301, 501};

/// The same with so few rows that the step takes it, if it takes few rows only.
Shape for_rows_of(const Step& step, Shape shape) {
  if (step.name == "swap_ab") shape.m = std::min<std::int64_t>(shape.m, 61);
  return shape;
}

}  // namespace

TEST_SUITE("step") {
  TEST_CASE("the identity times B is B, and A times the identity is A") {
    tile::for_each_step(kTested, [](const Step& step, DType type) {
      auto identity = [](std::int64_t n) {
        Values values(static_cast<std::size_t>(n * n), 0.0);
        for (std::int64_t i = 0; i < n; ++i) values[static_cast<std::size_t>(i * n + i)] = 1;
        return values;
      };
      const Problem left = plain(type, {37, 53, 37}), right = plain(type, {53, 37, 37});
      const Inputs any_left = normal(left), any_right = normal(right);
      check_step(step, left, {identity(37), any_left.b, {}}, Sums::exact);
      check_step(step, right, {any_right.a, identity(37), {}}, Sums::exact);
      // The reference must say so itself.
      if (left.transpose_b) return;
      CHECK(reference(left, identity(37), any_left.b, {}, false).value == any_left.b);
      CHECK(reference(right, any_right.a, identity(37), {}, false).value == any_right.a);
    });
  }

  TEST_CASE("one element of A meets one element of B in one element of C") {
    tile::for_each_step(kTested, [](const Step& step, DType type) {
      for (const Transposes transposes : transposes_of(type)) {
        const Problem p = plain(type, {40, 70, 35}, transposes);
        for (const Shape at : {Shape{0, 0, 0}, Shape{39, 69, 34}, Shape{1, 2, 3}, Shape{33, 5, 31},
                               Shape{7, 64, 32}}) {
          Inputs in{Values(40 * 35, 0.0), Values(35 * 70, 0.0), {}};
          element_of_a(in, p, at.m, at.k) = 2;
          element_of_b(in, p, at.k, at.n) = 3;
          check_step(step, p, in, Sums::exact);
        }
      }
    });
  }

  TEST_CASE("integers, whose sums are exact, at all sizes and transposed") {
    tile::for_each_step(
        kTested,
        [](const Step& step, DType type) {
          std::int64_t round = 0;
          Selection selection(step, type);
          for (const Transposes transposes : transposes_of(type)) {
            for (std::int64_t i = 0; i < kExtentCount; ++i) {
              if (!selection.takes_next()) continue;
              const Problem p = plain(type, shape_of(i, round), transposes);
              check_step(step, p, integers(p), Sums::exact);
            }
            ++round;
          }
        },
        tile::OwnKernel::must_run, tile::Types::all);
  }

  TEST_CASE("alpha and beta") {
    tile::for_each_step(kTested, [](const Step& step, DType type) {
      for (const float alpha : {0.f, 1.f, -0.5f, 2.25f}) {
        for (const float beta : {0.f, 1.f, -0.5f, 2.25f}) {
          for (const Shape shape : {Shape{35, 135, 17}, Shape{136, 36, 16}, Shape{5, 6, 0}}) {
            // Rows in vectors, and rows that are not.
            for (const Problem& base :
                 {plain(type, shape), padded(plain(type, shape), {4, 4, 4})}) {
              const Problem p = scaled(base, alpha, beta);
              Inputs in = integers(p);
              if (alpha == 0) in.a.assign(in.a.size(), kNaN), in.b.assign(in.b.size(), kNaN);
              check_step(step, p, in, Sums::exact, {0, 0, 0});
            }
          }
        }
      }
      const Problem p = scaled(plain(type, {33, 65, 40}), 0.1f, -3.7f);  // these round
      check_step(step, p, normal(p), Sums::zero_mean);
    });
  }

  TEST_CASE("scales of A and of B, which alpha and the activation meet") {
    tile::for_each_step(
        kTested,
        [](const Step& step, DType type) {
          if (type != DType::e4m3) return;  // no other has them
          Problem p = scaled(plain(type, {37, 53, 200}), -1.5f, 0.5f);
          Inputs in = normal(p);
          in.bias = tile::normal(p.n, type, 8);
          for (const Activation activation : {Activation::none, Activation::gelu}) {
            p.activation = activation;
            for (const auto& [a_scale, b_scale] :
                 {std::pair<Values, Values>{{0.37f}, {}}, {{}, {3e-3f}}, {{113.7f}, {0.02f}}}) {
              in.a_scale = a_scale, in.b_scale = b_scale;
              check_step(step, p, in, Sums::zero_mean);
            }
          }
          Problem exact = plain(type, {5, 3, 16});
          Inputs integer = integers(exact);
          integer.a_scale = {0.25}, integer.b_scale = {8};
          for (double& x : integer.a) x = std::trunc(x / 4);  // 8 significant bits hold the sums
          check_step(step, exact, integer, Sums::exact);
          exact.alpha = 0;
          integer.a_scale = {kNaN};  // is not read
          check_step(step, exact, integer, Sums::exact);
        },
        tile::OwnKernel::need_not_run);
  }

  TEST_CASE("no rows, no columns, nothing to sum") {
    tile::for_each_step(
        kTested,
        [](const Step& step, DType type) {
          for (const Transposes transposes : transposes_of(type)) {
            for (const Shape shape : {Shape{0, 5, 7}, Shape{5, 0, 7}, Shape{0, 0, 0},
                                      Shape{5, 7, 0}, Shape{0, 5, 0}, Shape{130, 257, 0}}) {
              for (const float beta : {0.f, 0.5f}) {
                const Problem p = scaled(plain(type, shape, transposes), 1, beta);
                check_step(step, p, integers(p), Sums::exact);
              }
            }
          }
        },
        tile::OwnKernel::need_not_run);
  }

  TEST_CASE("NaN and infinity stay in their row of A, or their column of B") {
    tile::for_each_step(kTested, [](const Step& step, DType type) {
      Selection selection(step, type);
      for (const Transposes transposes : transposes_of(type)) {
        const Problem p = plain(type, for_rows_of(step, {131, 133, 19}), transposes);
        const Inputs usual{tile::uniform(p.m * p.k, type, 10, 0.5, 1),
                           tile::uniform(p.k * p.n, type, 11, 0.5, 1),
                           {}};
        for (const std::int64_t l : {0, 7, 8, 18}) {
          if (!selection.takes_next()) continue;
          Inputs in = usual;
          element_of_a(in, p, 0, l) = kNaN;
          element_of_a(in, p, p.m / 2, l) = infinity_of(type);
          element_of_a(in, p, p.m - 1, l) = -infinity_of(type);
          check_step(step, p, in, Sums::any);
          in = usual;
          element_of_b(in, p, l, 0) = -infinity_of(type);
          element_of_b(in, p, l, 67) = kNaN;
          element_of_b(in, p, l, 132) = infinity_of(type);
          check_step(step, p, in, Sums::any);
        }
      }
    });
  }

  TEST_CASE("denormals, zeros and large numbers") {
    tile::for_each_step(kTested, [](const Step& step, DType type) {
      // With one product to a sum small ones show, with many the large ones hide them. In fp16 some
      // sums overflow, as C's type and not in the sum.
      for (const std::int64_t k : {1, 3, 97}) {
        const Problem p = plain(type, {62, 67, k});
        Values a = tile::adversarial_finite(p.m * p.k, type);
        for (double& x : a) {
          if (std::abs(x) > 1e30) x *= 0x1p-16;  // so that no product overflows, and no sum
        }
        check_step(step, p, {a, tile::uniform(p.k * p.n, type, 9, -2, 2), {}}, Sums::any);
      }
    });
  }

  TEST_CASE("random values with mean zero") {
    tile::for_each_step(kTested, [](const Step& step, DType type) {
      Selection selection(step, type);
      for (const Transposes transposes : transposes_of(type)) {
        // The first, which is always selected, is one that every step's own kernel takes.
        for (const Shape shape : {Shape{65, 131, 1}, Shape{1, 1, 1}, Shape{129, 67, 257},
                                  Shape{3, 5, 1025}, Shape{97, 113, 33}}) {
          if (!selection.takes_next()) continue;
          const Problem p = plain(type, for_rows_of(step, shape), transposes);
          check_step(step, p, normal(p), Sums::zero_mean);
        }
      }
    });
  }

  TEST_CASE("random values that are all positive") {
    tile::for_each_step(kTested, [](const Step& step, DType type) {
      for (const Shape shape : {Shape{33, 35, 1025}, Shape{129, 130, 64}}) {
        const Problem p = plain(type, shape);
        check_step(
            step, p,
            {tile::uniform(p.m * p.k, type, 7, 0, 1), tile::uniform(p.k * p.n, type, 8, 0, 1), {}},
            Sums::any);
      }
    });
  }

  TEST_CASE("C's products with its gradient are those of A and B with theirs") {
    // C = A B, so <dC, A B> = <dC Bᵀ, A> = <Aᵀ dC, B>, on integers bit for bit.
    tile::for_each_step(
        kTested,
        [](const Step& step, DType type) {
          CAPTURE(step.name);
          if (type == DType::e4m3) return;  // has no transposed products
          // Every sum of 131 must be a value of the type: the least has 8 bits.
          const std::int64_t most = tile::size_bytes(type) == 2 ? 1 : 8;
          auto small_integers = [type, most](std::int64_t count, std::uint64_t seed) {
            return tile::integers(count, type, seed, -most, most);
          };
          auto product = [&step](const Problem& plain, const Values& a, const Values& b) {
            const Problem p = with_rows_for(step, plain);
            DeviceBuffer device_a = DeviceBuffer::input("a", layout_a(p), a);
            DeviceBuffer device_b = DeviceBuffer::input("b", layout_b(p), b);
            DeviceBuffer device_c = DeviceBuffer::output("c", layout_c(p), Poison::unwritten_nan);
            const Status done =
                tile::run_step(step, p, {device_a.raw(), device_b.raw(), device_c.raw()});
            REQUIRE_MESSAGE(done.ok(), done.message);
            return device_c.download();
          };
          auto dot = [](const Values& x, const Values& y) {
            REQUIRE(x.size() == y.size());
            double sum = 0;
            for (std::size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
            return sum;
          };
          const std::int64_t m = 67, n = 45, k = 131;
          const Values a = small_integers(m * k, 12), b = small_integers(k * n, 13),
                       dc = small_integers(m * n, 14);
          const Values c = product(plain(type, {m, n, k}), a, b);
          const Values da = product(plain(type, {m, k, n}, {false, true}), dc, b);
          const Values db = product(plain(type, {k, n, m}, {true, false}), a, dc);
          CHECK(dot(dc, c) != 0);
          CHECK(dot(da, a) == dot(dc, c));
          CHECK(dot(db, b) == dot(dc, c));
        },
        tile::OwnKernel::need_not_run);
  }

  TEST_CASE("sums so long that blocks may share them") {
    // Of 64 terms these are 16, 9, 34 and 25 parts, the last one not whole: for 4, 2, 8 and 6
    // blocks of step split_k, which do not all have as many.
    tile::for_each_step(kTested, [](const Step& step, DType type) {
      std::vector<Shape> shapes{{24, 136, 1000}, {37, 16, 520}, {131, 8, 2120}, {16, 13, 1544}};
      if (step.name == "stream_k") shapes = {kOfStream};
      Selection selection(step, type);
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        if (step.name != "stream_k" && !selection.takes_next()) continue;
        const Problem p = plain(type, shapes[i], kTransposes[i]);
        check_step(step, p, integers(p), Sums::exact);
        Problem all = scaled(p, 0.1f, -3.7f);
        all.activation = Activation::relu;
        Inputs in = normal(all);
        in.bias = tile::normal(p.n, type, 8);
        check_step(step, all, in, Sums::zero_mean);
      }
    });
  }

  TEST_CASE("shares of k: as many as are fastest, also where the last is not whole") {
    tile::for_each_step(
        kTested,
        [](const Step& step, DType type) {
          if (step.name != "shares") return;
          std::set<std::int64_t> counts;
          std::set<int> columns;
          std::size_t turn = 0;
          std::vector<Shape> shapes{
              {24, 136, 1000}, {37, 17, 1999}, {131, 8, 2125}, {128, 128, 4096}, {16, 300, 777}};
          // On a card of 132 multiprocessors the only one in tiles of 64 x 128.
          if (!tile::device().simulated) shapes.push_back({100, 500, 5001});
          for (const Shape shape : shapes) {
            const Problem p = plain(type, shape, kTransposes[turn++ % 4]);
            const SharePlan plan = share_plan(p, tile::device().multiprocessors);
            counts.insert(plan.shares);
            if (!is_few_rows(p)) columns.insert(plan.columns);
            check_step(step, p, integers(p), Sums::exact);
            Problem all = scaled(padded(p, {1, 2, 3}), 0.1f, -3.7f);
            all.activation = Activation::gelu;
            Inputs in = normal(all);
            in.bias = tile::normal(p.n, type, 8);
            check_step(step, all, in, Sums::zero_mean);
          }
          // Few rows: all of a lane's columns, some, and none; A along k and not; whole parts of k
          // for each warp, some, and less than one.
          for (const std::int64_t k : {3, 33, 640, 2500}) {
            for (const std::int64_t n : {128, 134, 300}) {
              const Problem p = plain(type, {k % 16 + 1, n, k}, {n % 4 != 0, false});
              REQUIRE(is_few_rows(p));
              check_step(step, p, integers(p), Sums::exact);
              Problem all = scaled(padded(p, {1, n == 300, 3}), 0.1f, -3.7f);
              Inputs in = normal(all);
              in.bias = tile::normal(p.n, type, 8);
              check_step(step, all, in, Sums::zero_mean);
            }
          }
          CHECK(*counts.begin() > 1);
          CHECK(counts.size() > 1);
          CHECK(columns.size() == 2);
        },
        tile::OwnKernel::need_not_run);
  }

  TEST_CASE("a line of iterations in pieces: tiles of both sizes, whole and cut, any rows") {
    tile::for_each_step(
        kTested,
        [](const Step& step, DType type) {
          if (step.name != "stream_k") return;
          // On the CPU device's card eight pieces with tiles of 128 rows, or 16 with 64. Of a tile
          // one to 16 pieces have a part; a piece has parts of up to three tiles.
          std::vector<Shape> shapes{{128, 1152, 320}, {129, 1150, 330}, {1030, 140, 640},
                                    {64, 100, 2000},  {37, 150, 1999},  {130, 150, 700},
                                    {200, 390, 13},   {128, 1024, 96},  {300, 260, 1021}};
          // On a card of 132 multiprocessors a few pieces to a tile, and a few tiles to a piece.
          if (!tile::device().simulated) shapes = {{1001, 999, 1003}, {777, 1555, 333}};
          std::set<std::pair<bool, bool>> plans;
          std::size_t turn = 0;
          for (const Shape shape : shapes) {
            for (const Three beside : {Three{0, 0, 0}, Three{1, 0, 0}, Three{0, 3, 1}}) {
              const Problem p = padded(plain(type, shape, kTransposes[turn % 4]), beside);
              const StreamPlan plan = stream_plan(p, tile::device().multiprocessors);
              plans.insert({plan.words, plan.line > 0});
              check_step(step, p, integers(p), Sums::exact, {0, turn % 5 == 4, 0});
              Problem all = scaled(p, 0.1f, -3.7f);
              all.activation = Activation::gelu;
              Inputs in = normal(all);
              in.bias = tile::normal(p.n, type, 8);
              if (turn++ % 2 == 0) check_step(step, all, in, Sums::zero_mean);
            }
          }
          if (tile::device().simulated) CHECK(plans.size() == 4);
        },
        tile::OwnKernel::need_not_run);
  }

  TEST_CASE("rows that begin anywhere are copied to where they begin at 16 bytes") {
    tile::for_each_step(
        kTested,
        [](const Step& step, DType type) {
          if (!step.workspace_bytes || !step.needs.contains(tile::Feature::tma)) return;
          const std::int64_t uses = kUsesForCopy;
          for (const Transposes transposes : kTransposes) {
            // Rows in words of 2, 4 and 8 bytes; one of the two matrices, and both.
            for (const Shape shape :
                 {Shape{uses, uses, 13}, Shape{uses, uses + 2, 22}, Shape{uses + 4, uses, 20}}) {
              for (const Three beside : {Three{0, 0, 0}, Three{1, 0, 0}, Three{0, 2, 0}}) {
                Problem p = plain(type, for_rows_of(step, shape), transposes);
                p.lda += beside.a, p.ldb += beside.b;
                // Few rows use B too seldom for a copy.
                if (step.name == "swap_ab") p.ldb = padded(p, {0, 0, 0}).ldb;
                p.ldc = with_rows_for(step, p).ldc + vector_length(type);
                if (!pads_a(p) && !pads_b(p)) continue;
                const std::size_t before = tile::own_runs();
                check_step(step, p, integers(p), Sums::exact,
                           {pads_a(p) ? beside.a : 0, pads_b(p) ? beside.b : 0, 0});
                CHECK(tile::own_runs() > before);
              }
            }
          }
        },
        tile::OwnKernel::need_not_run);
  }

  TEST_CASE("many tiles along each extent") {
    tile::for_each_step(kTested, [](const Step& step, DType type) {
      std::vector<Shape> shapes{{587, 9, 33}, {9, 799, 17},   {2, 3, 1023},   {1025, 2, 3},
                                {3, 1025, 1}, {259, 385, 41}, {1303, 261, 9}, {131, 1303, 5}};
      if (!tile::device().simulated) {
        for (const Shape shape : {Shape{1303, 1411, 799}, Shape{2303, 517, 1031}}) {
          shapes.push_back(shape);
        }
      }
      Selection selection(step, type, 4);
      for (const Shape shape : shapes) {
        for (const Transposes transposes : transposes_of(type)) {
          if (!selection.takes_next()) continue;
          const Problem p = plain(type, for_rows_of(step, shape), transposes);
          check_step(step, p, integers(p), Sums::exact);
        }
      }
    });
  }

  TEST_CASE("each step's own borders: all stages, tiles beyond a group, six shapes") {
    tile::for_each_step(
        kTested,
        [](const Step& step, DType type) {
          for (const Border& border : kBorders) {
            if (step.name != border.step) continue;
            const std::span all = transposes_of(type);
            const Problem p = plain(type, border.shape, all[border.transposes % all.size()]);
            check_step(step, p, integers(p), Sums::exact);
          }
          if (step.name != "tile_shapes" && step.name != "tma_store") return;
          // On an H200 2 by 16 pairs of 384 x 192 for 12 by 12 of 256 x 256; and 16 by 16 of these
          // with two turns each are four rounds, of which the CPU device's card has some above. The
          // others are of tiles of 128 x 192, 128 x 128 and 64 x 128.
          if (tile::device().simulated) return;
          for (const Shape shape : {Shape{3000, 3000, 72},
                                    {4096, 4096, 72},
                                    {520, 2836, 72},
                                    {280, 2836, 72},
                                    {160, 2116, 72}}) {
            for (const Transposes transposes : transposes_of(type)) {
              const Problem p = plain(type, shape, transposes);
              check_step(step, p, integers(p), Sums::exact);
            }
          }
        },
        tile::OwnKernel::need_not_run);
  }

  TEST_CASE("nothing but whole tiles") {
    // 128 x 128 of all steps at least, and of the last of those for 16 bits its small and its large
    // ones; more of them than the CPU device's card takes at one time; and ten along k, so that a
    // ring of four stages turns over twice.
    tile::for_each_step(kTested, [](const Step& step, DType type) {
      const Problem many = plain(type, {64, 1280, 160});
      check_step(step, many, integers(many), Sums::exact);
      const std::int64_t extent = tile::size_bytes(type) == 2 ? 256 : 128;  // large tiles or not
      Selection selection(step, type);
      for (const Transposes transposes : transposes_of(type)) {
        // The second is whole but for a rest of k.
        for (const Shape shape : {Shape{extent, extent, 320}, Shape{128, 128, 40}}) {
          if (!selection.takes_next()) continue;
          const Problem p = plain(type, shape, transposes);
          check_step(step, p, integers(p), Sums::exact);
        }
        // Whole, but one of them half a vector off.
        const std::int64_t half = vector_length(type) / 2;
        for (const Three beside : {Three{half, 0, 0}, Three{0, half, 0}, Three{0, 0, half}}) {
          if (!selection.takes_next()) continue;
          const Problem p = padded(plain(type, {128, 128, 32}, transposes), beside);
          check_step(step, p, integers(p), Sums::exact);
        }
      }
    });
  }

  TEST_CASE("pointers and rows aligned in every way") {
    tile::for_each_step(kTested, [](const Step& step, DType type) {
      std::vector<Three> offsets{{0, 0, 0}, {1, 0, 0}, {0, 1, 0}, {0, 0, 1},
                                 {1, 1, 1}, {3, 3, 3}, {0, 2, 3}, {4, 4, 4}};
      const std::int64_t vector = vector_length(type);
      std::vector<Three> paddings{
          {0, 0, 0}, {vector, 2 * vector, vector}, {1, 2, 3}, {1, 0, 0}, {0, 1, 0}, {0, 0, 1}};
      if (vector > 4) {  // of a vector there are more parts
        offsets.insert(offsets.end(), {{2, 5, 6}, {7, 8, 0}, {8, 0, 7}, {8, 8, 8}});
        paddings.insert(paddings.end(), {{4, 4, 4}, {2, 6, 4}});
      }
      // Each offset with each padding, in turn on a large and on a small problem, where one column
      // is left after the 64 that a warp of step 19 stores together.
      constexpr Shape kShapes[] = {{132, 136, 36}, {37, 65, 11}};
      std::size_t turn = 0;
      Selection selection(step, type, step.types.contains(DType::fp16) ? 4 : 2);
      for (const Three offset : offsets) {
        for (const Three padding : paddings) {
          for (const Transposes transposes : transposes_of(type)) {
            if (!selection.takes_next()) continue;
            const Shape shape = for_rows_of(step, kShapes[turn % 2]);
            const Problem p = padded(plain(type, shape, transposes), padding);
            check_step(step, p, integers(p), Sums::exact, offset);
          }
          ++turn;
        }
        ++turn;  // the paddings are even in number
      }
    });
  }

  TEST_CASE("rows so far apart that there is no memory between them and the next") {
    // A step that reads past a matrix, even for values that do not matter, meets a bad address. A
    // GPU's pages have 2 MiB; the CPU device's check build knows where each allocation ends.
    const std::int64_t far = std::int64_t{1} << (tile::device().simulated ? 17 : 21);
    tile::for_each_step(kTested, [far](const Step& step, DType type) {
      Selection selection(step, type);
      for (const std::int64_t ld : {far, far + 1}) {
        auto check = [&](Shape shape, Transposes transposes) {
          Problem p = plain(type, shape, transposes);
          p.lda = p.ldb = p.ldc = ld;
          check_step(step, p, integers(p), Sums::exact);
        };
        for (const Transposes transposes : transposes_of(type)) {
          if (selection.takes_next()) check({2, 2, 2}, transposes);
        }
        check({2, 2, 16}, {false, true});  // rows of whole vectors and tiles
      }
      // Of A, B or C alone, with whole tiles along the other extents.
      Problem p = plain(type, {2, 256, 32});
      p.lda = far;
      check_step(step, p, integers(p), Sums::exact);
      p = plain(type, {128, 2, 32}, {false, true});
      p.ldb = far;
      check_step(step, p, integers(p), Sums::exact);
      p = scaled(plain(type, {2, 256, 32}), 1, 0.5f);  // C is read as well
      p.ldc = far;
      check_step(step, p, integers(p), Sums::exact);
    });
  }

  TEST_CASE("repeated runs give the same bytes") {
    tile::for_each_step(kTested, [](const Step& step, DType type) {
      CAPTURE(step.name);
      // The second one has so few tiles that blocks may share their sums.
      for (const Shape shape : {Shape{259, 133, 131}, Shape{40, 24, 2120}, kOfStream}) {
        if ((shape.k == kOfStream.k) != (step.name == "stream_k")) continue;
        const Problem p = with_rows_for(step, plain(type, shape));
        const Inputs in = normal(p);
        DeviceBuffer a = DeviceBuffer::input("a", layout_a(p), in.a);
        DeviceBuffer b = DeviceBuffer::input("b", layout_b(p), in.b);
        const std::int64_t bytes = most_workspace(step, p);
        const DeviceBuffer workspace = DeviceBuffer::output(
            "workspace", tile::vector_layout(DType::fp32, bytes / 4), tile::kOutputPoisons[0]);
        Buffers buffers{a.raw(), b.raw(), nullptr};
        if (bytes > 0) buffers.workspace = workspace.raw(), buffers.workspace_bytes = bytes;
        std::vector<std::byte> first;
        const int runs = tile::device().simulated ? 3 : 250;
        for (int i = 0; i < runs; ++i) {
          CAPTURE(i);
          DeviceBuffer c = DeviceBuffer::output("c", layout_c(p), tile::kOutputPoisons[i % 2]);
          buffers.c = c.raw();
          const Status done = tile::run_step(step, p, buffers);
          REQUIRE_MESSAGE(done.ok(), done.message);
          if (i == 0) first = c.download_bytes();
          const bool same = c.download_bytes() == first;
          REQUIRE(same);
        }
      }
    });
  }
}

}  // namespace matmul
