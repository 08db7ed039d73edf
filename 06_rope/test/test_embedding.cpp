// Chapter 06's tests: absolute position embeddings, and the gradient of their table.
#include <cmath>
#include <numeric>

#include "embedding_support.hpp"

namespace rope::embedding {
namespace {

using Case = EmbeddingCase;

struct Sizes {
  std::int64_t batch, length, dim;
};

/// A problem whose tokens have the ids as positions, in one text.
Case with_ids(DType type, std::int64_t dim, std::int64_t table_positions, Ids ids) {
  return {{type, 1, std::ssize(ids), dim, table_positions}, std::move(ids)};
}

double sum_of(const Values& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

}  // namespace

TEST_SUITE("step") {
  // ---- Both passes ----

  TEST_CASE("embedding: odd sizes, more columns than a block has, batches that fill no group") {
    for_each_embedding_step(
        [](const auto& step, DType type) {
          for (const Sizes& n : {Sizes{2, 37, 64},
                                 {1, 3, 200},
                                 {3, 5, 8},
                                 {4, 2, 1032},
                                 {5, 19, 16},
                                 {1, 1, 8},
                                 {9, 2, 4104},
                                 {7, 300, 8}}) {
            check_step(step, simple(type, n.batch, n.length, n.dim));
          }
        },
        tile::OwnKernel::must_run, tile::Types::all);
  }

  TEST_CASE("embedding: dimensions that fill no chunk") {
    for_each_embedding_step(
        [](const auto& step, DType type) {
          for (const Sizes& n : {Sizes{2, 37, 1}, {3, 5, 7}, {5, 3, 2}, {2, 2, 1001}, {1, 9, 33}}) {
            check_step(step, simple(type, n.batch, n.length, n.dim));
          }
        },
        need_not_run);
  }

  TEST_CASE("embedding: pointers aligned in every way") {
    for_each_embedding_step(
        [](const auto& step, DType type) {
          const auto half = static_cast<std::int64_t>(8 / tile::size_bytes(type));
          for (const std::int64_t offset : {half, std::int64_t{1}, std::int64_t{3}}) {
            for (std::int64_t Case::Offsets::*each : {&Case::Offsets::tokens, &Case::Offsets::table,
                                                      &Case::Offsets::y, &Case::Offsets::ids}) {
              Case c = simple(type, 3, 5, 64);
              c.ids = random_ids(15, -1, 5);
              c.offset.*each = offset;
              check_step(step, c);
            }
          }
        },
        need_not_run);
  }

  TEST_CASE("embedding: positions: an offset, ids, positions outside of the table") {
    for_each_embedding_step([](const auto& step, DType type) {
      Case c = simple(type, 2, 6, 64);
      c.p.first_position = 11;
      c.p.table_positions = 17;
      check_step(step, c);
      c.p.table_positions = 23;  // which the text does not reach
      check_step(step, c);
      c.ids = {0, 1, 2, 0, 1, 22, 5, -1, 0, 23, 3, 1 << 30};
      check_step(step, c);
      for (int& id : c.ids) id = id % 2 ? INT32_MIN : INT32_MAX;  // no position has a row
      check_step(step, c);
      c.ids.assign(12, 0);
      c.p.table_positions = 0;
      check_step(step, c);
    });
  }

  TEST_CASE("embedding: no token, no column, no batch") {
    for_each_embedding_step(
        [](const auto& step, DType type) {
          for (const Sizes& n : {Sizes{0, 3, 64}, {2, 0, 64}, {2, 3, 0}}) {
            Case c = simple(type, n.batch, n.length, n.dim);
            c.p.table_positions = 3;
            check_step(step, c);  // the gradient of the table is zeros
          }
        },
        need_not_run);
  }

  // ---- Forward ----

  TEST_CASE("embedding: in place") {
    tile::for_each_step(kEmbeddingLadder, [](const ForwardStep& step, DType type) {
      for (const bool given : {false, true}) {
        Case c = simple(type, 5, 9, 72);
        c.in_place = true;
        if (given) c.ids = random_ids(45, -1, 9);
        check_step(step, c);
      }
    });
  }

  TEST_CASE("embedding: without x the rows of the table, to the bit") {
    tile::for_each_step(kEmbeddingLadder, [](const ForwardStep& step, DType type) {
      for (const Sizes& n : {Sizes{5, 9, 72}, {2, 3, 7}, {1, 4, 8}}) {
        Case c = simple(type, n.batch, n.length, n.dim);
        c.has_x = false;
        check_step(step, c);
        c.ids = random_ids(n.batch * n.length, -1, static_cast<int>(n.length));
        const Values x(static_cast<std::size_t>(n.batch * n.length * n.dim), kNaN);
        check_step(step, c, x, tile::adversarial(n.length * n.dim, type));
      }
    });
  }

  TEST_CASE("embedding: NaN, infinities and denormals stay where they are") {
    tile::for_each_step(kEmbeddingLadder, [](const ForwardStep& step, DType type) {
      const Case c = simple(type, 4, 11, 64);
      check_step(step, c, tile::adversarial(4 * 11 * 64, type), tile::adversarial(11 * 64, type));
      check_step(step, c, normal_tokens(c.p), tile::adversarial(11 * 64, type));
    });
  }

  TEST_CASE("embedding: of zeros the rows of the table remain, and of a table of zeros x") {
    tile::for_each_step(kEmbeddingLadder, [](const ForwardStep& step, DType type) {
      Case c = simple(type, 3, 7, 64);
      c.ids = random_ids(21, 0, 6);
      const Values x = normal_tokens(c.p), table = normal_table(c.p);
      CHECK(run(step, c, x, Values(table.size(), 0.0)) == x);
      const Values rows = run(step, c, Values(x.size(), 0.0), table);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        CHECK(rows[i] == table[static_cast<std::size_t>(c.ids[i / 64]) * 64 + i % 64]);
      }
    });
  }

  TEST_CASE("embedding: the sinusoidal table") {
    tile::for_each_step(kEmbeddingLadder, [](const ForwardStep& step, DType type) {
      Case c = simple(type, 2, 40, 64);
      c.p.first_position = 60;
      c.p.table_positions = 100;
      check_step(step, c, normal_tokens(c.p), tile::rounded(sinusoids(100, 64), type));
    });
  }

  // ---- Backward ----

  TEST_CASE("embedding backward: hundreds of tokens at one position, none at others") {
    tile::for_each_step(kEmbeddingBackwardLadder, [](const BackwardStep& step, DType type) {
      for (const std::int64_t tokens : {700, 1023, 1024, 1025, 2500}) {
        Case one = with_ids(type, 24, 5, Ids(static_cast<std::size_t>(tokens), 3));
        check_step(step, one);
        one.ids.back() = 4;  // the last one stands alone
        check_step(step, one);
        check_step(step, with_ids(type, 7, 9, random_ids(tokens, -1, 8)));
      }
    });
  }

  TEST_CASE("embedding backward: a long text with more positions than tokens, shuffled") {
    tile::for_each_step(kEmbeddingBackwardLadder, [](const BackwardStep& step, DType type) {
      Ids ids;
      for (int token = 0; token < 1100; ++token) ids.push_back(token * 7 % 1103);  // 1103 is prime
      check_step(step, with_ids(type, 8, 1150, ids));
    });
  }

  TEST_CASE("embedding backward: tokens without a position add nothing, not even a NaN") {
    tile::for_each_step(kEmbeddingBackwardLadder, [](const BackwardStep& step, DType type) {
      const Case c = with_ids(type, 16, 4, {2, -1, 0, 4, 2, INT32_MIN, INT32_MAX, 1});
      Values dy = normal_tokens(c.p);
      for (std::size_t token = 0; token < c.ids.size(); ++token) {
        if (c.ids[token] >= 0 && c.ids[token] < 4) continue;
        std::fill_n(dy.begin() + static_cast<std::ptrdiff_t>(token * 16), 16, kNaN);
      }
      check_step(step, c, dy);
      for (const double value : run(step, c, dy).values) CHECK(std::isfinite(value));
    });
  }

  TEST_CASE("embedding backward: infinity and NaN reach their column of their position alone") {
    tile::for_each_step(kEmbeddingBackwardLadder, [](const BackwardStep& step, DType type) {
      Case c = simple(type, 3, 5, 16);
      Values dy = normal_tokens(c.p);
      dy[1 * 16 + 3] = kInfinity;                               // position 1
      dy[2 * 16 + 4] = kInfinity, dy[7 * 16 + 4] = -kInfinity;  // both at position 2
      dy[4 * 16 + 5] = kNaN;
      check_step(step, c, dy);
      c.ids = {0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4};
      check_step(step, c, dy);
    });
  }

  // Integers, so that every sum is exact in fp32.
  TEST_CASE("embedding backward: the rows of dtable add up to the tokens of dy") {
    tile::for_each_step(kEmbeddingBackwardLadder, [](const BackwardStep& step, DType type) {
      Case c = simple(type, 3, 40, 24);
      for (const bool given : {false, true}) {
        if (given) c.ids = random_ids(120, 0, 39);
        const Values dy = tile::integers(120 * 24, type, 74, -8, 8);
        CHECK(sum_of(run(step, c, dy).values) == sum_of(dy));
      }
    });
  }

  // The forward pass is linear in the table: y = x + J table. dtable is J transposed times dy.
  TEST_CASE("embedding backward: the transpose of the forward pass") {
    const ForwardStep forward{kEmbeddingLadder.steps.back(), &kEmbeddingLadder,
                              kEmbeddingLadder.steps.size() - 1};
    tile::for_each_step(kEmbeddingBackwardLadder, [&](const BackwardStep& step, DType type) {
      Case c = simple(type, 2, 30, 16);
      c.p.first_position = 3;
      c.p.table_positions = 35;
      for (const bool given : {false, true}) {
        if (given) c.ids = random_ids(60, 0, 34);
        const Values dy = tile::integers(60 * 16, type, 75, -4, 4);
        const Values table = tile::integers(35 * 16, type, 76, -4, 4);
        const Values dtable = run(step, c, dy).values;
        const double wanted = std::inner_product(dtable.begin(), dtable.end(), table.begin(), 0.0);
        const Values y = run(forward, c, Values(dy.size(), 0.0), table);
        CHECK(std::inner_product(dy.begin(), dy.end(), y.begin(), 0.0) == wanted);
      }
    });
  }

  // For any order of blocks and threads: tools/all_orders runs this in three.
  TEST_CASE("embedding backward: by_position adds in the order of the tokens, to the bit") {
    tile::for_each_step(
        kEmbeddingBackwardLadder,
        [](const BackwardStep& step, DType type) {
          if (step.name != "by_position") return;
          for (const std::int64_t dim : {24, 7}) {
            const Case c = with_ids(type, dim, 6, random_ids(2100, -1, 6));
            const Values dy = normal_tokens(c.p);
            std::vector<float> sums(static_cast<std::size_t>(6 * dim), 0.f);
            for (std::size_t i = 0; i < dy.size(); ++i) {
              const int id = c.ids[i / static_cast<std::size_t>(dim)];
              if (id < 0 || id >= 6) continue;
              sums[static_cast<std::size_t>(id * dim) + i % static_cast<std::size_t>(dim)] +=
                  static_cast<float>(dy[i]);
            }
            const Gradient first = run(step, c, dy);
            CHECK(first.values == tile::rounded(Values(sums.begin(), sums.end()), type));
            for (int again = 0; again < 3; ++again) CHECK(run(step, c, dy).bytes == first.bytes);
          }
        },
        need_not_run);
  }

  // It does not need what step `atomics` clears, and that is not touched.
  TEST_CASE("embedding backward: by_position runs without a workspace, atomics is refused") {
    tile::for_each_step(
        kEmbeddingBackwardLadder,
        [](const BackwardStep& step, DType type) {
          const Case c = simple(type, 2, 3, 8);
          const Values dy = normal_tokens(c.p);
          const DeviceBuffer in = input_of("dy", type, dy, 0);
          const DeviceBuffer dtable = DeviceBuffer::output(
              "dtable", tile::vector_layout(type, 3 * 8), Poison::unwritten_nan);
          const Status done = tile::run_step(step, c.p, {in.raw(), dtable.raw(), nullptr, nullptr});
          if (step.name == "atomics") {
            CHECK(done.code == tile::Code::unsupported);
            CHECK_MESSAGE(done.message == "workspace: is null", done.message);
            const Status untouched = dtable.check_unchanged();
            CHECK_MESSAGE(untouched.ok(), untouched.message);
          } else {
            REQUIRE_MESSAGE(done.ok(), done.message);
            check_values("dtable", dtable.download(), backward_reference(c.p, dy));
          }
        },
        need_not_run);
  }
}

TEST_SUITE("chapter") {
  TEST_CASE("embedding: the sinusoidal table is what the paper says") {
    for (const std::int64_t dim : {1, 2, 7, 64}) {
      const Values table = sinusoids(50, dim);
      REQUIRE(std::ssize(table) == 50 * dim);
      for (std::int64_t p = 0; p < 50; ++p) {
        for (std::int64_t col = 0; col < dim; ++col) {
          const double i = std::floor(static_cast<double>(col) / 2);
          const double angle =
              static_cast<double>(p) / std::exp(2 * i / static_cast<double>(dim) * std::log(1e4));
          const double wanted = col % 2 ? std::cos(angle) : std::sin(angle);
          CHECK(std::abs(table[static_cast<std::size_t>(p * dim + col)] - wanted) <= 1e-13);
        }
      }
    }
    CHECK(sinusoids(0, 8).empty());
    CHECK(sinusoids(8, 0).empty());
  }

  // A row as complex numbers c + i s: that of position p + k is that of p, rotated by k f_i. This
  // is what the rotation of q and k makes of it.
  TEST_CASE("embedding: from a position to one k further the sinusoids turn by the same angle") {
    const std::size_t dim = 16, k = 5;
    const Values table = sinusoids(200, 16);
    for (std::size_t p = 0; p + k < 200; ++p) {
      for (std::size_t pair = 0; pair < dim; pair += 2) {
        const double s = table[p * dim + pair], c = table[p * dim + pair + 1];
        const double s_k = table[k * dim + pair], c_k = table[k * dim + pair + 1];
        CHECK(std::abs(table[(p + k) * dim + pair] - (s * c_k + c * s_k)) <= 1e-12);
        CHECK(std::abs(table[(p + k) * dim + pair + 1] - (c * c_k - s * s_k)) <= 1e-12);
      }
    }
  }

  TEST_CASE("embedding: the references, by hand") {
    const EmbeddingProblem p{DType::fp32, 2, 2, 2, 3};
    const Values x{1, 2, 3, 4, 5, 6, 7, 8}, table{10, 20, 30, 40, 50, 60};
    CHECK(reference(p, x, table).value == Values{11, 22, 33, 44, 15, 26, 37, 48});
    CHECK(reference(p, {}, table).value == Values{10, 20, 30, 40, 10, 20, 30, 40});
    CHECK(reference(p, {}, table).bound == Values(8, 0.0));
    const Ids ids{2, 0, 2, 3};
    const tile::Expected y = reference(p, x, table, ids);
    CHECK(Values(y.value.begin(), y.value.begin() + 6) == Values{51, 62, 13, 24, 55, 66});
    CHECK(std::isnan(y.value[6]));
    CHECK(backward_reference(p, x).value == Values{6, 8, 10, 12, 0, 0});
    CHECK(backward_reference(p, x, ids).value == Values{3, 4, 0, 0, 6, 8});
  }

  TEST_CASE("embedding: the bounds are what their derivation says") {
    constexpr double u = 0x1p-24;
    const auto near = [](double a, double b) { return std::abs(a - b) <= 1e-6 * b; };
    // 1 + 2 in fp32, and stored in bf16. Zeros are exact.
    CHECK(near(reference({DType::fp32, 1, 1, 1, 1}, Values{1}, Values{2}).bound[0], 3 * u));
    CHECK(near(reference({DType::bf16, 1, 1, 1, 1}, Values{1}, Values{2}).bound[0],
               3 * u + 0x1p-8 * 3 * (1 + u)));
    CHECK(reference({DType::bf16, 1, 1, 1, 1}, Values{1}, Values{-1}).bound[0] == 0);
    // A sum of one number is exact, of 3 it rounds twice, of 100 some 40 times.
    const auto bound = [](std::int64_t n) {
      const EmbeddingProblem p{DType::fp32, n, 1, 1, 2};
      return backward_reference(p, Values(static_cast<std::size_t>(n), 0.5)).bound;
    };
    CHECK(bound(1)[0] <= 0x1p-125);
    CHECK(near(bound(3)[0], 2 * u * 1.5));
    CHECK(near(bound(100)[0], 40 * u * 50 * (1 + 40 * u)));
    CHECK(bound(100)[1] == 0);  // no token has this position
  }

  TEST_CASE("embedding: what the steps' own kernels take") {
    const auto at = [](std::uintptr_t address) { return reinterpret_cast<void*>(address); };
    const auto takes = [&](EmbeddingProblem p, std::uintptr_t x, std::uintptr_t table,
                           std::uintptr_t y) {
      return takes_vectors(p, {at(x), at(table), at(y), nullptr}, tile::device()).message;
    };
    EmbeddingProblem p{DType::bf16, 2, 3, 64, 3};
    CHECK(takes(p, 4096, 8192, 16384).empty());
    CHECK(takes(p, 4104, 8192, 16384) == "x: is not aligned to 16 bytes");
    CHECK(takes(p, 4096, 8200, 16384) == "table: is not aligned to 16 bytes");
    CHECK(takes(p, 4096, 8192, 16386) == "y: is not aligned to 16 bytes");
    p.dim = 60;
    CHECK(takes(p, 4096, 8192, 16384) == "dim: 60 do not fill chunks of 16 bytes");
    p.type = DType::fp32;
    CHECK(takes(p, 4096, 8192, 16384).empty());
    // 2^31 - 1 threads and one more; an overflow.
    p = {DType::bf16, 1, (std::int64_t{1} << 29) - 1, 32, 1 << 29};
    CHECK(takes(p, 4096, 8192, 16384).empty());
    p.length += 1;
    const std::string too_many = "batch, length and dim: need more than 2^31 - 1 threads";
    CHECK(takes(p, 4096, 8192, 16384) == too_many);
    p.batch = p.dim = 1 << 29;
    CHECK(takes(p, 4096, 8192, 16384) == too_many);
  }
}

}  // namespace rope::embedding
