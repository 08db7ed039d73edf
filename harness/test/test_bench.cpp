#include "harness/bench.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace tile {
namespace {

/// A problem of a given kind, which is not run.
class Problem : public Workload {
 public:
  Problem(double bytes, double operations, std::string_view direction = "forward")
      : bytes_(bytes), operations_(operations), direction_(direction) {}
  std::string name() const override { return "fp32 n4"; }
  std::string_view direction() const override { return direction_; }
  double bytes() const override { return bytes_; }
  double operations() const override { return operations_; }
  Status choose(std::size_t, Choice*) const override { return {}; }
  Status launch(std::size_t, void*) override { return unsupported("step", "there is none"); }
  Comparison check() override { return {}; }
  std::string checked_part() const override { return {}; }

 private:
  double bytes_, operations_;
  std::string_view direction_;
};

const Chapter kChapter{.name = "99_test", .title = "", .ladders = {}};

StepInfo step(std::string_view name) {
  return {.name = name, .idea = "", .types = {}, .needs = {}, .otherwise = "", .shows = {}};
}

Timing took(double median) { return {median, median / 2, median * 2, 30, 1980}; }

TEST_CASE("rows: a problem without operations is measured in bytes, beside the copy") {
  // 3e9 bytes in a millisecond are 3 TB/s.
  const auto found = rows(kChapter, step("fast"), Problem(3e9, 0), Duty::burst, took(1), 4,
                          {{"copy", took(0.75)}});
  REQUIRE(found.size() == 1);
  CHECK(to_json(found[0], {"gpu", "1", "2", "abc", "day"}) ==
        R"({"chapter": "99_test", "step": "fast", "direction": "forward", "case": "fp32 n4", )"
        R"("metric": "bandwidth burst", "value": 3, "unit": "TB/s", "ceiling": 4, )"
        R"("peer": "copy", "peer_value": 4, "ratio": 0.75, "low": 1.5, "high": 6, )"
        R"("sm_clock": 1980, "gpu": "gpu", "driver": "1", "cuda": "2", "commit": "abc", )"
        R"("date": "day"})");
}

TEST_CASE("rows: a problem with operations is measured in those, and may have any peers") {
  const Problem problem(3e9, 20e9, "backward");
  const auto found = rows(kChapter, step("slow"), problem, Duty::sustained, took(1), 65,
                          {{"cuBLAS", took(0.5)}, {"another", took(2)}});
  REQUIRE(found.size() == 2);
  for (const Result& row : found) {
    CHECK(row.direction == "backward");
    CHECK(row.metric == "throughput sustained");
    CHECK(row.unit == "TFLOP/s");
    CHECK(row.value == 20);
    CHECK(row.ceiling == 65);
    CHECK(row.low == 10);
    CHECK(row.high == 40);
  }
  CHECK(found[0].peer == "cuBLAS");
  CHECK(found[0].peer_value == 40);
  CHECK(found[0].ratio == 0.5);  // cuBLAS is twice as fast
  CHECK(found[1].peer == "another");
  CHECK(found[1].peer_value == 10);
  CHECK(found[1].ratio == 2);  // above 1 is better for us
}

TEST_CASE("rows: without a peer there is one row, and no ratio") {
  const auto found = rows(kChapter, step("slow"), Problem(3e9, 20e9), Duty::burst, took(1), 65, {});
  REQUIRE(found.size() == 1);
  CHECK(found[0].peer.empty());
  CHECK_FALSE(found[0].peer_value.has_value());
  CHECK_FALSE(found[0].ratio.has_value());
  CHECK(found[0].value == 20);
}

std::vector<std::vector<std::size_t>> works(const std::vector<Group>& groups) {
  std::vector<std::vector<std::size_t>> all;
  for (const Group& group : groups) all.push_back(group.works);
  return all;
}

TEST_CASE("nearest limit: that of memory, of arithmetic, or neither") {
  CHECK(nearest_limit(2, 1.9, 0, "x") ==
        "memory alone takes 1.9000 ms, 95 % of it. It is near the limit of memory.");
  CHECK(nearest_limit(2, 0.2, 1.3, "x") ==
        "memory alone takes 0.2000 ms, 10 % of it; arithmetic alone takes 1.3000 ms, 65 % of it. "
        "It is near the limit of arithmetic.");
  CHECK(nearest_limit(2, 1.1, 1, "./tour xray 02 1") ==
        "memory alone takes 1.1000 ms, 55 % of it; arithmetic alone takes 1.0000 ms, 50 % of it. "
        "It is near neither limit: see ./tour xray 02 1");
}

TEST_CASE("plan: steps near the fastest alternate with all rivals, slow ones are apart") {
  // A ceiling, a peer, and six steps on 4,096 cubed.
  const double once[] = {1, 2.7, 200, 27, 17, 5.5, 3.4, 2.9};
  const auto groups = plan(once, 2);
  CHECK(works(groups) == std::vector<std::vector<std::size_t>>{{0, 1, 5, 6, 7}, {2}, {3}, {4}});
  CHECK(groups[0].repetitions == 30);
  CHECK(groups[0].burst == 19);       // 300 ms / 15.5 ms
  CHECK(groups[1].repetitions == 3);  // never fewer, though it takes 600 ms
  CHECK(groups[1].burst == 1);
  CHECK(groups[2].repetitions == 14);  // 400 ms / 27 ms
  CHECK(groups[2].burst == 11);        // 300 ms / 27 ms
  CHECK(groups[3].repetitions == 23);
}

TEST_CASE("plan: the last step alternates with the rivals however slow it is, and so do they") {
  const double once[] = {1, 100, 3, 50};
  const auto groups = plan(once, 2);
  CHECK(works(groups) == std::vector<std::vector<std::size_t>>{{0, 1, 2, 3}});
  CHECK(groups[0].repetitions == 10);  // four works have 1,600 ms: 10.4 rounds of 154 ms
  const double alone[] = {1, 2, 800};
  CHECK(works(plan(alone, 2)) == std::vector<std::vector<std::size_t>>{{0, 1, 2}});
  CHECK(plan(alone, 2)[0].repetitions == 3);
}

TEST_CASE("plan: what takes up to a millisecond is never apart") {
  const double once[] = {0.007, 0.007, 0.9, 0.01, 0.008};
  CHECK(works(plan(once, 2)) == std::vector<std::vector<std::size_t>>{{0, 1, 2, 3, 4}});
  CHECK(plan(once, 2)[0].repetitions == 30);
  CHECK(plan(once, 2)[0].burst == 30);  // one pause before all of them
  const double longer[] = {0.007, 0.007, 1.1, 0.01, 0.008};
  CHECK(works(plan(longer, 2)) == std::vector<std::vector<std::size_t>>{{0, 1, 3, 4}, {2}});
}

}  // namespace
}  // namespace tile
