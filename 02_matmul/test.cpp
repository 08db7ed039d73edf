// Chapter 02's tests: every step on every check.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <set>

#include "harness/buffer.hpp"
#include "harness/cuda_check.hpp"
#include "harness/device.hpp"
#include "harness/inputs.hpp"
#include "harness/test_main.hpp"
#include "large.hpp"

using tile::Comparison;
using tile::DeviceBuffer;
using tile::DType;
using tile::Layout;
using tile::Poison;
using tile::Status;

namespace matmul {
namespace {

using Values = std::vector<double>;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// ---- A problem, its inputs, and where they lie ----

struct Shape {
  std::int64_t m, n, k;
};

struct Transposes {
  bool a, b;
};
constexpr Transposes kTransposes[] = {{false, false}, {false, true}, {true, false}, {true, true}};

/// Of each matrix: elements from a 256-byte boundary to the first, or elements between two rows.
struct Three {
  std::int64_t a, b, c;
};

Problem plain(DType type, Shape shape, Transposes transposes = {}) {
  return {type, shape.m, shape.n, shape.k, transposes.a, transposes.b};
}

// With rows that begin at multiples of four elements, or `padding` elements behind them.
Problem padded(Problem p, Three padding) {
  auto multiple_of_4 = [](std::int64_t count) { return (count + 3) / 4 * 4; };
  p.lda = multiple_of_4(p.transpose_a ? p.m : p.k) + padding.a;
  p.ldb = multiple_of_4(p.transpose_b ? p.k : p.n) + padding.b;
  p.ldc = multiple_of_4(p.n) + padding.c;
  return p;
}

Problem scaled(Problem p, float alpha, float beta) {
  p.alpha = alpha;
  p.beta = beta;
  return p;
}

Layout layout_a(const Problem& p, std::int64_t offset = 0) {
  return tile::matrix_layout(p.type, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.lda,
                             offset);
}
Layout layout_b(const Problem& p, std::int64_t offset = 0) {
  return tile::matrix_layout(p.type, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.ldb,
                             offset);
}
Layout layout_c(const Problem& p, std::int64_t offset = 0) {
  return tile::matrix_layout(p.type, p.m, p.n, p.ldc, offset);
}

// "m n k 65 33 9, A transposed, lda ldb ldc 68 36 33, offsets 0 1 0, alpha 1, beta 0"
std::string describe(const Problem& p, Three offsets) {
  auto text = [](auto... numbers) {
    std::string all;
    for (const std::int64_t x : {numbers...}) all += (all.empty() ? "" : " ") + std::to_string(x);
    return all;
  };
  return "m n k " + text(p.m, p.n, p.k) + (p.transpose_a ? ", A transposed" : "") +
         (p.transpose_b ? ", B transposed" : "") + ", lda ldb ldc " + text(p.lda, p.ldb, p.ldc) +
         ", offsets " + text(offsets.a, offsets.b, offsets.c) + ", alpha " +
         std::to_string(p.alpha) + ", beta " + std::to_string(p.beta);
}

/// The matrices as they are stored, without padding. c is what C holds before.
struct Inputs {
  Values a, b, c;
};

Inputs integers(const Problem& p) {
  return {tile::integers(p.m * p.k, p.type, 1, -8, 8), tile::integers(p.k * p.n, p.type, 2, -8, 8),
          tile::integers(p.m * p.n, p.type, 3, -8, 8)};
}

Inputs normal(const Problem& p) {
  return {tile::normal(p.m * p.k, p.type, 4), tile::normal(p.k * p.n, p.type, 5),
          tile::normal(p.m * p.n, p.type, 6)};
}

// The element of op(A) at (row, l), and of op(B) at (l, col).
double& element_of_a(Inputs& in, const Problem& p, std::int64_t row, std::int64_t l) {
  return in.a[static_cast<std::size_t>(p.transpose_a ? l * p.m + row : row * p.k + l)];
}
double& element_of_b(Inputs& in, const Problem& p, std::int64_t l, std::int64_t col) {
  return in.b[static_cast<std::size_t>(p.transpose_b ? col * p.k + l : l * p.n + col)];
}

/// What the inputs promise about the sums, and so how far off a correct kernel may be.
enum class Sums {
  exact,      ///< no addition rounds: not at all
  zero_mean,  ///< roundings cancel
  any,
};

// ---- Running a step ----

// Sums of zeros may be either zero.
Values without_negative_zeros(Values values) {
  for (double& x : values) {
    if (x == 0) x = 0;
  }
  return values;
}

// Runs the step on these inputs, and checks the result and the buffers. What C held must not matter
// if beta is 0: the step runs with each poison in it.
void check_step(const Step& step, const Problem& p, const Inputs& in, Sums sums,
                Three offsets = {0, 0, 0}) {
  CAPTURE(step.name);
  const std::string problem = describe(p, offsets);
  CAPTURE(problem);
  tile::Expected expected = reference(p, in.a, in.b, in.c, sums == Sums::zero_mean);
  if (sums == Sums::exact) {
    expected.value = without_negative_zeros(std::move(expected.value));
    expected.bound.assign(expected.bound.size(), 0.0);
  }

  auto check = [&](DeviceBuffer device_c) {
    DeviceBuffer device_a = DeviceBuffer::input("a", layout_a(p, offsets.a), in.a);
    DeviceBuffer device_b = DeviceBuffer::input("b", layout_b(p, offsets.b), in.b);
    const Status done = tile::run_step(step, p, {device_a.raw(), device_b.raw(), device_c.raw()});
    REQUIRE_MESSAGE(done.ok(), done.message);
    Values result = device_c.download();
    if (sums == Sums::exact) result = without_negative_zeros(std::move(result));
    const Comparison comparison = tile::compare("c", result, expected);
    CHECK_MESSAGE(comparison.ok(), comparison.message);
    for (const DeviceBuffer* buffer : {&device_a, &device_b, &device_c}) {
      const Status intact = buffer->check();
      CHECK_MESSAGE(intact.ok(), intact.message);
    }
  };
  if (p.beta == 0) {
    for (const Poison poison : tile::kOutputPoisons) {
      check(DeviceBuffer::output("c", layout_c(p, offsets.c), poison));
    }
  } else {
    check(DeviceBuffer::in_out("c", layout_c(p, offsets.c), in.c));
  }
}

// ---- Sizes ----

// Around the tiles of all steps, one and two of them; and primes.
constexpr std::int64_t kExtents[] = {1,  2,  3,  7,  8,  9,   15,  16,  17,  31,  32, 33,
                                     63, 64, 65, 71, 97, 113, 127, 128, 129, 255, 257};
constexpr std::int64_t kExtentCount = std::size(kExtents);

// In round r each extent comes once on each axis, with others on the other two. The count is prime,
// so that the multiples of a number meet all.
static_assert(kExtentCount == 23);
Shape shape_of(std::int64_t i, std::int64_t round) {
  return {kExtents[i], kExtents[(5 * i + 3 + round) % kExtentCount],
          kExtents[(7 * i + 11 + 2 * round) % kExtentCount]};
}

}  // namespace

TEST_SUITE("step") {
  TEST_CASE("the identity times B is B, and A times the identity is A") {
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
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
      CHECK(reference(left, identity(37), any_left.b, {}, false).value == any_left.b);
      CHECK(reference(right, any_right.a, identity(37), {}, false).value == any_right.a);
    });
  }

  TEST_CASE("one element of A meets one element of B in one element of C") {
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      for (const Transposes transposes : kTransposes) {
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
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      std::int64_t round = 0;
      for (const Transposes transposes : kTransposes) {
        for (std::int64_t i = 0; i < kExtentCount; ++i) {
          const Problem p = plain(type, shape_of(i, round), transposes);
          check_step(step, p, integers(p), Sums::exact);
        }
        ++round;
      }
    });
  }

  TEST_CASE("alpha and beta") {
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
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

  TEST_CASE("no rows, no columns, nothing to sum") {
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      for (const Transposes transposes : kTransposes) {
        for (const Shape shape : {Shape{0, 5, 7}, Shape{5, 0, 7}, Shape{0, 0, 0}, Shape{5, 7, 0},
                                  Shape{0, 5, 0}, Shape{130, 257, 0}}) {
          for (const float beta : {0.f, 0.5f}) {
            const Problem p = scaled(plain(type, shape, transposes), 1, beta);
            check_step(step, p, integers(p), Sums::exact);
          }
        }
      }
    });
  }

  TEST_CASE("NaN and infinity stay in their row of A, or their column of B") {
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      for (const Transposes transposes : kTransposes) {
        const Problem p = plain(type, {131, 133, 19}, transposes);
        const Inputs usual{tile::uniform(p.m * p.k, type, 10, 0.5, 1),
                           tile::uniform(p.k * p.n, type, 11, 0.5, 1),
                           {}};
        for (const std::int64_t l : {0, 7, 8, 18}) {
          Inputs in = usual;
          element_of_a(in, p, 0, l) = kNaN;
          element_of_a(in, p, 64, l) = kInfinity;
          element_of_a(in, p, 130, l) = -kInfinity;
          check_step(step, p, in, Sums::any);
          in = usual;
          element_of_b(in, p, l, 0) = -kInfinity;
          element_of_b(in, p, l, 67) = kNaN;
          element_of_b(in, p, l, 132) = kInfinity;
          check_step(step, p, in, Sums::any);
        }
      }
    });
  }

  TEST_CASE("bad arguments are refused by name and nothing is written") {
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      CAPTURE(step.name);
      const Problem good = plain(type, {9, 7, 5});
      const auto element = static_cast<std::int64_t>(tile::size_bytes(type));
      DeviceBuffer a = DeviceBuffer::input("a", tile::vector_layout(type, 45), Values(45, 1.0));
      DeviceBuffer b = DeviceBuffer::input("b", tile::vector_layout(type, 35), Values(35, 1.0));
      // Its end serves as A and as B, so it has values.
      DeviceBuffer c = DeviceBuffer::in_out("c", tile::vector_layout(type, 300), Values(300, 1.0));
      const Buffers buffers{a.raw(), b.raw(), c.raw()};
      auto bytes_after = [](void* pointer, std::int64_t bytes) {
        return static_cast<void*>(static_cast<char*>(pointer) + bytes);
      };
      auto after = [&](DeviceBuffer& buffer, std::int64_t elements) {
        return bytes_after(buffer.raw(), elements * element);
      };

      auto refuses = [&](const Problem& p, const Buffers& where, const std::string& argument,
                         tile::Code code = tile::Code::invalid_argument) {
        const std::string problem = describe(p, {});
        CAPTURE(problem);
        CAPTURE(argument);
        const Status status = step.launch(p, where, nullptr);
        CHECK(status.code == code);
        CHECK_MESSAGE(status.message.rfind(argument + ": ", 0) == 0, status.message);
        const Status done = tile::synchronize_status(nullptr);
        CHECK_MESSAGE(done.ok(), done.message);
        const Status untouched = c.check_unchanged();
        CHECK_MESSAGE(untouched.ok(), untouched.message);
      };
      auto accepts = [&](const Problem& p, const Buffers& where) {
        const std::string problem = describe(p, {});
        CAPTURE(problem);
        const Status done = tile::run_step(step, p, where);
        CHECK_MESSAGE(done.ok(), done.message);
      };
      auto with = [](Problem p, auto member, auto value) {
        p.*member = value;
        return p;
      };

      // Extents, types, leading dimensions.
      refuses(with(good, &Problem::m, -1), buffers, "m");
      refuses(with(good, &Problem::n, -1), buffers, "n");
      refuses(with(good, &Problem::k, -1), buffers, "k");
      const Problem transposed = plain(type, {9, 7, 5}, {true, true});
      refuses(with(good, &Problem::lda, 4), buffers, "lda");
      refuses(with(good, &Problem::ldb, 6), buffers, "ldb");
      refuses(with(good, &Problem::ldc, 6), buffers, "ldc");
      refuses(with(good, &Problem::lda, -5), buffers, "lda");
      refuses(with(transposed, &Problem::lda, 8), buffers, "lda");
      refuses(with(transposed, &Problem::ldb, 4), buffers, "ldb");
      refuses(with(transposed, &Problem::ldc, 6), buffers, "ldc");
      for (const DType other : tile::kDTypes) {
        if (step.types.contains(other)) continue;
        refuses(with(good, &Problem::type, other), buffers, "type", tile::Code::unsupported);
      }

      // Sizes: in bytes, in elements, in elements between the first of each row. With alpha 0 the
      // greatest that are right can be tried, without such a matrix.
      const Problem unread = with(good, &Problem::alpha, 0.f);
      constexpr std::int64_t kMost = INT64_MAX;
      const std::int64_t elements = kMost / element;
      const std::int64_t most_lda = (elements - 5) / 8, most_ldb = (elements - 7) / 4,
                         most_ldc = (elements - 7) / 8;
      refuses(with(unread, &Problem::lda, most_lda + 1), buffers, "a");
      refuses(with(unread, &Problem::ldb, most_ldb + 1), buffers, "b");
      refuses(with(unread, &Problem::ldc, most_ldc + 1), buffers, "c");
      for (const std::int64_t ld : {kMost / 8, kMost / 8 + 1, kMost}) {
        refuses(with(unread, &Problem::lda, ld), buffers, "a");
        refuses(with(unread, &Problem::ldb, ld), buffers, "b");
        refuses(with(unread, &Problem::ldc, ld), buffers, "c");
      }
      CHECK(validate(with(unread, &Problem::ldc, most_ldc), buffers).ok());
      // More blocks than a grid has, for tiles of up to 2^12 x 2^12.
      constexpr std::int64_t kWide = std::int64_t{1} << 28;
      refuses(scaled(plain(type, {kWide, kWide, 1}), 0, 0), buffers, "m and n",
              tile::Code::unsupported);

      // Pointers.
      refuses(good, {nullptr, b.raw(), c.raw()}, "a");
      refuses(good, {a.raw(), nullptr, c.raw()}, "b");
      refuses(good, {a.raw(), b.raw(), nullptr}, "c");
      refuses(unread, {a.raw(), b.raw(), nullptr}, "c");
      refuses(good, {bytes_after(a.raw(), 1), b.raw(), c.raw()}, "a");
      refuses(good, {a.raw(), bytes_after(b.raw(), 1), c.raw()}, "b");
      refuses(good, {a.raw(), b.raw(), bytes_after(c.raw(), 1)}, "c");

      // C has 9 x 7 elements, A 9 x 5, B 5 x 7: one element in common is too much. Neither may
      // lie between the rows of the other.
      const Problem wide_c = with(good, &Problem::ldc, 20);
      refuses(good, {c.raw(), b.raw(), c.raw()}, "c");
      refuses(good, {after(c, 62), b.raw(), c.raw()}, "c");
      refuses(good, {c.raw(), b.raw(), after(c, 44)}, "c");
      refuses(wide_c, {after(c, 166), b.raw(), c.raw()}, "c");
      refuses(with(good, &Problem::lda, 10), {c.raw(), b.raw(), after(c, 84)}, "c");
      refuses(good, {a.raw(), c.raw(), c.raw()}, "c");
      refuses(good, {a.raw(), after(c, 62), c.raw()}, "c");
      refuses(good, {a.raw(), c.raw(), after(c, 34)}, "c");
      refuses(wide_c, {a.raw(), after(c, 166), c.raw()}, "c");
      refuses(with(good, &Problem::ldb, 10), {a.raw(), c.raw(), after(c, 46)}, "c");

      // The nearest calls that are right.
      accepts(plain(type, {0, 7, 5}), {nullptr, nullptr, nullptr});
      accepts(plain(type, {9, 0, 5}), {nullptr, nullptr, nullptr});
      accepts(with(plain(type, {0, 7, 5}), &Problem::lda, kMost), buffers);
      Status untouched = c.check_unchanged();
      CHECK_MESSAGE(untouched.ok(), untouched.message);
      accepts(plain(type, {9, 7, 0}), {nullptr, nullptr, c.raw()});
      accepts(unread, {nullptr, nullptr, c.raw()});
      accepts(unread, {c.raw(), c.raw(), c.raw()});
      accepts(with(unread, &Problem::lda, most_lda), buffers);
      accepts(with(unread, &Problem::ldb, most_ldb), buffers);
      accepts(good, {a.raw(), a.raw(), c.raw()});  // B may be A
      accepts(good, {after(c, 63), b.raw(), c.raw()});
      accepts(good, {c.raw(), b.raw(), after(c, 45)});
      accepts(wide_c, {after(c, 167), b.raw(), c.raw()});
      accepts(with(good, &Problem::lda, 10), {c.raw(), b.raw(), after(c, 85)});
      accepts(good, {a.raw(), after(c, 63), c.raw()});
      accepts(good, {a.raw(), c.raw(), after(c, 35)});
      accepts(wide_c, {a.raw(), after(c, 167), c.raw()});
      accepts(with(good, &Problem::ldb, 10), {a.raw(), c.raw(), after(c, 47)});
      for (const DeviceBuffer* buffer : {&a, &b, &c}) {
        const Status intact = buffer->check();
        CHECK_MESSAGE(intact.ok(), intact.message);
      }
    });
  }

  TEST_CASE("denormals, zeros and large numbers") {
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      // With one product to a sum small ones show, with many the large ones hide them.
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
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      for (const Transposes transposes : kTransposes) {
        for (const Shape shape : {Shape{1, 1, 1}, Shape{65, 131, 1}, Shape{129, 67, 257},
                                  Shape{3, 5, 1025}, Shape{97, 113, 33}}) {
          const Problem p = plain(type, shape, transposes);
          check_step(step, p, normal(p), Sums::zero_mean);
        }
      }
    });
  }

  TEST_CASE("random values that are all positive") {
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
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
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      CAPTURE(step.name);
      auto small_integers = [type](std::int64_t count, std::uint64_t seed) {
        return tile::integers(count, type, seed, -8, 8);
      };
      auto product = [&step](const Problem& p, const Values& a, const Values& b) {
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
    });
  }

  TEST_CASE("many tiles along each extent") {
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      std::vector<Shape> shapes{{587, 9, 33}, {9, 799, 17},   {2, 3, 1023},   {1025, 2, 3},
                                {3, 1025, 1}, {259, 385, 41}, {1303, 131, 9}, {131, 1303, 5}};
      if (!tile::device().simulated) {
        for (const Shape shape : {Shape{1303, 1411, 799}, Shape{2303, 517, 1031}}) {
          shapes.push_back(shape);
        }
      }
      for (const Shape shape : shapes) {
        for (const Transposes transposes : kTransposes) {
          const Problem p = plain(type, shape, transposes);
          check_step(step, p, integers(p), Sums::exact);
        }
      }
    });
  }

  TEST_CASE("pointers and rows aligned in every way") {
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      constexpr Three kOffsets[] = {{0, 0, 0}, {1, 0, 0}, {0, 1, 0}, {0, 0, 1},
                                    {1, 1, 1}, {3, 3, 3}, {0, 2, 3}, {4, 4, 4}};
      constexpr Three kPaddings[] = {{0, 0, 0}, {4, 8, 4}, {1, 2, 3},
                                     {1, 0, 0}, {0, 1, 0}, {0, 0, 1}};
      for (const Three offsets : kOffsets) {
        for (const Three padding : kPaddings) {
          for (const Transposes transposes : kTransposes) {
            for (const Shape shape : {Shape{132, 136, 20}, Shape{37, 50, 11}}) {
              const Problem p = padded(plain(type, shape, transposes), padding);
              check_step(step, p, integers(p), Sums::exact, offsets);
            }
          }
        }
      }
    });
  }

  TEST_CASE("rows so far apart that there is no memory between them and the next") {
    // Whoever reads past a matrix, even for values that do not matter, meets a bad address.
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      for (const std::int64_t ld : {std::int64_t{1} << 21, (std::int64_t{1} << 21) + 1}) {
        auto check = [&](Shape shape, Transposes transposes) {
          Problem p = plain(type, shape, transposes);
          p.lda = p.ldb = p.ldc = ld;
          check_step(step, p, integers(p), Sums::exact);
        };
        for (const Transposes transposes : kTransposes) check({2, 2, 2}, transposes);
        check({2, 2, 16}, {false, true});  // rows of whole vectors and tiles
      }
    });
  }

  TEST_CASE("repeated runs give the same bytes") {
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      CAPTURE(step.name);
      const Problem p = plain(type, {259, 133, 131});
      const Inputs in = normal(p);
      DeviceBuffer a = DeviceBuffer::input("a", layout_a(p), in.a);
      DeviceBuffer b = DeviceBuffer::input("b", layout_b(p), in.b);
      std::vector<std::byte> first;
      const int runs = tile::device().simulated ? 3 : 250;
      for (int i = 0; i < runs; ++i) {
        CAPTURE(i);
        DeviceBuffer c = DeviceBuffer::output("c", layout_c(p), tile::kOutputPoisons[i % 2]);
        const Status done = tile::run_step(step, p, {a.raw(), b.raw(), c.raw()});
        REQUIRE_MESSAGE(done.ok(), done.message);
        if (i == 0) first = c.download_bytes();
        const bool same = c.download_bytes() == first;
        REQUIRE(same);
      }
    });
  }
}

TEST_SUITE("launch") {
  TEST_CASE("the kernel runs in the stream it was given, and a launch that fails is reported") {
    // A stream that does not exist shows both.
    if (!tile::device().simulated) return tile::skip("a GPU's driver may crash on such a stream");
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      CAPTURE(step.name);
      for (const Transposes transposes : kTransposes) {
        const Problem p = plain(type, {10, 10, 10}, transposes);
        DeviceBuffer a = DeviceBuffer::input("a", layout_a(p), integers(p).a);
        DeviceBuffer c = DeviceBuffer::output("c", layout_c(p), Poison::unwritten_nan);
        int no_stream = 0;
        const Status status = step.launch(p, {a.raw(), a.raw(), c.raw()}, &no_stream);
        CHECK(status.code == tile::Code::device_error);
        const bool named =
            status.message.find("cudaErrorInvalidResourceHandle") != std::string::npos;
        CHECK_MESSAGE(named, status.message);
        const Status untouched = c.check_unchanged();
        CHECK_MESSAGE(untouched.ok(), untouched.message);
      }
    });
  }
}

namespace {

// ---- Products checked on the device ----

struct CudaFree {
  void operator()(float* memory) const { static_cast<void>(cudaFree(memory)); }
};
using DeviceMemory = std::unique_ptr<float, CudaFree>;

// A, B and C in one piece of memory, all bits one (a NaN) around them.
struct LargeMatrices {
  static constexpr std::int64_t kGap = 1 << 13;  // elements; a power of two keeps all aligned

  DeviceMemory memory;
  std::int64_t count;
  Matrix a, b, c;

  Buffers buffers() const { return {a.data, b.data, c.data}; }
};

Matrix matrix_of(const Layout& layout) { return {nullptr, layout.rows, layout.cols, layout.ld}; }

std::int64_t in_gaps(const Matrix& matrix) {
  constexpr std::int64_t kGap = LargeMatrices::kGap;
  return (matrix.extent() + kGap - 1) / kGap * kGap + kGap;
}

LargeMatrices place(const Problem& p) {
  LargeMatrices x{{},
                  LargeMatrices::kGap,
                  matrix_of(layout_a(p)),
                  matrix_of(layout_b(p)),
                  matrix_of(layout_c(p))};
  for (const Matrix* matrix : {&x.a, &x.b, &x.c}) x.count += in_gaps(*matrix);
  void* memory = nullptr;
  const auto bytes = static_cast<std::size_t>(x.count) * sizeof(float);
  const Status allocated = tile::cuda_status(cudaMalloc(&memory, bytes), "cudaMalloc");
  REQUIRE_MESSAGE(allocated.ok(), allocated.message);
  x.memory.reset(static_cast<float*>(memory));
  REQUIRE(cudaMemset(memory, 0xff, bytes) == cudaSuccess);
  float* next = x.memory.get() + LargeMatrices::kGap;
  for (Matrix* matrix : {&x.a, &x.b, &x.c}) {
    matrix->data = next;
    next += in_gaps(*matrix);
  }
  Status filled = fill_integers(x.a, 1);
  REQUIRE_MESSAGE(filled.ok(), filled.message);
  filled = fill_integers(x.b, 2);
  REQUIRE_MESSAGE(filled.ok(), filled.message);
  return x;
}

// C, its padding, and the gaps before and behind it.
float* around_c(const LargeMatrices& x) { return x.c.data - LargeMatrices::kGap; }
std::int64_t count_around_c(const LargeMatrices& x) {
  return x.count - (around_c(x) - x.memory.get());
}

// Every selected step on integers, all of C checked, and what lies around it.
void check_large(const Problem& p) {
  const LargeMatrices x = place(p);
  for (const Step& step : tile::selected_steps(kSteps)) {
    if (!step.types.contains(p.type)) continue;
    CAPTURE(step.name);
    const std::string problem = describe(p, {});
    CAPTURE(problem);
    REQUIRE(cudaMemset(around_c(x), 0xff,
                       static_cast<std::size_t>(count_around_c(x)) * sizeof(float)) == cudaSuccess);
    Status status = tile::run_step(step, p, x.buffers());
    REQUIRE_MESSAGE(status.ok(), status.message);
    status = check_product(p, x.buffers());
    CHECK_MESSAGE(status.ok(), status.message);
    status = check_surroundings(around_c(x), count_around_c(x), x.c);
    CHECK_MESSAGE(status.ok(), status.message);
  }
}

}  // namespace

TEST_SUITE("large") {
  TEST_CASE("the benchmark's sizes, and one more or less of each extent") {
    if (tile::device().simulated) return tile::skip("takes hours on the CPU device");
    for (const std::int64_t n : {2048, 4096, 8192}) {
      for (const Shape change :
           {Shape{0, 0, 0}, Shape{1, 0, 0}, Shape{-1, 0, 0}, Shape{0, 1, 0}, Shape{0, -1, 0},
            Shape{0, 0, 1}, Shape{0, 0, -1}, Shape{1, 1, 1}, Shape{-1, -1, -1}}) {
        check_large(plain(DType::fp32, {n + change.m, n + change.n, n + change.k}));
      }
    }
    for (const Transposes transposes : kTransposes) {
      for (const Shape shape : {Shape{2048, 2048, 2048}, Shape{2047, 2049, 2051}}) {
        check_large(plain(DType::fp32, shape, transposes));
      }
    }
  }

  TEST_CASE("elements that lie more than 2^32 elements behind the first") {
    if (tile::device().simulated) return tile::skip("needs more memory than the CPU device has");
    std::size_t free_bytes = 0, total_bytes = 0;
    REQUIRE(cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess);
    if (free_bytes < std::size_t{20} << 30) return tile::skip("needs 20 GiB of device memory");
    // 133 rows, the last at about 2^32 + 2^27: inside a tile and at its corner rows begin beyond
    // 2^31.
    constexpr std::int64_t kLd = (std::int64_t{1} << 25) + 1;
    for (const Transposes transposes : kTransposes) {
      Problem p = plain(DType::fp32, {133, 133, 133}, transposes);
      p.lda = kLd;
      check_large(p);
      p = plain(DType::fp32, {133, 133, 133}, transposes);
      p.ldb = kLd;
      check_large(p);
    }
    Problem p = plain(DType::fp32, {133, 37, 9});
    p.ldc = kLd;
    check_large(p);
    check_large(plain(DType::fp32, {65'539, 65'541, 3}));
  }
}

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

  TEST_CASE("every step has a name, an idea and its types") {
    for (const Step& step : kSteps) {
      CAPTURE(step.name);
      CHECK(!step.name.empty());
      CHECK(!step.idea.empty());
      CHECK(tile::listed(step.types) == "fp32");
    }
  }

  TEST_CASE("the check of large products takes what is right") {
    for (const Transposes transposes : kTransposes) {
      check_large(plain(DType::fp32, {131, 67, 45}, transposes));
      check_large(padded(plain(DType::fp32, {7, 67, 45}, transposes), {1, 2, 3}));
    }
  }

  TEST_CASE("the check of large products finds what is wrong") {
    const Problem p = padded(plain(DType::fp32, {131, 67, 45}), {1, 2, 3});
    const LargeMatrices x = place(p);
    auto says = [&](const std::string& text) {
      const Status status = check_product(p, x.buffers());
      CHECK(status.code == tile::Code::device_error);
      CHECK_MESSAGE(status.message.find(text) != std::string::npos, status.message);
    };
    auto at = [&](std::int64_t row, std::int64_t col) { return x.c.data + row * x.c.ld + col; };
    auto get = [](const float* from) {
      float value = 0;
      REQUIRE(cudaMemcpy(&value, from, sizeof value, cudaMemcpyDeviceToHost) == cudaSuccess);
      return value;
    };
    auto set = [](float* to, float value) {
      REQUIRE(cudaMemcpy(to, &value, sizeof value, cudaMemcpyHostToDevice) == cudaSuccess);
    };

    says("131 of 131 rows are wrong; in the first, row 0, 67 of 67 elements");  // all NaN
    REQUIRE(tile::run_step(kSteps[0], p, x.buffers()).ok());
    REQUIRE(check_product(p, x.buffers()).ok());

    const float old = get(at(17, 3)), other = get(at(17, 66));
    REQUIRE(old != other);
    for (const float wrong : {old + 1, old + 0.25f, -old - 1, std::nanf(""), HUGE_VALF, 1e30f}) {
      CAPTURE(wrong);
      set(at(17, 3), wrong);
      says(
          "1 of 131 rows are wrong; in the first, row 17, 1 of 67 elements, the first in column 3");
    }
    set(at(17, 3), old);
    // A NaN in place of a zero: neither adds anything to a sum that leaves NaN out.
    std::int64_t zero = 0;
    while (zero < 131 * 67 && get(at(zero / 67, zero % 67)) != 0) ++zero;
    REQUIRE(zero < 131 * 67);
    set(at(zero / 67, zero % 67), std::nanf(""));
    says("1 of 131 rows are wrong");
    set(at(zero / 67, zero % 67), 0);
    set(at(17, 3), other);  // two exchanged
    set(at(17, 66), old);
    says("1 of 131 rows are wrong; in the first, row 17, 2 of 67 elements, the first in column 3");
    set(at(17, 3), old);
    set(at(17, 66), other);
    set(at(130, 66), get(at(130, 66)) + 1);
    says(
        "1 of 131 rows are wrong; in the first, row 130, 1 of 67 elements, the first in column 66");
    set(at(130, 66), get(at(130, 66)) - 1);
    REQUIRE(check_product(p, x.buffers()).ok());

    auto surroundings = [&] { return check_surroundings(around_c(x), count_around_c(x), x.c); };
    REQUIRE(surroundings().ok());
    for (float* outside :
         {at(0, -1), at(5, 67), at(130, 67), around_c(x), x.memory.get() + x.count - 1}) {
      const float poison = get(outside);
      set(outside, 1);
      const Status status = surroundings();
      CHECK(status.code == tile::Code::device_error);
      CHECK_MESSAGE(status.message.find("c: 1 elements outside") == 0, status.message);
      set(outside, poison);
    }
    REQUIRE(surroundings().ok());
  }
}

}  // namespace matmul
