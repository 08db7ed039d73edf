// What every chapter owes ./tour and the benchmark.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "harness/chapter.hpp"
#include "tile/host/step.hpp"

namespace tile {
namespace {

std::vector<MakeWorkload> makers(const Chapter& chapter) {
  std::vector<MakeWorkload> all = chapter.make;
  all.insert(all.end(), chapter.make_for_benchmark.begin(), chapter.make_for_benchmark.end());
  return all;
}

const Chapter& chapter(std::string_view name) {
  for (const Chapter* chapter : chapters()) {
    if (chapter->name == name) return *chapter;
  }
  FAIL("there is no chapter " << name);
  return *chapters().front();
}

TEST_CASE("chapters: every step solves every problem, and nobody passes without launching") {
  REQUIRE(chapters().size() >= 2);
  for (const Chapter* chapter : chapters()) {
    std::set<std::string> keys;
    for (const DType type : chapter->benchmark_types) {
      std::size_t solved = 0;
      for (const MakeWorkload make : makers(*chapter)) {
        const auto workload = make(chapter->size_on_cpu, type);
        if (!workload) {
          CHECK(std::ranges::find(chapter->make, make) == chapter->make.end());
          continue;
        }
        CAPTURE(workload->name());
        CHECK(keys.insert(workload->name().append(workload->direction())).second);
        CHECK(workload->name().find(name(type)) == 0);
        CHECK(workload->bytes() > 0);
        CHECK_FALSE(workload->check().ok());
        for (std::size_t step = 0; step < chapter->steps.size(); ++step) {
          CAPTURE(chapter->steps[step].name);
          if (!workload->takes(step)) {
            CHECK(workload->launch(step, nullptr).code == Code::unsupported);
            continue;
          }
          const StepInfo& info = chapter->steps[step];
          if (!check_requirements(info.types, info.needs, type).ok()) {
            CHECK(workload->launch(step, nullptr).code == Code::unsupported);
            continue;
          }
          REQUIRE(workload->launch(step, nullptr).ok());
          const Comparison comparison = workload->check();
          CHECK_MESSAGE(comparison.ok(), comparison.message);
          CHECK(comparison.count > 0);
          CHECK_FALSE(workload->check().ok());  // what one step wrote is not there for the next
          ++solved;
        }
      }
      CHECK(solved > 0);
    }
  }
}

TEST_CASE("chapters: the products of matmul, forward and backward") {
  const Chapter& matmul = chapter("02_matmul");
  const struct {
    std::string name;
    std::string direction;
    double elements;
  } wanted[] = {{" m5 n6 k7", "forward", 5 * 6 + 6 * 7 + 5 * 7},
                {" m5 n7 k6 B^T", "backward", 5 * 6 + 6 * 7 + 5 * 7},
                {" m7 n6 k5 A^T", "backward", 5 * 6 + 6 * 7 + 5 * 7},
                {" m5 n6 k7 bias gelu", "forward", 5 * 6 + 6 * 7 + 5 * 7 + 6}};
  const auto all = makers(matmul);
  REQUIRE(all.size() == std::size(wanted));
  for (const DType type : {DType::fp32, DType::bf16, DType::fp16, DType::tf32}) {
    int made = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto workload = all[i]({5, 6, 7}, type);
      if (!workload) continue;
      ++made;
      CHECK(workload->name() == std::string(name(type)) + wanted[i].name);
      CHECK(workload->direction() == wanted[i].direction);
      CHECK(workload->operations() == 2 * 5 * 6 * 7);
      CHECK(workload->multiplied_type() == type);
      CHECK(workload->bytes() == static_cast<double>(size_bytes(type)) * wanted[i].elements);
      CHECK(workload->checked_part().empty());
    }
    CHECK(made == (type == DType::fp32 ? 3 : type == DType::bf16 ? 4 : 1));
  }
}

TEST_CASE("chapters: of a large product of matmul some rows are checked, by each direction") {
  // 2,100 rows of C, just above 2^30 products, or as many columns.
  const Chapter& matmul = chapter("02_matmul");
  const auto workload = makers(matmul)[1]({2100, 800, 700}, DType::fp32);
  CHECK(workload->name() == "fp32 m2100 n700 k800 B^T");
  CHECK(workload->checked_part().find(" of 2,100 rows") != std::string::npos);
  CHECK_FALSE(workload->check().ok());
  std::size_t best = matmul.steps.size() - 1;
  while (!matmul.steps[best].types.contains(DType::fp32)) --best;
  REQUIRE(workload->launch(best, nullptr).ok());
  const Comparison comparison = workload->check();
  CHECK_MESSAGE(comparison.ok(), comparison.message);
  CHECK(comparison.count % 700 == 0);
  CHECK(comparison.count < 200 * 700);
}

TEST_CASE("chapters: sizes of matmul that no memory holds are refused by name") {
  const Chapter& matmul = chapter("02_matmul");
  CHECK_THROWS_WITH(matmul.make.front()({3, 3'000'000'000'000'000'000, 4}, DType::fp32),
                    "n: 3000000000000000000 makes a matrix too large");
}

TEST_CASE("chapters: softmax, forward and backward") {
  const Chapter& softmax = chapter("03_softmax");
  REQUIRE(softmax.make.size() == 2);
  CHECK(softmax.make_for_benchmark.empty());
  for (const DType type : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const bool backward : {false, true}) {
      const auto workload = softmax.make[backward]({5, 7}, type);
      CHECK(workload->name() == std::string(name(type)) + " rows5 cols7");
      CHECK(workload->direction() == (backward ? "backward" : "forward"));
      CHECK(workload->bytes() ==
            (backward ? 3.0 : 2.0) * 35 * static_cast<double>(size_bytes(type)));
      CHECK(workload->operations() == 0);
      CHECK(workload->checked_part().empty());
    }
  }
}

TEST_CASE("chapters: of a large softmax some rows are checked, by each direction") {
  const Chapter& softmax = chapter("03_softmax");
  for (const MakeWorkload make : softmax.make) {
    const auto workload = make({2100, 501}, DType::bf16);  // just above 2^20 elements
    CHECK(workload->checked_part().find(" of 2,100 rows") != std::string::npos);
    CHECK_FALSE(workload->check().ok());
    REQUIRE(workload->launch(softmax.steps.size() - 1, nullptr).ok());
    const Comparison comparison = workload->check();
    CHECK_MESSAGE(comparison.ok(), comparison.message);
    CHECK(comparison.count % 501 == 0);
    CHECK(comparison.count > 64 * 501);
    CHECK(comparison.count < 200 * 501);
    CHECK_FALSE(workload->check().ok());
  }
}

TEST_CASE("chapters: sizes of softmax that no memory holds are refused by name") {
  const Chapter& softmax = chapter("03_softmax");
  for (const MakeWorkload make : softmax.make) {
    CHECK_THROWS_WITH(make({3, 3'000'000'000'000'000'000}, DType::fp32),
                      "cols: 3000000000000000000 makes a matrix too large");
    CHECK_THROWS_WITH(make({3'000'000'000'000'000'000, 3}, DType::fp32),
                      "rows: 3000000000000000000 makes a matrix too large");
  }
}

TEST_CASE("chapters: LayerNorm and RMSNorm, forward and backward") {
  const Chapter& layernorm = chapter("04_layernorm");
  const struct {
    std::string name;
    std::string direction;
    double matrices;
  } wanted[] = {{" rows6 cols7", "forward", 2},
                {" rows6 cols7", "backward", 3},
                {" rows6 cols7 rms", "forward", 2},
                {" rows6 cols7 rms", "backward", 3}};
  const auto all = makers(layernorm);
  REQUIRE(all.size() == std::size(wanted));
  CHECK(layernorm.make.size() == 2);
  for (const DType type : {DType::fp32, DType::fp16, DType::bf16}) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto workload = all[i]({6, 7}, type);
      CHECK(workload->name() == std::string(name(type)) + wanted[i].name);
      CHECK(workload->direction() == wanted[i].direction);
      CHECK(workload->operations() == 0);
      CHECK(workload->bytes() ==
            static_cast<double>(size_bytes(type)) * 6 * 7 * wanted[i].matrices);
      CHECK(workload->checked_part().empty());
    }
  }
}

TEST_CASE(
    "chapters: of a large matrix of layernorm some rows are checked, and of sums some columns") {
  const Chapter& layernorm = chapter("04_layernorm");
  const auto all = makers(layernorm);
  for (std::size_t i = 0; i < 2; ++i) {
    const auto workload = all[i]({5000, 900}, DType::fp32);  // just above 2^22 elements
    const bool forward = workload->direction() == "forward";
    CHECK(workload->checked_part().find(" of 5,000 rows") != std::string::npos);
    CHECK((workload->checked_part().find(" of 900 columns") == std::string::npos) == forward);
    CHECK_FALSE(workload->check().ok());
    std::size_t step = 0;
    while (!workload->takes(step)) ++step;
    REQUIRE(workload->launch(step, nullptr).ok());
    const Comparison comparison = workload->check();
    CHECK_MESSAGE(comparison.ok(), comparison.message);
    // Some 90 rows and columns each.
    CHECK(comparison.count > 60 * 900);
    CHECK(comparison.count < 200 * 902);
  }
}

TEST_CASE("chapters: every output of layernorm is checked") {
  // A problem of one row: its mean and rstd, or dgamma and dbeta, are as large as a row of y.
  const Chapter& layernorm = chapter("04_layernorm");
  const std::int64_t counts[] = {50 + 2, 3 * 50, 50 + 1, 2 * 50};
  const std::vector<std::string> outputs[] = {
      {"y", "mean", "rstd"}, {"dx", "dgamma", "dbeta"}, {"y", "rstd"}, {"dx", "dgamma"}};
  const auto all = makers(layernorm);
  for (std::size_t i = 0; i < std::size(counts); ++i) {
    const auto workload = all[i]({1, 50}, DType::bf16);
    const Comparison comparison = workload->check();
    CHECK(comparison.count == counts[i]);
    CHECK(comparison.mismatches == counts[i]);
    for (const std::string& output : outputs[i]) {
      CHECK(comparison.message.find(output + ": ") != std::string::npos);
    }
  }
}

TEST_CASE("chapters: sizes of layernorm that no memory holds are refused by name") {
  const Chapter& layernorm = chapter("04_layernorm");
  CHECK_THROWS_WITH(layernorm.make.front()({3'000'000'000'000'000'000, 4}, DType::fp32),
                    "rows: 3000000000000000000 makes a matrix too large");
  CHECK_THROWS_WITH(layernorm.make.front()({4, 3'000'000'000'000'000'000}, DType::fp32),
                    "cols: 3000000000000000000 makes a matrix too large");
}

}  // namespace
}  // namespace tile
