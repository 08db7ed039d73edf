// Chapter 02's tests: the reference, the table of steps, and the tests themselves.
#include <set>

#include "test_support.hpp"

namespace matmul {
namespace {

// doctest's Approx takes all small numbers for the same.
bool near(double x, double y) { return std::abs(x - y) <= 2e-3 * y; }

}  // namespace

TEST_SUITE("chapter") {
  TEST_CASE("the reference is a sum of products") {
    // Against the definition, index by index.
    for (const Transposes transposes : kTransposes) {
      const Problem p = scaled(plain(DType::fp32, {7, 5, 11}, transposes), -0.5f, 3);
      const Inputs in = integers(p);
      const tile::Expected expected = reference(p, in.a, in.b, in.c, false);
      CHECK(expected.shape == std::vector<std::int64_t>{7, 5});
      Values value, magnitude;
      for (std::size_t i = 0; i < 7; ++i) {
        for (std::size_t j = 0; j < 5; ++j) {
          double sum = 0, absolute = 0;
          for (std::size_t l = 0; l < 11; ++l) {
            const double product = (transposes.a ? in.a[l * 7 + i] : in.a[i * 11 + l]) *
                                   (transposes.b ? in.b[j * 11 + l] : in.b[l * 5 + j]);
            sum += product;
            absolute += std::abs(product);
          }
          value.push_back(-0.5 * sum + 3 * in.c[i * 5 + j]);
          magnitude.push_back(0.5 * absolute);
        }
      }
      CHECK(expected.value == value);
      // gamma_11 of the magnitude, and what alpha and beta add: two roundings of what they give.
      REQUIRE(expected.bound.size() == magnitude.size());
      for (std::size_t i = 0; i < magnitude.size(); ++i) {
        const double most = std::abs(value[i]) + 2 * (magnitude[i] + 3 * std::abs(in.c[i]));
        CHECK(expected.bound[i] >= 11 * 0x1p-24 * magnitude[i]);
        CHECK(expected.bound[i] <= 0x1p-24 * (11.001 * magnitude[i] + 2 * most) + 1e-40);
      }
    }
  }

  TEST_CASE("the bound is for rounding in fp32, and no wider than it says") {
    const Values ones(100, 1.0);
    const Problem p = plain(DType::fp32, {1, 1, 100});
    const double any = reference(p, ones, ones, {}, false).bound[0];
    const double zero_mean = reference(p, ones, ones, {}, true).bound[0];
    CHECK(any / (0x1p-24 * 100) == doctest::Approx(100 + 2).epsilon(1e-3));
    CHECK(zero_mean / (0x1p-24 * 100) == doctest::Approx(4 * 10 + 2).epsilon(1e-3));
  }

  TEST_CASE("the bound of the other types: sums in fp32, rounded factors, a rounded result") {
    const Values ones(100, 1.0), one(1, 1.0);
    auto bound = [&](DType type, bool zero_mean, std::int64_t k) {
      return reference(plain(type, {1, 1, k}), std::span(ones).first(static_cast<std::size_t>(k)),
                       std::span(ones).first(static_cast<std::size_t>(k)), {}, zero_mean)
                 .bound[0] /
             static_cast<double>(k);
    };
    constexpr double kUnit = 0x1p-24;
    CHECK(near(bound(DType::fp16, false, 100) - 0x1p-11, (100 + 3 * 13 + 2) * kUnit));
    CHECK(near(bound(DType::bf16, false, 100) - 0x1p-8, (100 + 3 * 13 + 2) * kUnit * (1 + 0x1p-8)));
    CHECK(near(bound(DType::tf32, false, 100) - 0x1p-10, (100 + 3 * 25 + 2) * kUnit + 0x1p-22));
    CHECK(near(bound(DType::fp16, true, 100) - 0x1p-11, (40 + 2) * kUnit));
    CHECK(near(bound(DType::tf32, true, 100) - 0x1p-10, (40 + 2) * kUnit + 0x1p-22));
    // One product: rounded once at the end it differs by u, and so it must be told from two of u.
    for (const DType type : {DType::fp16, DType::bf16}) {
      CHECK(bound(type, false, 1) < 1.01 * tile::unit_roundoff(type));
    }
    CHECK(bound(DType::tf32, false, 1) < 2.01 * 0x1p-11);
  }

  TEST_CASE("the reference adds the bias of a column, and activates") {
    // By an independent program.
    constexpr double kGelu[][2] = {{-8, 0},
                                   {-1, -0.15880800939172324},
                                   {0, 0},
                                   {0.5, 0.34571400982514394},
                                   {3, 2.996362607918227},
                                   {50, 50}};
    Problem p = plain(DType::fp32, {2, 6, 0});
    p.beta = 1;
    Values c, bias, gelu;
    for (const auto& [x, y] : kGelu) {
      bias.push_back(x - 1);
      gelu.push_back(y);
    }
    c.assign(12, 1.0);  // and so the sums are x in both rows
    p.activation = Activation::gelu;
    const tile::Expected expected = reference(p, {}, {}, c, false, bias);
    for (std::size_t i = 0; i < 12; ++i) {
      CHECK(std::abs(expected.value[i] - gelu[i % 6]) < 1e-14);
      CHECK(expected.bound[i] >= 0x1p-23);
      CHECK(expected.bound[i] <= 0x1p-24 * (5 + 20 * std::abs(kGelu[i % 6][0])));
    }
    p.activation = Activation::relu;
    CHECK(reference(p, {}, {}, c, false, bias).value ==
          Values{0, 0, 0, 0.5, 3, 50, 0, 0, 0, 0.5, 3, 50});
    p.activation = Activation::none;
    CHECK(reference(p, {}, {}, c, false, bias).value ==
          Values{-8, -1, 0, 0.5, 3, 50, -8, -1, 0, 0.5, 3, 50});
  }

  TEST_CASE("the bound has room for C being stored before the bias is added, and for no more") {
    Problem p = plain(DType::bf16, {1, 1, 1});
    const Values x{100.0}, one{1.0}, bias{-99.0};
    CHECK(near(reference(p, x, one, {}, false, bias).bound[0], 0x1p-8 * (100 + 1 + 0x1p-8 * 100)));
    CHECK(reference(p, x, one, {}, false, bias, true).bound[0] < 0x1.04p-8);
    p.type = DType::fp32;
    CHECK(reference(p, x, one, {}, false, bias).bound[0] < 0x1p-24 * (100 + 200 + 4));
  }

  TEST_CASE("the reference is infinite from where its type is") {
    auto value = [](DType type, double x) {
      return reference(scaled(plain(type, {1, 1, 0}), 1, 1), {}, {}, Values{x}, false).value[0];
    };
    CHECK(value(DType::fp16, 65519.99) == 65519.99);
    CHECK(value(DType::fp16, 65520) == kInfinity);
    CHECK(value(DType::fp16, -65520) == -kInfinity);
    for (const DType type : {DType::fp16, DType::bf16, DType::fp32, DType::tf32}) {
      const double most = tile::adversarial_finite(10, type)[8];  // the greatest value
      const double u = type == DType::tf32 ? 0x1p-24 : tile::unit_roundoff(type);
      const double infinite = std::exp2(std::ceil(std::log2(most))) * (1 - u / 2);
      for (const double x : {most, std::nextafter(infinite, 0), infinite}) {
        const bool rounds = std::isinf(tile::rounded(Values{x}, type)[0]);
        CHECK(rounds == (x == infinite));
        CHECK(std::isinf(value(type, x)) == rounds);
      }
    }
  }

  TEST_CASE("the products of the backward pass are C's derivatives") {
    // C is linear in A and in B. So central differences are exact, with any step: one is one.
    const std::int64_t m = 5, n = 4, k = 6;
    const DType type = DType::fp32;
    const Values a = tile::integers(m * k, type, 1, -8, 8),
                 b = tile::integers(k * n, type, 2, -8, 8),
                 dc = tile::integers(m * n, type, 3, -8, 8);
    auto loss = [&](const Values& x, const Values& y) {
      const Values c = reference(plain(type, {m, n, k}), x, y, {}, false).value;
      double sum = 0;
      for (std::size_t i = 0; i < c.size(); ++i) sum += dc[i] * c[i];
      return sum;
    };
    auto differences = [](Values x, auto of) {
      Values result;
      for (double& element : x) {
        const double old = element;
        element = old + 1;
        const double above = of(x);
        element = old - 1;
        const double below = of(x);
        element = old;
        result.push_back((above - below) / 2);
      }
      return result;
    };
    const Values da = differences(a, [&](const Values& x) { return loss(x, b); });
    const Values db = differences(b, [&](const Values& x) { return loss(a, x); });
    CHECK(reference(plain(type, {m, k, n}, {false, true}), dc, b, {}, false).value == da);
    CHECK(reference(plain(type, {k, n, m}, {true, false}), a, dc, {}, false).value == db);
  }

  TEST_CASE("every extent comes on every axis") {
    for (std::int64_t round = 0; round < 4; ++round) {
      std::set<std::int64_t> m, n, k;
      for (std::int64_t i = 0; i < kExtentCount; ++i) {
        const Shape shape = shape_of(i, round);
        m.insert(shape.m);
        n.insert(shape.n);
        k.insert(shape.k);
      }
      const std::set<std::int64_t> all(std::begin(kExtents), std::end(kExtents));
      CHECK(m == all);
      CHECK(n == all);
      CHECK(k == all);
    }
  }

  TEST_CASE("k is split as far as blocks are missing, and into shares of four turns at least") {
    const struct {
      Shape shape;
      unsigned splits;
      bool taken;
    } wanted[] = {{{512, 512, 8192}, 6, true},   {{3840, 128, 8192}, 4, true},
                  {{3841, 128, 8192}, 2, false}, {{8192, 128, 8192}, 2, false},
                  {{512, 513, 8192}, 6, true},   {{1024, 1024, 1024}, 2, false},
                  {{640, 768, 8192}, 4, true},   {{640, 769, 8192}, 2, false},
                  {{4096, 4096, 64}, 1, false},  {{1, 1, 1}, 1, false},
                  {{128, 128, 448}, 1, false},   {{128, 128, 449}, 2, false},
                  {{128, 128, 960}, 2, false},   {{128, 128, 961}, 4, false},
                  {{384, 640, 8192}, 8, true},   {{128, 128, 1984}, 6, false},
                  {{128, 128, 1985}, 8, false},  {{128, 128, 3072}, 8, false},
                  {{128, 128, 3584}, 8, true},   {{1 << 20, 1, 64}, 1, false},
                  {{888, 160, 3352}, 8, true},   {{152, 592, 2728}, 8, false},
                  {{100, 16384, 4096}, 1, true}, {{100, 16385, 4096}, 1, false}};
    for (const auto& w : wanted) {
      for (const std::int64_t after : {0, 1}) {  // a row of C: TMA stores it, or not
        const Problem p = padded(plain(DType::bf16, w.shape), {0, 0, after});
        const std::string problem = describe(p, {});
        CAPTURE(problem);
        CHECK(takes_few_tiles(p, {}, tile::device()).ok() == w.taken);
        CHECK(k_splits(p) == w.splits);
      }
    }
  }

  TEST_CASE("the shape of tile whose rounds take the least time") {
    const struct {
      Shape shape;
      std::size_t fastest;  // on 66 pairs of blocks
    } wanted[] = {{{4096, 4096, 4096}, 0}, {{3000, 3000, 3000}, 1}, {{2272, 1000, 1928}, 2},
                  {{496, 2312, 1328}, 3},  {{1024, 1024, 1024}, 4}, {{232, 144, 296}, 5}};
    for (const auto& w : wanted) CHECK(fastest_tile(plain(DType::bf16, w.shape), 66) == w.fastest);
  }

  TEST_CASE("few rows: k is split until 96 blocks copy B, and into shares of four turns at least") {
    const struct {
      Shape shape;
      unsigned splits;  // 0: not taken
    } wanted[] = {{{16, 16384, 4096}, 1}, {{1, 6081, 4096}, 1},  {{1, 6080, 4096}, 2},
                  {{64, 3072, 4096}, 2},  {{64, 3008, 4096}, 4}, {{16, 4096, 4096}, 2},
                  {{16, 2048, 4096}, 4},  {{16, 1024, 4096}, 6}, {{16, 128, 4096}, 8},
                  {{16, 128, 1985}, 8},   {{16, 128, 1984}, 6},  {{16, 128, 449}, 2},
                  {{16, 128, 448}, 1},    {{1, 1, 1}, 1},        {{65, 16384, 4096}, 0},
                  {{64, 1 << 20, 64}, 1}};
    for (const auto& w : wanted) {
      const Problem p = padded(plain(DType::bf16, w.shape), {0, 0, 0});
      const std::string problem = describe(p, {});
      CAPTURE(problem);
      CHECK(takes_swap_ab(p, {}, tile::device()).ok() == (w.splits != 0));
      if (w.splits != 0) CHECK(swap_splits(p) == w.splits);
    }
  }

  TEST_CASE("a line of iterations where it is reckoned to be faster, and all of it in pieces") {
    const struct {
      Shape shape;
      bool taken;  // on a card of 132 multiprocessors
    } wanted[] = {
        {{3001, 3001, 3001}, true},       {{777, 1555, 3333}, true},   {{4096, 4096, 4096}, true},
        {{3000, 3000, 3000}, true},       {{17, 4096, 4096}, false},   {{100, 1, 7}, false},
        {{2000, 2000, 2000}, false},      {{2048, 2048, 2048}, false}, {{16, 4096, 4096}, false},
        {{256, 256, 16384}, false},       {{255, 255, 16383}, false},  {{4096, 4096, 0}, false},
        {{1 << 20, 1 << 20, 4096}, false}};
    tile::Device card = tile::device();
    card.multiprocessors = 132;
    Buffers buffers{};
    buffers.workspace_bytes = INT64_MAX;
    for (const auto& w : wanted) {
      const Problem p = plain(DType::fp32, w.shape);
      const std::string problem = describe(p, {});
      CAPTURE(problem);
      CHECK(takes_stream_k(p, buffers, card).ok() == w.taken);
      for (const int multiprocessors : {1, 4, 40, 132}) {
        const StreamPlan plan = stream_plan(p, multiprocessors);
        if (plan.pieces == 0) continue;
        CHECK(plan.tile * 8 >= p.k);
        CHECK(plan.line <= plan.tiles);
        CHECK(std::int64_t{plan.length} * plan.pieces + plan.longer ==
              std::int64_t{plan.line} * plan.tile);
        CHECK((plan.tiles - plan.line) % plan.pieces == 0);
        CHECK(stream_counters(plan) % 4 == 0);
        CHECK((plan.line == 0 || stream_counters(plan) > plan.pieces));
      }
    }
  }

  TEST_CASE("no card's best step rounds twice") {
    for (const int capability : {75, 80, 86, 89, 90, 100, 120}) {
      for (const DType type : tile::kDTypes) {
        for (std::size_t at = std::size(kSteps); at-- > 0;) {
          const Ladder::Step& step = kSteps[at];
          bool can_run = step.types.contains(type);
          for (const tile::Feature feature : tile::kFeatures) {
            const bool is_of_fp16 = feature == tile::Feature::bf16_mma && type == DType::fp16;
            if (step.needs.contains(feature)) {
              can_run = can_run && tile::has_feature(
                                       capability, is_of_fp16 ? tile::Feature::fp16_mma : feature);
            }
          }
          // Step tile_shapes takes all that takes_boxes() does.
          if (!can_run || step.takes == takes_boxes) continue;
          CAPTURE(capability);
          CAPTURE(step.name);
          CHECK(!step.rounds_twice);
          if (!step.takes) break;  // it takes everything: no earlier step is reached
        }
      }
    }
    for (const Shape shape : {Shape{8, 8, 8}, {600, 8, 8}, {8, 600, 8}, {600, 600, 7}}) {
      for (const Transposes transposes : kTransposes) {
        const Problem any = plain(DType::bf16, shape, transposes);
        for (const Problem& p : {any, padded(any, {0, 0, 1}), padded(any, {1, 0, 0})}) {
          for (const std::int64_t bytes : {std::int64_t{0}, INT64_MAX}) {
            Buffers buffers{};
            buffers.workspace_bytes = bytes;
            const tile::Device& here = tile::device();
            if (takes_boxes(p, buffers, here).ok())
              CHECK(takes_padded_boxes(p, buffers, here).ok());
          }
        }
      }
    }
  }

  TEST_CASE("every step has a name, an idea and its types, and stands in for another if need be") {
    for (const Ladder::Step& step : kSteps) {
      CAPTURE(step.name);
      CHECK(!step.name.empty());
      CHECK(!step.idea.empty());
      CHECK(!step.types.empty());
      CHECK(!step.types.contains(DType::fp64));
      // Not every card has tensor cores, and so the other types.
      if (step.needs.empty()) CHECK(tile::listed(step.types) == "fp32");
      // Of the first pass every size is taken: only a feature can be missing. TMA has rules, and
      // another step for what breaks them. Either needs less.
      // And what a step does with a workspace pays for some sizes only.
      CHECK(!step.takes == (!step.needs.contains(tile::Feature::tma) && !step.workspace_bytes));
      if (step.otherwise.empty()) continue;
      const std::size_t other = find_step(kLadder, step.otherwise);
      REQUIRE(other < find_step(kLadder, step.name));
      CHECK(tile::listed(kSteps[other].types) == tile::listed(step.types));
      for (const tile::Feature feature : tile::kFeatures) {
        CHECK((step.needs.contains(feature) || !kSteps[other].needs.contains(feature)));
      }
    }
  }
}

}  // namespace matmul
