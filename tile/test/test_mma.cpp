// Every mma against a product on the host: element for element, wherever a sum is exact.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "fragments_of.hpp"
#include "harness/test_main.hpp"
#include "memory.hpp"
#include "ptx_kernels.hpp"
#include "tile/host/device.hpp"

using namespace ptx_test;
namespace layout = tile::ptx;

namespace {

struct Instruction {
  Mma mma;
  const char* name;
  Number operands, sums;
  int depth;
  Map a, b;
  int capability;
};
constexpr Instruction kInstructions[] = {
    {Mma::k16_fp16, "m16n8k16 fp16", Number::fp16, Number::fp32, 16, layout::element_of_a<16>,
     layout::element_of_b<16>, 75},
    {Mma::k16_of_halves, "m16n8k16 fp16 of halves", Number::fp16, Number::fp32, 16,
     layout::element_of_a<16>, layout::element_of_b<16>, 75},
    {Mma::k16_bf16, "m16n8k16 bf16", Number::bf16, Number::fp32, 16, layout::element_of_a<16>,
     layout::element_of_b<16>, 80},
    {Mma::k16_in_fp16, "m16n8k16 fp16 in fp16", Number::fp16, Number::fp16, 16,
     layout::element_of_a<16>, layout::element_of_b<16>, 80},
    {Mma::k8_fp16, "m16n8k8 fp16", Number::fp16, Number::fp32, 8, layout::element_of_a<16>,
     layout::element_of_b<16>, 75},
    {Mma::k8_tf32, "m16n8k8 tf32", Number::tf32, Number::fp32, 8, layout::element_of_a<32>,
     layout::element_of_b<32>, 80},
    {Mma::k32_e4m3, "m16n8k32 e4m3", Number::e4m3, Number::fp32, 32, layout::element_of_a<8>,
     layout::element_of_b<8>, 89},
    {Mma::k32_e5m2, "m16n8k32 e5m2", Number::e5m2, Number::fp32, 32, layout::element_of_a<8>,
     layout::element_of_b<8>, 89},
};
constexpr int kM = 16, kN = 8;

/// A B + C.
struct Product {
  Matrix a, b, c;
  explicit Product(int depth) : a{kM, depth}, b{depth, kN}, c{kM, kN} {}
};

std::vector<Matrix> run(const Instruction& instruction, const std::vector<Product>& products) {
  std::vector<std::uint32_t> a, b, d;
  for (const Product& p : products) {
    append_fragment(a, p.a, instruction.operands, instruction.a);
    append_fragment(b, p.b, instruction.operands, instruction.b);
    append_fragment(d, p.c, instruction.sums, layout::element_of_d);
  }
  const DeviceWords device_a("a", a), device_b("b", b), device_d("d", d);
  const tile::Status launched = multiply(instruction.mma, static_cast<int>(products.size()),
                                         device_a.data(), device_b.data(), device_d.data());
  REQUIRE_MESSAGE(launched.ok(), launched.message);
  const std::vector<std::uint32_t> words = device_d.download();
  std::vector<Matrix> results;
  for (std::size_t i = 0; i < products.size(); ++i) {
    results.push_back(matrix_of(words.data() + i * words.size() / products.size(), kM, kN,
                                instruction.sums, layout::element_of_d));
  }
  return results;
}

Matrix on_host(const Product& p) {
  Matrix d = p.c;
  for (int m = 0; m < kM; ++m) {
    for (int n = 0; n < kN; ++n) {
      for (int k = 0; k < p.a.cols; ++k) d(m, n) += p.a(m, k) * p.b(k, n);
    }
  }
  return d;
}

bool same(double got, double expected) {
  return std::isnan(expected) ? std::isnan(got) : got == expected;
}

// One check a product: a failed one names the first element that is wrong.
void check_exact(const Instruction& instruction, const std::vector<Product>& products) {
  const std::vector<Matrix> results = run(instruction, products);
  for (std::size_t i = 0; i < products.size(); ++i) {
    const Matrix expected = on_host(products[i]);
    const auto wrong = std::mismatch(results[i].values.begin(), results[i].values.end(),
                                     expected.values.begin(), same);
    const bool right = wrong.first == results[i].values.end();
    if (right) {
      CHECK(right);
      continue;
    }
    const auto at = wrong.first - results[i].values.begin();
    CHECK_MESSAGE(right, std::string(instruction.name), ", product ", i, ": D(", at / kN, ", ",
                  at % kN, ") is ", *wrong.first, ", not ", *wrong.second);
  }
}

/// Calls check(instruction) for those that the card has.
template <class Check>
void for_each_instruction(int lowest, int highest, Check check) {
  for (const Instruction& instruction : kInstructions) {
    if (instruction.capability < lowest || instruction.capability > highest) continue;
    if (tile::device().capability < instruction.capability) {
      tile::skip(std::string(instruction.name) + " needs a newer card");
      continue;
    }
    check(instruction);
  }
}

void fill_with_integers(Matrix& matrix, std::mt19937& random, int limit) {
  for (double& value : matrix.values) {
    value = static_cast<int>(random() % static_cast<unsigned>(2 * limit + 1)) - limit;
  }
}

void small_integers(const Instruction& instruction) {
  std::mt19937 random(1);
  std::vector<Product> products;
  for (int i = 0; i < 7; ++i) {
    Product p(instruction.depth);
    fill_with_integers(p.a, random, 4);
    fill_with_integers(p.b, random, 4);
    fill_with_integers(p.c, random, 16);
    products.push_back(p);
  }
  check_exact(instruction, products);
}

// A one at one place of A, the rest zero, by a B whose elements tell their row, and by one whose
// elements tell their column: only if the one arrives at its place is the product right, and only
// if B's elements do. Then the same for B. The accumulator tells its own place.
void every_place(const Instruction& instruction) {
  const int depth = instruction.depth;
  // 32 numbers that every format has, and whose sums with the accumulator are exact.
  auto number = [](int i) {
    constexpr int kNumbers[] = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32};
    return i < 16 ? kNumbers[i] : -kNumbers[i - 16];
  };
  std::vector<Product> products;
  for (const bool by_row : {true, false}) {
    Product start(depth);
    for (int i = 0; i < kM * kN; ++i) start.c.values[static_cast<std::size_t>(i)] = 8 * i;
    Product p = start;
    for (int k = 0; k < depth; ++k) {
      for (int n = 0; n < kN; ++n) p.b(k, n) = number(by_row ? k : n);
    }
    for (double& one : p.a.values) {
      one = 1;
      products.push_back(p);
      one = 0;
    }
    p = start;
    for (int m = 0; m < kM; ++m) {
      for (int k = 0; k < depth; ++k) p.a(m, k) = number(by_row ? m : k);
    }
    for (double& one : p.b.values) {
      one = 1;
      products.push_back(p);
      one = 0;
    }
  }
  check_exact(instruction, products);
}

// A NaN or an infinity in each of the places where it can be.
void special_values(const Instruction& instruction) {
  std::vector<double> specials{NAN};
  if (instruction.operands != Number::e4m3) specials.insert(specials.end(), {INFINITY, -INFINITY});
  std::mt19937 random(2);
  std::vector<Product> products;
  for (const double special : specials) {
    for (int i = 0; i < 24; ++i) {
      Product p(instruction.depth);
      fill_with_integers(p.a, random, 2);  // a zero times infinity is NaN
      fill_with_integers(p.b, random, 2);
      Matrix& one = i < 8 ? p.a : i < 16 ? p.b : p.c;
      one.values[random() % one.values.size()] = special;
      if (i % 8 == 7) p.c.values[random() % p.c.values.size()] = -special;
      products.push_back(p);
    }
  }
  check_exact(instruction, products);
}

// Numbers whose sums are rounded. A GPU adds k products and the accumulator after it has cut all of
// them at the last place of the largest: 24 bits and more for fp32 sums of these types, 14 for fp8
// on Hopper (measured with wgmma), which is why that bound is another.
void rounded_sums(const Instruction& instruction) {
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  const bool fp8 = bits_of(instruction.operands) == 8;
  auto fill = [&](Matrix& matrix, Number type) {
    for (double& value : matrix.values) {
      if (bits_of(type) == 8) {
        value = decode(type, random() % 0x40 | random() % 2 << 7);  // below 2
      } else {
        value = normal(random);
        std::uint32_t bits = encode(type == Number::tf32 ? Number::fp32 : type, value);
        if (type == Number::tf32) bits &= ~0x1fffu;
        value = decode(type, bits);
      }
    }
  };
  std::vector<Product> products(20, Product(instruction.depth));
  for (Product& p : products) {
    fill(p.a, instruction.operands);
    fill(p.b, instruction.operands);
    fill(p.c, instruction.sums);
  }
  const std::vector<Matrix> results = run(instruction, products);
  const double place = instruction.sums == Number::fp16 ? 0x1p-10 : fp8 ? 0x1p-13 : 0x1p-23;
  for (std::size_t i = 0; i < products.size(); ++i) {
    const Product& p = products[i];
    const Matrix expected = on_host(p);
    for (int m = 0; m < kM; ++m) {
      for (int n = 0; n < kN; ++n) {
        double magnitude = std::fabs(p.c(m, n));
        for (int k = 0; k < p.a.cols; ++k) magnitude += std::fabs(p.a(m, k) * p.b(k, n));
        const double bound = (instruction.depth + 2) * place * magnitude;
        const double got = results[i](m, n);
        const bool right = std::fabs(got - expected(m, n)) <= bound;
        CHECK_MESSAGE(right, std::string(instruction.name), ", product ", i, ", D(", m, ", ", n,
                      ") is ", got, ", not ", expected(m, n), " +- ", bound);
      }
    }
  }
}

}  // namespace

// fp8 in a suite of its own, so that on a card without it the skip hides no other test.
TEST_SUITE("mma_fp8") {
  TEST_CASE("small integers, whose sums are exact") {
    for_each_instruction(89, 89, small_integers);
  }
  TEST_CASE("every place of A, B and D") { for_each_instruction(89, 89, every_place); }
  TEST_CASE("NaN and infinities") { for_each_instruction(89, 89, special_values); }
  TEST_CASE("sums that are rounded") { for_each_instruction(89, 89, rounded_sums); }
}

TEST_SUITE("mma") {
  TEST_CASE("small integers, whose sums are exact") {
    for_each_instruction(75, 80, small_integers);
  }
  TEST_CASE("every place of A, B and D") { for_each_instruction(75, 80, every_place); }
  TEST_CASE("NaN and infinities") { for_each_instruction(75, 80, special_values); }
  TEST_CASE("sums that are rounded") { for_each_instruction(75, 80, rounded_sums); }

  TEST_CASE("tf32 ignores the lower 13 bits") {
    for_each_instruction(75, 80, [](const Instruction& instruction) {
      if (instruction.operands != Number::tf32) return;
      Product p(instruction.depth), cut(instruction.depth);
      const double ones = 2 - 0x1p-23;  // all 24 bits
      p.a(3, 5) = ones;
      p.b(5, 2) = -ones;
      cut.a(3, 5) = 2 - 0x1p-10;
      cut.b(5, 2) = -(2 - 0x1p-10);
      const Matrix d = run(instruction, {p})[0];
      CHECK(d.values == on_host(cut).values);
    });
  }

  TEST_CASE("bf16: products beyond the range of fp32, and subnormal numbers") {
    for_each_instruction(75, 80, [](const Instruction& instruction) {
      if (instruction.operands != Number::bf16) return;
      // a(0, 0) b(0, 0) + a(0, 1) b(1, 0) + c(0, 0)
      auto sum = [&](double a0, double b0, double a1, double b1, double c) {
        Product p(instruction.depth);
        p.a(0, 0) = a0;
        p.b(0, 0) = b0;
        p.a(0, 1) = a1;
        p.b(1, 0) = b1;
        p.c(0, 0) = c;
        return run(instruction, {p})[0](0, 0);
      };
      CHECK(sum(0x1p127, 2, 0, 0, 0) == INFINITY);
      CHECK(sum(0x1p127, -2, 0, 0, 0) == -INFINITY);
      CHECK(sum(0x1p127, 2, 0x1p127, -2, 0) == 0);
      CHECK(sum(0x1p127, 1, 0, 0, 0x1p127) == INFINITY);
      CHECK(sum(0x1p-133, 1, 0, 0, 0) == 0x1p-133);
      CHECK(sum(0x1p-75, 0x1p-74, 0, 0, 0x1p-149) == 0x1p-148);
      CHECK(sum(0, 0, 0, 0, 0x3p-149) == 0x3p-149);
    });
  }

  TEST_CASE("from matrices in shared memory, swizzled, to their product") {
    std::mt19937 random(4);
    Product p(16);
    fill_with_integers(p.a, random, 100);
    fill_with_integers(p.b, random, 100);
    auto packed = [](const Matrix& matrix) {
      std::vector<std::uint32_t> words;
      for (std::size_t i = 0; i < matrix.values.size(); i += 2) {
        words.push_back(encode(Number::fp16, matrix.values[i]) |
                        encode(Number::fp16, matrix.values[i + 1]) << 16);
      }
      return words;
    };
    const DeviceWords a("a", packed(p.a)), b("b", packed(p.b));
    const DeviceVector<float> c("c", std::vector<float>(kM * kN, -1.0f));
    require(multiply_matrices(a.data(), b.data(), c.data()));
    const std::vector<float> got = c.download();
    const Matrix expected = on_host(p);
    CHECK(std::vector<double>(got.begin(), got.end()) == expected.values);
  }
}
