// Chapter 07's tests: every step on every type, with every option.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "test_support.hpp"
#include "windowed/kinds.hpp"

namespace windowed_rope {
namespace {

constexpr std::int64_t kDims[] = {16, 32, 64, 128, 256};

constexpr std::int64_t kWindows[] = {0, 7, 33, kUnlimited};

/// With a factor by distance if the step's own kernel has it.
template <class Step>
std::vector<Case> drawn_cases(const Step& step, DType type) {
  const auto lengths =
      step.types.contains(DType::fp32) ? std::span(tile::kShortLengths) : std::span(tile::kLengths);
  const auto dims = taken(step, kDims, [&](std::int64_t dim) {
    return full(type, {1, 1, 1, 16, 32, dim}, 8);
  });
  const auto with_factor = [](Case c, float part) {
    c.p.distance_part = part, c.p.distance_rate = part / 16;
    return c;
  };
  const auto parts = taken(step, std::initializer_list<float>{0, 0.75f}, [&](float part) {
    return with_factor(full(type, {1, 1, 1, 16, 32, 64}, 8), part);
  });
  return tile::drawn_cases(step.number, [&](tile::Pick& pick) {
    Case c = tile::drawn_case(pick, type, dims, lengths);
    c.has_far_pair = true;
    c.p.window = pick(kWindows);
    if (pick({true, false})) c = causal(c);
    return with_factor(c, pick(parts));
  });
}

/// Whether blocks add to this result in any order.
template <class TestedStep>
bool adds_in_any_order(const TestedStep& step, const std::string& result) {
  return (step.name == "one_pass" || step.name == "wgmma") && result.starts_with("dq");
}

/// What a step's own kernel needs to show all it does, whatever else is drawn. With 330 keys there
/// are tiles of 128 queries and 128 keys that are all near, all far before and all far after.
struct Border {
  bool is_forward;
  std::string_view step;
  Sizes sizes;
  std::int64_t window;
  bool is_causal, is_on_one = false;  // multiprocessor
};
constexpr Border kBorders[] = {
    {true, "scores", {1, 1, 1, 33, 65, 48}, 20, true},
    {true, "tiles", {1, 1, 1, 33, 110, 48}, 33, false},
    {true, "tiles", {1, 1, 1, 33, 110, 48}, 32, true},
    {true, "mma", {1, 1, 1, 130, 330, 64}, 128, false},
    {true, "mma", {1, 1, 1, 65, 129, 128}, 63, true},
    {true, "mma", {1, 1, 1, 65, 129, 256}, 33, false},
    // Two buffers of 128 keys, or of 64.
    {true, "two_visits", {1, 1, 1, 130, 330, 64}, 129, false},
    {true, "two_visits", {1, 1, 1, 129, 641, 64}, 300, true},
    {true, "two_visits", {1, 1, 1, 129, 321, 128}, 64, true},
    // Eight or four of 128 keys or values.
    {true, "wgmma", {1, 1, 1, 130, 330, 64}, 128, false},
    {true, "wgmma", {1, 1, 1, 193, 11 * 128 + 1, 64}, 300, true},
    {true, "wgmma", {1, 1, 1, 129, 5 * 128 + 1, 128}, 127, true},
    // The same, or four of 96; a consumer ends before the others.
    {true, "persistent", {1, 1, 1, 130, 330, 64}, 128, false},
    {true, "persistent", {1, 1, 1, 193, 11 * 128 + 1, 64}, 300, true},
    {true, "persistent", {1, 1, 1, 129, 7 * 96 + 1, 128}, 127, true},
    // The second entry's last tile has three keys and rows to clear, of far keys and of near ones.
    {true, "persistent", {2, 1, 1, 193, 262, 64}, 20, false},
    {true, "persistent", {2, 1, 1, 193, 262, 64}, 100, true},
    // Two stages of queries, of one block; two entries of four have one key only.
    {true, "persistent", {4, 1, 1, 385, 385, 64}, 100, true, true},
    {true, "persistent", {4, 2, 1, 129, 193, 128}, 64, true, true},
    // Ten heads, more than blocks take in a section, of two tiles.
    {true, "two_visits", {2, 5, 1, 130, 65, 64}, 20, true},
    {true, "wgmma", {2, 5, 1, 193, 65, 64}, 20, true},
    {true, "persistent", {2, 5, 1, 193, 65, 64}, 20, false},
    {false, "one_pass", {2, 10, 5, 65, 130, 64}, 20, true},
    {false, "scores", {1, 1, 1, 33, 65, 48}, 20, true},
    {false, "tiles", {2, 6, 2, 33, 110, 48}, 33, false},
    {false, "tiles", {1, 1, 1, 33, 110, 48}, 32, true},
    {false, "mma", {1, 1, 1, 130, 330, 64}, 128, false},
    {false, "mma", {1, 1, 1, 65, 65, 128}, 31, true},
    {false, "mma", {1, 1, 1, 65, 65, 256}, 16, false},
    // Two of 64 queries.
    {false, "one_pass", {1, 1, 1, 130, 330, 64}, 128, false},
    {false, "one_pass", {1, 1, 1, 385, 129, 64}, 100, true},
    {false, "one_pass", {1, 1, 1, 385, 65, 128}, 100, false},
    // Two of 128 queries, or of 64; parts with one tile, and keys to clear in each tensor.
    {false, "wgmma", {1, 1, 1, 641, 129, 64}, 128, false},
    {false, "wgmma", {1, 1, 1, 520, 520, 64}, 150, true},
    {false, "wgmma", {1, 1, 1, 385, 129, 128}, 64, false},
    {false, "wgmma", {3, 4, 2, 129, 262, 64}, 100, true},
};

bool all_zero(const Values& values) {
  return std::all_of(values.begin(), values.end(), [](double x) { return x == 0; });
}

/// Some rows of the first batch entry, of one head in all, times 1000.
void enlarge(Values* rows, std::int64_t first, std::int64_t end, DType type) {
  for (auto i = static_cast<std::size_t>(first * 64); i < static_cast<std::size_t>(end * 64); ++i) {
    (*rows)[i] = as_type((*rows)[i] * 1000, type);
  }
}

}  // namespace

TEST_SUITE("step") {
  TEST_CASE("random values: each value of an option with each value of the others") {
    for_each_step(
        [](const auto& step, DType type) {
          const std::vector<Case> cases = drawn_cases(step, type);
          for (std::size_t i = 0; i < cases.size(); ++i) {
            CHECK(takes(step, cases[i]));
            if (tile::takes_case(step, type, i)) check_step(step, cases[i], normal(step, cases[i]));
          }
        },
        tile::OwnKernel::must_run, tile::Types::all);
  }

  TEST_CASE("each step's own borders: all of its stages three times, tiles of one kind of keys") {
    for_each_step([](const auto& step, DType type) {
      bool has_some = false;
      for (const Border& border : kBorders) {
        if (step.name != border.step || kIsForward<decltype(step)> != border.is_forward) continue;
        has_some = true;
        Case c = full(type, border.sizes, border.window);
        if (border.is_causal) c = causal(c);
        if (border.is_on_one) c.p.free_multiprocessors = tile::device().multiprocessors - 1;
        for (std::int64_t entry = 0; c.p.batch > 1 && entry < c.p.batch; ++entry) {
          const auto keys = static_cast<int>(c.p.keys), queries = static_cast<int>(c.p.queries);
          c.key_lengths.push_back(entry == 0 ? keys : entry == 1 ? keys - 3 : 1);
          // Rows past it are hidden from keys that all queries of a tile see, too.
          c.query_lengths.push_back(entry == 1 && queries > 3 ? queries - 3 : queries);
        }
        CHECK(takes(step, c));
        check_step(step, c, normal(step, c));
      }
      CHECK(has_some);
    });
  }

  TEST_CASE("a factor by distance is left to step tiles") {
    for_each_step(
        [](const auto& step, DType type) {
          Case c = full(type, {2, 2, 1, 37, 53, 64}, 20);
          c.p.distance_part = 0.75f, c.p.distance_rate = 0.05f;
          CHECK(takes(step, c) == (step.name == "tiles"));
        },
        tile::OwnKernel::need_not_run);
  }

  TEST_CASE("a head dimension of any size") {
    for_each_step(
        [](const auto& step, DType type) {
          Cases cases(step, type);
          for (const std::int64_t dim : {1, 8, 24, 80, 100, 255}) {
            cases.check(step, causal(full(type, {2, 2, 1, 33, 35, dim}, 20)));
          }
        },
        tile::OwnKernel::need_not_run);
  }

  TEST_CASE("pointers and rows aligned in every way") {
    for_each_step([](const auto& step, DType type) {
      const Case aligned = causal(full(type, {1, 2, 1, 17, 18, 64}, 9));
      check_step(step, aligned, normal(step, aligned));
      Cases cases(step, type);
      using Offsets = Case::Offsets;
      const std::int64_t half = 8 / static_cast<std::int64_t>(tile::size_bytes(type));
      for (const std::int64_t offset : {half, std::int64_t{1}, std::int64_t{3}}) {
        for (std::int64_t Offsets::*each :
             {&Offsets::q, &Offsets::k, &Offsets::q_far, &Offsets::k_far, &Offsets::v, &Offsets::o,
              &Offsets::dout, &Offsets::dq, &Offsets::dk, &Offsets::dq_far, &Offsets::dk_far,
              &Offsets::dv}) {
          Case c = aligned;
          c.offset.*each = offset;
          cases.check(step, c);
        }
        for (tile::TensorView AttentionForward::*each :
             {&AttentionForward::q, &AttentionForward::k, &AttentionForward::q_far,
              &AttentionForward::k_far, &AttentionForward::v, &AttentionForward::o}) {
          Case c = aligned;
          (c.p.*each).stride.row += offset;
          cases.check(step, c);
        }
      }
    });
  }

  TEST_CASE("large scores, rising and falling along the keys, near and far") {
    for_each_step([](const auto& step, DType type) {
      const Case c = full(type, {1, 1, 1, 64, 300, 64}, 90);
      Inputs in = normal(step, c);
      for (const auto& [near, far] : {std::pair{0.02, -1.0}, {-1.0, 0.02}, {1.0, 1.0}}) {
        for (std::size_t key = 0; key < 300; ++key) {
          in.k[key * 64] = as_type(near * (static_cast<double>(key) - 150), type);
          in.k_far[key * 64] = as_type(far * (static_cast<double>(key) - 150), type);
        }
        for (std::size_t i = 0; i < in.q.size(); i += 64) in.q[i] = in.q_far[i] = 16;
        tile::add_outputs(expected_outputs(c, in), type, &in);
        check_step(step, c, in);
      }
    });
  }

  TEST_CASE("to the bit: where all keys are near, or all far, nothing depends on the other pair") {
    for_each_step([](const auto& step, DType type) {
      for (const bool near : {true, false}) {
        for (const bool is_causal : {true, false}) {
          Case all = full(type, {1, 2, 1, 70, 90, 64}, near ? kUnlimited : 0);
          all.p.right = is_causal ? 0 : kUnlimited;
          Case same = all;
          same.p.window = near ? 90 : -3;
          const Inputs in = normal(step, all);
          Inputs unread = in;
          for (Values* each :
               {near ? &unread.q_far : &unread.q, near ? &unread.k_far : &unread.k}) {
            std::fill(each->begin(), each->end(), kNaN);
          }
          const Results before = run(step, all, in), after = run(step, same, unread);
          for (std::size_t i = 0; i < before.size(); ++i) {
            const std::string name = before[i].name;
            CAPTURE(name);
            CAPTURE(near);
            CAPTURE(is_causal);
            CHECK(after[i].values == before[i].values);
            const bool is_unread = near ? name.ends_with("_far") : name == "dq" || name == "dk";
            if (is_unread) CHECK(all_zero(after[i].values));
          }
        }
      }
    });
  }

  // The first `window` queries have no far key, and the last `window` keys are far from no query.
  // Forward passes and references read no such row. Backward passes multiply it by 0, unless no row
  // of its tile is used: tiles have up to 128 rows.
  TEST_CASE("to the bit: rows of a pair that no score uses may hold NaN") {
    for_each_step([](const auto& step, DType type) {
      constexpr bool kForward = kIsForward<std::decay_t<decltype(step)>>;
      const auto with_nan = [](Inputs in, std::int64_t end_of_q, std::int64_t first_of_k) {
        std::fill_n(in.q_far.begin(), end_of_q * 64, kNaN);
        std::fill(in.k_far.begin() + first_of_k * 64, in.k_far.end(), kNaN);
        return in;
      };
      for (const auto& problem : {std::pair{150, 40}, {400, 260}}) {
        const int length = problem.first, window = problem.second;
        const Case c = causal(full(type, {1, 1, 1, length, length, 64}, window));
        const Inputs in = normal(step, c);
        const bool by_tile = !kForward && length == 400;
        const Inputs unread =
            by_tile ? with_nan(in, 256, 256) : with_nan(in, window, length - window);
        CAPTURE(length);
        if (kForward || by_tile) {
          const Results before = run(step, c, in), after = run(step, c, unread);
          for (std::size_t i = 0; i < before.size(); ++i) {
            CAPTURE(before[i].name);
            if (adds_in_any_order(step, before[i].name)) {  // of three and more sums
              CHECK(std::ranges::none_of(after[i].values, [](double x) { return std::isnan(x); }));
            } else {
              CHECK(after[i].values == before[i].values);
            }
          }
        }
        if (!by_tile) {
          const auto before = expected_of(step, c, in), after = expected_of(step, c, unread);
          for (std::size_t i = 0; i < before.size(); ++i) {
            CAPTURE(i);
            CHECK(after[i].value == before[i].value);
          }
        }
      }
    });
  }

  TEST_CASE("to the bit: a key is near to no query from the window on, and far to none within") {
    for_each_step([](const auto& step, DType type) {
      for (const std::int64_t window : {1, 32, 33, 60}) {
        const Case c = causal(full(type, {1, 1, 1, 70, 130, 64}, window));
        // The first query stands beside key 60, and the last beside key 129.
        const std::int64_t first_near = 61 - window, end_far = 130 - window;
        const Inputs in = normal(step, c);
        Inputs changed = in;
        enlarge(&changed.k, 0, first_near, type);
        enlarge(&changed.k_far, end_far, 130, type);
        const Results before = run(step, c, in), same = run(step, c, changed);
        enlarge(&changed.k, first_near, first_near + 1, type);
        enlarge(&changed.k_far, end_far - 1, end_far, type);
        const Results other = run(step, c, changed);
        CAPTURE(window);
        for (std::size_t i = 0; i < before.size(); ++i) {
          CAPTURE(before[i].name);
          CHECK(same[i].values == before[i].values);
          CHECK(other[i].values != before[i].values);
        }
      }
    });
  }

  TEST_CASE("what a query does not see changes no bit of its output or its gradients") {
    for_each_step([](const auto& step, DType type) {
      const Case c = causal(full(type, {1, 1, 1, 130, 130, 64}, 40));
      // The first half of the queries does not see the keys beside the others.
      constexpr std::size_t kHalf = 65 * 64;
      Inputs in = normal(step, c);
      const Results before = run(step, c, in);
      for (Values* each : {&in.k, &in.k_far, &in.v}) enlarge(each, 65, 130, type);
      const Results after = run(step, c, in);
      for (std::size_t i = 0; i < before.size(); ++i) {
        const std::string name = before[i].name;
        if (name != "o" && name != "dq" && name != "dq_far") continue;
        CAPTURE(name);
        const Values &was = before[i].values, &is = after[i].values;
        CHECK(std::equal(&was[0], &was[kHalf], &is[0]));
        CHECK(was != is);
      }
    });
  }

  TEST_CASE("a NaN in a query is in its own row and in no other") {
    tile::for_each_step(kForwardLadder, [](const auto& step, DType type) {
      const Case c = causal(full(type, {1, 1, 1, 40, 150, 64}, 20));
      Inputs in = normal(step, c);
      const Results before = run(step, c, in);
      in.q[5 * 64 + 3] = in.q_far[7 * 64 + 3] = kNaN;
      const Results after = run(step, c, in);
      for (std::size_t i = 0; i < before.size(); ++i) {
        const std::size_t row_size = before[i].values.size() / 40;
        for (std::size_t at = 0; at < before[i].values.size(); ++at) {
          const std::size_t row = at / row_size;
          const double is = after[i].values[at];
          CHECK((row == 5 || row == 7 ? std::isnan(is) : is == before[i].values[at]));
        }
      }
    });
  }

  TEST_CASE("without a gradient of the output all gradients are exact zeros") {
    tile::for_each_step(kBackwardLadder, [](const auto& step, DType type) {
      const Case c = causal(full(type, {1, 2, 1, 70, 90, 64}, 40));
      Inputs in = normal(step, c);
      std::fill(in.dout.begin(), in.dout.end(), 0);
      for (const tile::AttentionResult& got : run(step, c, in)) {
        CAPTURE(got.name);
        CHECK(all_zero(got.values));
      }
    });
  }

  TEST_CASE("the gradients are the same to the bit each time, but for dq1 and dq2 of the sums") {
    tile::for_each_step(kBackwardLadder, [](const auto& step, DType type) {
      const bool simulated = tile::device().simulated;
      for (const std::int64_t window : {kUnlimited, std::int64_t{0}}) {
        // Three tiles of keys or more, of which the second takes off what the first adds to the
        // first element of dq1, or of dq2: in another order it would be another. That element
        // enters no score.
        const Case c =
            full(type, {1, simulated ? 2 : 8, simulated ? 1 : 4, 64, simulated ? 384 : 1152, 64},
                 window);
        Inputs in = normal(step, c);
        for (std::size_t i = 0; i < in.q.size(); i += 64) in.q[i] = in.q_far[i] = 0;
        const std::size_t row = static_cast<std::size_t>(c.p.kv_heads) * 64;
        for (std::size_t i = 0; i < 128 * row; ++i) {
          for (Values* k : {&in.k, &in.k_far}) {
            if (i % 64 == 0) (*k)[i] = 32'768;
            (*k)[128 * row + i] = i % 64 == 0 ? -(*k)[i] : (*k)[i];
          }
          in.v[128 * row + i] = in.v[i];
        }
        in.o = in.q;
        std::fill(in.lse.begin(), in.lse.end(), 6);
        const Results first = run(step, c, in);
        bool sums_are_same = true;
        // The check build, twenty times slower, looks for races itself.
        const bool checks = simulated && !tile::device_reads_host_memory();
        // one_pass shows that the test can tell the difference. On a GPU, and in two runs, the
        // order may be the same by chance.
        const bool differs = step.name == "one_pass" && simulated && !checks;
        const int runs = !simulated ? 50 : differs ? 3 : 2;
        for (int seed = 1; seed < runs || (differs && sums_are_same && seed < 30); ++seed) {
          tile::shuffle_device(static_cast<std::uint64_t>(seed));
          const Results again = run(step, c, in);
          for (std::size_t i = 0; i < first.size(); ++i) {
            const Values &a = first[i].values, &b = again[i].values;
            const bool same = std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
            CAPTURE(first[i].name);
            if (first[i].name[1] == 'q') sums_are_same = sums_are_same && same;
            if (!adds_in_any_order(step, first[i].name)) CHECK(same);
          }
        }
        tile::shuffle_device(0);
        if (differs) CHECK(!sums_are_same);
      }
    });
  }

  TEST_CASE("no query, no key, no batch") {
    for_each_step(
        [](const auto& step, DType type) {
          for (const Sizes& n :
               {Sizes{2, 2, 1, 0, 5, 64}, {0, 2, 1, 5, 5, 64}, {2, 2, 1, 5, 0, 64}}) {
            const Case c = full(type, n, 3);
            check_step(step, c, normal(step, c));
          }
        },
        tile::OwnKernel::need_not_run);
  }
}

TEST_SUITE("chapter") {
  TEST_CASE("by hand: four keys, a window of 2, and far keys that weigh twice as much") {
    // Row i of the weights before they are divided by their sum; causal, those up to the diagonal.
    constexpr double kWeights[4][4] = {{1, 1, 2, 2}, {1, 1, 1, 2}, {2, 1, 1, 1}, {2, 2, 1, 1}};
    for (const std::int64_t queries : {4, 2}) {  // all, or the last two
      for (const bool is_causal : {true, false}) {
        Case c = full(DType::fp64, {1, 1, 1, queries, 4, 4}, 2);
        c.p.right = is_causal ? 0 : kUnlimited, c.p.scale = 1;
        Inputs in;
        for (std::int64_t query = 0; query < queries; ++query) {
          in.q.insert(in.q.end(), {0, 0, 0, 0});
          in.q_far.insert(in.q_far.end(), {1, 0, 0, 0});
        }
        for (std::size_t key = 0; key < 4; ++key) {
          in.k.insert(in.k.end(), {5, 5, 5, 5});
          in.k_far.insert(in.k_far.end(), {std::log(2.0), 0, 0, 0});
          for (std::size_t d = 0; d < 4; ++d) in.v.push_back(d == key);
        }
        const tile::AttentionExpected got = expected_outputs(c, in);
        for (std::size_t i = 0; i < static_cast<std::size_t>(queries); ++i) {
          const std::size_t row = i + 4 - static_cast<std::size_t>(queries);
          double sum = 0;
          for (std::size_t key = 0; key < 4; ++key) {
            if (!is_causal || key <= row) sum += kWeights[row][key];
          }
          CHECK(std::abs(got.lse.value[i] - std::log(sum)) < 1e-14);
          for (std::size_t key = 0; key < 4; ++key) {
            const double weight = !is_causal || key <= row ? kWeights[row][key] / sum : 0;
            CHECK(std::abs(got.o.value[i * 4 + key] - weight) < 1e-14);
          }
        }
      }
    }
  }

  TEST_CASE("by hand: a factor by distance takes from the key before what it gives to the last") {
    Case c = causal(full(DType::fp64, {1, 1, 1, 1, 2, 1}, kUnlimited));
    c.p.scale = 1, c.p.distance_part = 0.5f, c.p.distance_rate = 1;
    Inputs in;
    in.q = in.q_far = {2};
    in.k = in.k_far = {3, 3};
    in.v = {1, 0};
    const double far = std::exp(6 * (0.5 + 0.5 * std::exp(-1.0))), near = std::exp(6.0);
    const tile::AttentionExpected got = expected_outputs(c, in);
    CHECK(std::abs(got.lse.value[0] - std::log(far + near)) < 1e-14);
    CHECK(std::abs(got.o.value[0] - far / (far + near)) < 1e-14);
  }

  TEST_CASE("the parts of a window, and what is in a tile, pair by pair") {
    for (const int queries : {1, 5, 16}) {
      for (const int keys : {0, 1, 7, 20}) {
        for (const int right : {0, kMaxLength}) {
          for (const int width : {0, 1, 2, 6, 21, kMaxLength}) {
            const Mask causal_or_full{queries, keys, kMaxLength, right};
            const Window window{width};
            for (const Mask& mask : {causal_or_full, causal_or_full.transposed()}) {
              bool good = true;
              const auto part_of = [&](int query, int key) {  // -1: the query does not see the key
                const int distance = query + mask.keys - mask.queries - key;
                if (!mask.sees(query, key)) return -1;
                if (std::abs(distance) < width) return 2;
                return distance >= 0 ? 0 : 1;
              };
              for (int query = 0; query < mask.queries; ++query) {
                for (int key = 0; key < mask.keys; ++key) {
                  const int expected = part_of(query, key);
                  for (int part = 0; part < Window::kParts; ++part) {
                    const bool seen = window.part(mask, part).sees(query, key);
                    good = good && seen == (part == expected);
                  }
                  if (expected == -1) continue;
                  good = good && window.is_near(mask, query, key) == Window::is_near(expected);
                }
              }
              for (int query = 0; query < mask.queries; query += 8) {
                for (int key = 0; key < mask.keys; key += 4) {
                  bool near = false, far = false;
                  for (int i = query; i < std::min(query + 8, mask.queries); ++i) {
                    for (int j = key; j < std::min(key + 4, mask.keys); ++j) {
                      near = near || part_of(i, j) == 2;
                      far = far || part_of(i, j) == 0 || part_of(i, j) == 1;
                    }
                  }
                  const Kinds kinds = kinds_of(window, mask, query, 8, key, 4);
                  good = good && kinds.near == near && kinds.far == far;
                }
              }
              CAPTURE(mask.queries);
              CAPTURE(mask.keys);
              CAPTURE(mask.left);
              CAPTURE(mask.right);
              CAPTURE(width);
              CHECK(good);
            }
          }
        }
      }
    }
  }

  TEST_CASE("the backward reference is the slope of the forward one") {
    for (const bool is_causal : {true, false}) {
      Case c = full(DType::fp64, {2, 4, 2, 5, 6, 3}, 2);
      c.p.right = is_causal ? 0 : kUnlimited;
      c.p.distance_part = 0.5f, c.p.distance_rate = 0.3f;
      Inputs in = normal(kForward[0], c);  // finite also where there will be no query and no key
      c.query_lengths = {4, 5};
      c.key_lengths = {6, 4};
      const tile::AttentionExpected forward = expected_outputs(c, in);
      in.o = forward.o.value, in.lse = forward.lse.value;
      tile::check_slopes(in, expected_gradients(c, in),
                         [&c](const Inputs& rows) { return expected_outputs(c, rows); });
    }
  }

  // CTest runs this on the CPU device as 7.5 and as 8.6, too: both have less shared memory, and 7.5
  // has tensor cores for fp16 only.
  TEST_CASE("every head dimension on every card, and in step mma by its own kernel") {
    const auto check = [](const auto& ladder, const Case& c, bool mma_takes_it) {
      using Tested = tile::TestedStep<std::remove_cvref_t<decltype(ladder)>>;
      const std::size_t mma = find_step(ladder, "mma");
      for (std::size_t number = mma; number < ladder.steps.size(); ++number) {
        const Tested step{ladder.steps[number], &ladder, number};
        if (number > mma && !takes(step, c)) continue;  // then an earlier one runs it
        const std::size_t before = tile::own_runs();
        check_step(step, c, normal(step, c));
        if (number == mma) CHECK((tile::own_runs() > before) == mma_takes_it);
      }
    };
    for (const DType type : {DType::fp16, DType::bf16}) {
      const Status able = tile::check_requirements(k16Bits, {tile::Feature::bf16_mma}, type);
      const bool lacks_bf16 = tile::device().capability < 80 && type == DType::bf16;
      CHECK((able.message.rfind("bf16_mma: ", 0) == 0) == lacks_bf16);
      for (const std::int64_t dim : kDims) {
        if (lacks_bf16) continue;
        for (const std::int64_t queries : {65, 15}) {
          const Case c = causal(full(type, {1, 2, 1, queries, 70, dim}, 20));
          // 64 queries of 256 columns, twice, are all that a block of 7.5 may have.
          check(kForwardLadder, c, dim < 256 || tile::device().capability >= 80);
          check(kBackwardLadder, c, true);
        }
      }
    }
  }
}

}  // namespace windowed_rope
