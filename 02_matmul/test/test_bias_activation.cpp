// Chapter 02's tests: bias and activation.
#include <utility>

#include "harness/pairs.hpp"
#include "test_support.hpp"

namespace matmul {
namespace {

constexpr Activation kActivations[] = {Activation::none, Activation::relu, Activation::gelu};

Problem activated(Problem p, Activation activation) {
  p.activation = activation;
  return p;
}

// With sums of up to 100 terms that every type holds, also with half of c: a step that stores C
// before it adds the bias rounds nothing.
Inputs small_integers(const Problem& p) {
  Inputs in = integers(p, 1);
  in.bias = tile::integers(p.n, p.type, 7, -8, 8);
  return in;
}

}  // namespace

TEST_SUITE("step") {
  TEST_CASE("bias, activation, alpha and beta in pairs, where the sums are exact") {
    tile::for_each_step(
        kTested,
        [](const Step& step, DType type) {
          // Tiles of all steps: a part of one, whole ones, several; and for two steps the last of
          // these needs tiles of 192 columns, and for one the third those of 256.
          const bool has_shapes = step.name == "tile_shapes" || step.name == "tma_store";
          const Shape kShapes[] = {
              {35, 135, 17},
              {136, 40, 16},
              step.name == "tma_store" ? Shape{400, 250, 72} : Shape{3, 261, 100},
              has_shapes ? Shape{376, 328, 72} : Shape{128, 256, 32}};
          struct Scales {
            float alpha, beta;
          };
          const auto cases = tile::drawn_cases(step.number, [&](tile::Pick& pick) {
            Problem p = plain(type, pick(kShapes), pick(transposes_of(type)));
            const auto [alpha, beta] = pick({Scales{1, 0}, Scales{1, 0.5f}, Scales{-0.5f, 0.5f}});
            p = activated(scaled(p, alpha, beta), pick(kActivations));
            Inputs in = small_integers(p);
            if (pick({true, false})) in.bias.clear();
            return std::pair(p, in);
          });
          for (std::size_t i = 0; i < cases.size(); ++i) {
            const auto& [p, in] = cases[i];
            const bool is_gelu = p.activation == Activation::gelu;
            if (!tile::takes_case(step, type, i)) continue;
            check_step(step, p, in, is_gelu ? Sums::any : Sums::exact);
          }
          for (const Activation activation : kActivations) {
            const Sums sums = activation == Activation::gelu ? Sums::any : Sums::exact;
            // More than the threads of the card that run at one time take at once.
            const Shape large =
                tile::device().simulated ? Shape{259, 385, 3} : Shape{2303, 1411, 3};
            const Problem many = activated(plain(type, large), activation);
            check_step(step, many, small_integers(many), sums);
            const Problem unread =
                activated(scaled(plain(type, {33, 34, 5}), 0, -0.5f), activation);
            Inputs in = small_integers(unread);
            in.a.assign(in.a.size(), kNaN);
            check_step(step, unread, in, sums);
          }
        },
        tile::OwnKernel::must_run, tile::Types::all);
  }

  TEST_CASE("bias and activation of random values") {
    tile::for_each_step(kTested, [](const Step& step, DType type) {
      for (const Activation activation : kActivations) {
        for (const Transposes transposes : {kTransposes[0], kTransposes[3]}) {
          for (const float beta : {0.f, -3.7f}) {
            const Problem p =
                activated(scaled(plain(type, {63, 67, 40}, transposes), 0.1f, beta), activation);
            Inputs in = normal(p);
            in.bias = tile::normal(p.n, type, 8);
            check_step(step, p, in, Sums::zero_mean);
          }
        }
      }
    });
  }

  TEST_CASE("C is rounded once, also where the bias cancels the product") {
    // All rows of A are the same, and so are all rows of the product: less its rounded value it is
    // what rounding took away, of which a second rounding would leave nothing.
    tile::for_each_step(
        kTested,
        [](const Step& step, DType type) {
          if (step.rounds_twice || type == DType::e4m3) return;
          const struct {
            Shape shape;
            Transposes transposes;
            float alpha;
            std::int64_t beyond;  // elements between a row of C and the next
          } cases[] = {{{515, 1208, 40}, {false, true}, 1, 1},
                       {{128, 4096, 31}, {true, false}, -1.7f, 0}};
          for (const auto& [shape, transposes, alpha, beyond] : cases) {
            Problem p = scaled(plain(type, shape, transposes), alpha, 0);
            p.ldc += beyond;
            Inputs in = normal(p);
            const Values row = tile::normal(p.k, type, 9);
            for (std::int64_t i = 0; i < p.m * p.k; ++i) {
              element_of_a(in, p, i / p.k, i % p.k) = row[static_cast<std::size_t>(i % p.k)];
            }
            const Problem one{type, 1, p.n, p.k, false, p.transpose_b};
            in.bias = reference(scaled(one, -alpha, 0), row, in.b, {}, true).value;
            in.bias = tile::rounded(in.bias, type);
            check_step(step, p, in, Sums::any);
          }
        },
        tile::OwnKernel::need_not_run);
  }

  TEST_CASE("activations over their range") {
    // Each element of C is one of A, plus 0.
    tile::for_each_step(kTested, [](const Step& step, DType type) {
      for (const Activation activation : kActivations) {
        for (const double range : {1.0, 8.0, 60.0}) {
          const Problem p = activated(plain(type, {1025, 9, 1}), activation);
          Inputs in{tile::uniform(p.m, type, 20, -range, range), Values(9, 1.0), {}, {}};
          check_step(step, p, in, Sums::any);
        }
        const Problem p = activated(plain(type, {62, 9, 1}), activation);
        check_step(step, p, {tile::adversarial_finite(p.m, type), Values(9, 1.0), {}, {}},
                   Sums::any);
      }
    });
  }

  TEST_CASE("NaN and infinity stay through bias and activation") {
    tile::for_each_step(kTested, [](const Step& step, DType type) {
      for (const Activation activation : kActivations) {
        const Problem p = activated(plain(type, {37, 45, 9}), activation);
        Inputs in{tile::uniform(p.m * p.k, type, 10, 0.5, 1),
                  tile::uniform(p.k * p.n, type, 11, 0.5, 1),
                  {},
                  tile::uniform(p.n, type, 12, -1, 1)};
        element_of_a(in, p, 3, 8) = kNaN;
        element_of_a(in, p, 4, 0) = infinity_of(type);
        element_of_a(in, p, 36, 0) = -infinity_of(type);
        in.bias[7] = kNaN;
        in.bias[8] = kInfinity;  // in row 36 it meets -infinity
        in.bias[44] = -kInfinity;
        check_step(step, p, in, Sums::any);
      }
    });
  }

  TEST_CASE("C overflows with the bias, or before an activation makes it 0") {
    tile::for_each_step(
        kTested,
        [](const Step& step, DType type) {
          if (type == DType::e4m3) return;  // its products do not come near C's greatest number
          for (const Activation activation : kActivations) {
            const Problem p = activated(plain(type, {2, 8, 1}), activation);
            // 60,000 + 6,016 is infinite in fp16, and so is -70,000.
            Values bias(8, 6016.0);
            bias[1] = -6016;
            check_step(step, p, {{250, -250}, Values(8, 240.0), {}, bias}, Sums::any);
            check_step(step, p, {{280, -280}, Values(8, 250.0), {}, {}}, Sums::any);
          }
        },
        tile::OwnKernel::need_not_run);
  }

  TEST_CASE("bias and C aligned in every way") {
    tile::for_each_step(kTested, [](const Step& step, DType type) {
      for (const std::int64_t n : {136, 133}) {
        for (const std::int64_t offset : {0, 1, 2, 3, 4, 5, 8}) {
          for (const std::int64_t padding :
               {std::int64_t{0}, std::int64_t{1}, vector_length(type) / 2}) {
            const Problem p = activated(padded(plain(type, {19, n, 8}), {0, 0, padding}),
                                        offset % 2 == 0 ? Activation::none : Activation::relu);
            check_step(step, p, small_integers(p), Sums::exact, {0, 0, offset % 3}, offset);
          }
        }
      }
    });
  }
}

}  // namespace matmul
