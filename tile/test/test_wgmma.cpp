// wgmma against products on the host: in every form, each sum that is exact.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "harness/test_main.hpp"
#include "memory.hpp"
#include "tile/host/device.hpp"
#include "wgmma_kernels.hpp"

using namespace ptx_test;

namespace {

bool has_wgmma() {
  if (tile::device().capability == 90) return true;
  tile::skip("wgmma needs a card of compute capability 9.0, and no other has it");
  return false;
}

std::vector<WgmmaForm> all_forms() {
  std::vector<WgmmaForm> forms;
  // Every form with the fewest and the most columns in use; between them, one of each number of
  // operands, whose places in the text differ.
  for (int columns = 16; columns <= 256; columns += 16) {
    if (columns != 64 && columns != 256) {
      forms.push_back({Number::bf16, columns, false, true, false});
      forms.push_back({Number::bf16, columns, false, true, true});
      continue;
    }
    for (const Number type : {Number::fp16, Number::bf16}) {
      for (const bool b_along_n : {false, true}) {
        forms.push_back({type, columns, false, b_along_n, false});
        forms.push_back({type, columns, true, b_along_n, false});
        forms.push_back({type, columns, false, b_along_n, true});
      }
    }
    forms.push_back({Number::e4m3, columns});
    forms.push_back({Number::e4m3, columns, false, false, true});
  }
  return forms;
}

std::string name_of(const WgmmaForm& form) {
  const std::string type = form.operands == Number::fp16   ? "fp16"
                           : form.operands == Number::bf16 ? "bf16"
                                                           : "e4m3";
  return type + ", " + std::to_string(form.columns) + " columns, A " +
         (form.a_in_registers ? "in registers"
          : form.a_along_m    ? "along m"
                              : "along k") +
         ", B " + (form.b_along_n ? "along n" : "along k");
}

/// A B + C, with a C for each warpgroup.
struct Product {
  Matrix a, b, c;
  explicit Product(const WgmmaForm& form)
      : a{kWgmmaRows, form.depth()},
        b{form.depth(), form.columns},
        c{kWgmmaWarpgroups * kWgmmaRows, form.columns} {}
};

// The matrix or its transpose in rows of 128 bytes: one such box of columns after the other, the
// last one filled with zeros.
std::vector<std::uint32_t> tile_of(const Matrix& matrix, Number number, bool transposed) {
  const int rows = transposed ? matrix.cols : matrix.rows;
  const int cols = transposed ? matrix.rows : matrix.cols;
  const int each = kWgmmaRowBytes * 8 / bits_of(number), in_word = 32 / bits_of(number);
  std::vector<double> values;
  for (int box = 0; box < cols; box += each) {
    for (int row = 0; row < rows; ++row) {
      for (int col = box; col < box + each; ++col) {
        values.push_back(col >= cols ? 0 : transposed ? matrix(col, row) : matrix(row, col));
      }
    }
  }
  const std::vector<std::uint32_t> bits = encode(number, values);
  std::vector<std::uint32_t> words(bits.size() / static_cast<std::size_t>(in_word));
  for (std::size_t i = 0; i < bits.size(); ++i) {
    const auto e = static_cast<std::size_t>(in_word);
    words[i / e] |= bits[i] << i % e * static_cast<std::size_t>(bits_of(number));
  }
  return words;
}

struct Tiles {
  DeviceWords a, b;
  Tiles(const WgmmaForm& form, const Product& p)
      : a("a", tile_of(p.a, form.operands, form.a_along_m)),
        b("b", tile_of(p.b, form.operands, !form.b_along_n)) {}
};

std::vector<float> floats(const Matrix& matrix) {
  return {matrix.values.begin(), matrix.values.end()};
}

std::vector<float> run(const WgmmaForm& form, const Product& p, bool accumulate) {
  const Tiles tiles(form, p);
  const DeviceVector<float> d("d", floats(p.c));
  const tile::Status launched =
      multiply_by_wgmma(form, accumulate, tiles.a.data(), tiles.b.data(), d.data());
  REQUIRE_MESSAGE(launched.ok(), launched.message);
  return d.download();
}

// Adds the product of k from `begin` to `end`, in both warpgroups. Returns the sums of magnitudes.
Matrix add_product(Matrix& d, const Product& p, int begin, int end) {
  Matrix magnitudes = d;
  for (double& value : magnitudes.values) value = std::fabs(value);
  for (int m = 0; m < d.rows; ++m) {
    for (int k = begin; k < end; ++k) {
      for (int n = 0; n < d.cols; ++n) {
        const double product = p.a(m % kWgmmaRows, k) * p.b(k, n);
        d(m, n) += product;
        magnitudes(m, n) += std::fabs(product);
      }
    }
  }
  return magnitudes;
}

void check_equal(const std::string& name, const std::vector<float>& got, const Matrix& expected) {
  const auto same = [](float a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); };
  const auto wrong = std::mismatch(got.begin(), got.end(), expected.values.begin(), same);
  const bool right = wrong.first == got.end() && got.size() == expected.values.size();
  const auto at = wrong.first - got.begin();
  CHECK_MESSAGE(right, name, ": D(", at / expected.cols, ", ", at % expected.cols, ") is ",
                right ? 0.0f : *wrong.first, ", not ", right ? 0.0 : *wrong.second);
}

void fill_with_integers(Matrix& matrix, std::mt19937& random, int limit) {
  for (double& value : matrix.values) {
    value = static_cast<int>(random() % static_cast<unsigned>(2 * limit + 1)) - limit;
  }
}

Product integers(const WgmmaForm& form, unsigned seed) {
  std::mt19937 random(seed);
  Product p(form);
  fill_with_integers(p.a, random, 4);
  fill_with_integers(p.b, random, 4);
  fill_with_integers(p.c, random, 1000);
  return p;
}

}  // namespace

TEST_SUITE("wgmma") {
  TEST_CASE("small integers, whose sums are exact, in every form") {
    if (!has_wgmma()) return;
    for (const WgmmaForm& form : all_forms()) {
      for (const bool accumulate : {false, true}) {
        const Product p = integers(form, 1);
        Matrix expected = p.c;
        if (!accumulate) std::fill(expected.values.begin(), expected.values.end(), 0.0);
        add_product(expected, p, 0, form.depth());
        check_equal(name_of(form), run(form, p, accumulate), expected);
      }
    }
  }

  TEST_CASE("a group that is done, and one that is not waited for yet") {
    if (!has_wgmma()) return;
    const WgmmaForm form{Number::bf16, 64};
    const Product p = integers(form, 2);
    Matrix first{p.c.rows, p.c.cols}, second = first;
    add_product(first, p, 0, form.depth() / 2);
    add_product(second, p, form.depth() / 2, form.depth());
    const Tiles tiles(form, p);
    const DeviceVector<float> d("d", floats(p.c)), d_second("d_second", floats(p.c));
    require(multiply_in_two_groups(tiles.a.data(), tiles.b.data(), d.data(), d_second.data()));
    check_equal("the first", d.download(), first);
    check_equal("the second", d_second.download(), second);
  }

  TEST_CASE("an operand along k without a swizzle") {
    if (!has_wgmma()) return;
    const WgmmaForm form{.operands = Number::bf16, .columns = 64, .a_in_registers = true};
    Product p = integers(form, 4);
    p.c = Matrix{kWgmmaRows, form.columns};
    Matrix expected = p.c;
    add_product(expected, p, 0, form.depth());
    const Tiles tiles(form, p);
    const DeviceVector<float> d("d", floats(p.c));
    require(multiply_in_eights(tiles.a.data(), tiles.b.data(), d.data()));
    check_equal("in eights", d.download(), expected);
  }

  // What is lost of a sum in fp32: a place of the largest addend, by each addend. fp8 has 2^-13 of
  // it instead.
  TEST_CASE("sums that are rounded, in every form") {
    if (!has_wgmma()) return;
    std::mt19937 random(3);
    std::normal_distribution<double> normal;
    // All of the format's bits, at some exponent.
    const auto number = [&](Number format) {
      if (format == Number::e4m3) return value_of_fp8(format, random() % 0x40 | random() % 2 << 7);
      const int bits = format == Number::fp16 ? 11 : 8;
      const int sign = random() % 2 == 0 ? 1 : -1;
      return std::ldexp(sign * static_cast<int>(random() % (1u << bits)),
                        static_cast<int>(random() % 4) - bits);
    };
    for (const WgmmaForm& form : all_forms()) {
      const bool fp8 = form.operands == Number::e4m3;
      Product p(form);
      for (Matrix* matrix : {&p.a, &p.b}) {
        for (double& value : matrix->values) value = number(form.operands);
      }
      for (double& value : p.c.values) value = static_cast<float>(normal(random));
      const std::vector<float> got = run(form, p, true);
      Matrix expected = p.c;
      const Matrix magnitudes = add_product(expected, p, 0, form.depth());
      const double place = fp8 ? 0x1p-13 : 0x1p-23;
      bool right = got.size() == expected.values.size(), rounded = false;
      for (std::size_t i = 0; i < got.size(); ++i) {
        const double error = std::fabs(got[i] - expected.values[i]);
        right = right && error <= (form.depth() + 8) * place * magnitudes.values[i];
        rounded = rounded || error != 0;
      }
      CHECK_MESSAGE(right, name_of(form), ": beyond the bound");
      CHECK(rounded);
    }
  }

  // An H200 keeps 14 bits of the largest addend of each instruction, and of the others what is at
  // these places. With integers of 0 to 8 all sums of 512 products were right there, of 1,024 a
  // third was wrong, and of 4,096 all were.
  TEST_CASE("e4m3: from which sum on bits are lost") {
    if (!has_wgmma()) return;
    for (const bool a_in_registers : {false, true}) {
      const WgmmaForm form{Number::e4m3, 64, false, false, a_in_registers};
      std::mt19937 random(5);
      Product p(form);
      Matrix exact = p.c;
      int wrong_at_1024 = 0;
      for (int depth = form.depth(); depth <= 4096; depth += form.depth()) {
        for (Matrix* matrix : {&p.a, &p.b}) {
          for (double& value : matrix->values) value = static_cast<int>(random() % 9);
        }
        const std::vector<float> got = run(form, p, true);
        add_product(exact, p, 0, form.depth());
        int wrong = 0;
        for (std::size_t i = 0; i < got.size(); ++i) wrong += got[i] != exact.values[i];
        if (depth <= 512) CHECK(wrong == 0);
        if (depth == 1024) wrong_at_1024 = wrong * 100 / static_cast<int>(got.size());
        if (depth == 4096) CHECK(wrong == static_cast<int>(got.size()));
        p.c.values.assign(got.begin(), got.end());
      }
      CHECK(wrong_at_1024 > 20);
      CHECK(wrong_at_1024 < 45);
    }
  }

  TEST_CASE("NaN and infinities") {
    if (!has_wgmma()) return;
    for (const WgmmaForm& form : all_forms()) {
      if (form.columns != 64) continue;
      Product p = integers(form, 4);
      p.a(5, 7) = p.b(9, 11) = NAN;
      p.c(20, 30) = INFINITY;
      p.c(70, 3) = NAN;
      if (form.operands != Number::e4m3) p.a(40, 17) = INFINITY;  // times zero is NaN
      Matrix expected = p.c;
      add_product(expected, p, 0, form.depth());
      check_equal(name_of(form), run(form, p, true), expected);
    }
  }
}
