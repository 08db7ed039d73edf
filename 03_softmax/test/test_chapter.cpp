// Chapter 03's tests: the reference, and the table of steps.
#include "test_support.hpp"

namespace softmax {
namespace {

constexpr double kUnit = 0x1p-24;

// doctest's Approx takes all small numbers for the same.
bool near(double x, double y, double relative) { return std::abs(x - y) <= relative * y; }

Values value_of(const ForwardProblem& p, const Values& x) { return reference(p, x).value; }

Values value_of(const BackwardProblem& p, const Values& y, const Values& dy) {
  return reference(p, y, dy).value;
}

ForwardProblem forward_problem(DType type, std::int64_t rows, std::int64_t cols, bool log = false) {
  return {.type = type, .rows = rows, .cols = cols, .log = log};
}

BackwardProblem backward_problem(DType type, std::int64_t rows, std::int64_t cols,
                                 bool log = false) {
  return {.type = type, .rows = rows, .cols = cols, .log = log};
}

}  // namespace

TEST_SUITE("chapter") {
  TEST_CASE("the reference is the definition") {
    // By an independent program.
    const Values x{1, 2, 3, -1, 0, 4};
    constexpr double kSoftmax[] = {0.090030573170380458,  0.244728471054797652,
                                   0.66524095577482189,   0.00657326318530908303,
                                   0.0178679818703045021, 0.975558754944386415};
    const ForwardProblem p = forward_problem(DType::fp64, 2, 3);
    const tile::Expected expected = reference(p, x);
    CHECK(expected.shape == std::vector<std::int64_t>{2, 3});
    const Values logs = value_of(forward_problem(DType::fp64, 2, 3, true), x);
    for (std::size_t i = 0; i < 6; ++i) {
      CHECK(near(expected.value[i], kSoftmax[i], 1e-15));
      CHECK(std::abs(logs[i] - std::log(kSoftmax[i])) < 1e-15);
    }
    // exp(2 x), with x moved far away: the same, as it must be.
    const Values twice = value_of(scaled(p, 2), {1001, 1001.5, 1000, 7, 7, 7});
    CHECK(near(twice[0], 0.259496460342419117, 1e-14));
    CHECK(near(twice[1], 0.705384512698241158, 1e-14));
    CHECK(near(twice[5], 1.0 / 3, 1e-15));
  }

  TEST_CASE("the reference on infinities and NaN") {
    const double none = -kInfinity;
    const Values x{none, none, none, 2, none, 2, 1, kNaN, 3, 1, kInfinity, none};
    const Values y = value_of(forward_problem(DType::fp32, 4, 3), x);
    const Values logs = value_of(forward_problem(DType::fp32, 4, 3, true), x);
    CHECK(Values(y.begin(), y.begin() + 6) == Values{0, 0, 0, 0.5, 0, 0.5});
    CHECK(Values(logs.begin(), logs.begin() + 3) == Values{none, none, none});
    CHECK(logs[3] == -std::log(2));
    CHECK(logs[4] == none);
    for (std::size_t i = 6; i < 12; ++i) {
      CHECK(std::isnan(y[i]));
      CHECK(std::isnan(logs[i]));
    }
  }

  TEST_CASE("the reference's mask: the last query sees all keys") {
    // Two matrices of two queries and three keys; then three queries and two keys.
    const Values zeros(12, 0.0);
    const double third = 1.0 / 3;
    CHECK(value_of(causal(forward_problem(DType::fp64, 4, 3), 2), zeros) ==
          Values{0.5, 0.5, 0, third, third, third, 0.5, 0.5, 0, third, third, third});
    CHECK(value_of(causal(forward_problem(DType::fp64, 3, 2), 3), Values(6, 7.0)) ==
          Values{0, 0, 1, 0, 0.5, 0.5});
    const Values logs =
        value_of(causal(forward_problem(DType::fp64, 3, 2, true), 3), Values(6, 7.0));
    CHECK(logs[0] == -kInfinity);
    CHECK(logs[3] == -kInfinity);
    CHECK(logs[2] == 0);
    // Backward too.
    const BackwardProblem p = causal(backward_problem(DType::fp64, 3, 2), 3);
    CHECK(value_of(p, {kNaN, kNaN, 1, kNaN, 0.5, 0.5}, {kNaN, kNaN, 4, kNaN, 3, 1}) ==
          Values{0, 0, 0, 0, 0.5, -0.5});
  }

  TEST_CASE("the backward reference is the forward reference's derivative") {
    for (const bool log : {false, true}) {
      for (const bool with_mask : {false, true}) {
        for (const float scale : {1.f, 0.25f, 2.5f}) {
          CAPTURE(log);
          CAPTURE(with_mask);
          CAPTURE(scale);
          ForwardProblem forward = scaled(forward_problem(DType::fp64, 4, 5, log), scale);
          if (with_mask) forward = causal(forward, 4);
          BackwardProblem backward = scaled(backward_problem(DType::fp64, 4, 5, log), scale);
          if (with_mask) backward = causal(backward, 4);
          const Values x = tile::normal(20, DType::fp64, 1);
          Values dy = tile::normal(20, DType::fp64, 2);
          const Values y = value_of(forward, x);
          for (std::size_t i = 0; i < 20; ++i) {
            if (std::isinf(y[i])) dy[i] = 0;  // a loss cannot depend on these
          }
          auto loss = [&](const Values& at) {
            const Values result = value_of(forward, at);
            double sum = 0;
            for (std::size_t i = 0; i < 20; ++i) sum += dy[i] == 0 ? 0 : dy[i] * result[i];
            return sum;
          };
          const Values dx = value_of(backward, y, dy);
          constexpr double kStep = 6e-6;  // balances h^2 against the rounding of 2^-53 / h
          double largest = 0;
          for (std::size_t i = 0; i < 20; ++i) {
            Values above = x, below = x;
            above[i] += kStep;
            below[i] -= kStep;
            const double difference = (loss(above) - loss(below)) / (2 * kStep);
            CHECK(std::abs(dx[i] - difference) < 1e-9);
            largest = std::max(largest, std::abs(dx[i]));
          }
          CHECK(largest > 0.05);
        }
      }
    }
  }

  TEST_CASE("the bound of y, in roundings") {
    // Equal numbers: 2 ulps of an exponential in the sum, two exponentials in the result, each 4u;
    // n - 1 additions; n - 1 rescalings of 5u; 1 / sum and three products.
    for (const std::int64_t n : {1, 2, 10}) {
      const ForwardProblem p = forward_problem(DType::fp32, 1, n);
      const tile::Expected expected = reference(p, Values(static_cast<std::size_t>(n), 3.0));
      const auto count = static_cast<double>(n);
      CHECK(near(expected.bound[0] / expected.value[0] / kUnit,
                 4 + 8 + (count - 1) + 5 * (count - 1) + 4, 1e-4));
    }
    // Rescalings: n / 256 and 53 of the reduction.
    const ForwardProblem p = forward_problem(DType::fp32, 1, 4096);
    const tile::Expected expected = reference(p, Values(4096, 0.0));
    CHECK(near(expected.bound[0] / expected.value[0] / kUnit, 16 + 4095 + 5 * (16 + 53), 1e-3));
    // Two numbers 10 apart: their arguments lose 40u, and the mean of both in the sum next to 0.
    const tile::Expected apart = reference(forward_problem(DType::fp32, 1, 2), Values{0, -10});
    CHECK(near(apart.bound[1] / apart.value[1] / kUnit, 40 + 22, 1e-3));
    CHECK(near(apart.bound[0] / apart.value[0] / kUnit, 22, 1e-3));
  }

  TEST_CASE("the bound of log y, in roundings") {
    // 2u of the difference, the sum's error, 2u of the logarithm's, and one of the result.
    const ForwardProblem p = forward_problem(DType::fp32, 1, 2, true);
    const tile::Expected equal = reference(p, Values{5, 5});
    CHECK(near(equal.bound[0] / kUnit, (4 + 1 + 5) + 3 * std::log(2), 1e-4));
    const tile::Expected apart = reference(p, Values{0, -100});
    CHECK(near(apart.bound[1] / kUnit, 10 + 200 + 100, 1e-3));
    CHECK(near(apart.bound[0] / kUnit, 10, 1e-3));
  }

  TEST_CASE("the bound of dx, in roundings") {
    // y = 1/2, 1/2 and dy = 3, 1: the sum is 2, and 2u of it are lost; then three products and
    // differences.
    const BackwardProblem p = backward_problem(DType::fp32, 1, 2);
    const tile::Expected expected = reference(p, Values{0.5, 0.5}, Values{3, 1});
    CHECK(expected.value == Values{0.5, -0.5});
    CHECK(near(expected.bound[0] / kUnit, 0.5 * (2 * 2 + 1) + 2 * 0.5, 1e-4));
    // Of the logarithm: the sum 4, 2u; its product with the exponential, 4 + 1 + 2 log 2; and two.
    const BackwardProblem log = backward_problem(DType::fp32, 1, 2, true);
    const double half = -std::log(2);
    const tile::Expected of_log = reference(log, Values{half, half}, Values{3, 1});
    CHECK(near(of_log.value[0], 1, 1e-15));
    CHECK(near(of_log.bound[0] / kUnit, 0.5 * 4 * (2 + 5 + 2 * std::log(2)) + 2 * 1, 1e-4));
  }

  TEST_CASE("the bound of a type: rounded once more, and not where the result is exact") {
    for (const DType type : {DType::fp16, DType::bf16}) {
      const ForwardProblem p = forward_problem(type, 1, 3);
      const tile::Expected expected = reference(p, Values{0, 0, 0});
      const tile::Expected in_fp32 = reference(forward_problem(DType::fp32, 1, 3), Values{0, 0, 0});
      CHECK(near(expected.bound[0], in_fp32.bound[0] + tile::unit_roundoff(type) / 3, 1e-3));
      CHECK(reference(p, Values(3, -kInfinity)).bound == Values(3, 0.0));
      // Below the type's range only the smallest denormal counts.
      const tile::Expected tiny = reference(p, Values{0, -300, 0});
      CHECK(tiny.bound[1] < 1.01 * (type == DType::fp16 ? 0x1p-25 : 0x1p-124));
      // And what is too large for it is infinite.
      const ForwardProblem log = forward_problem(type, 1, 2, true);
      const double most = tile::adversarial_finite(10, type)[8];
      CHECK(value_of(log, Values{most, -most})[1] == -kInfinity);
      CHECK(value_of(log, Values{0, -most})[1] == -most);
    }
  }

  TEST_CASE("every step has a name, an idea and all types") {
    auto check = [](const auto& ladder) {
      for (const auto& step : ladder.steps) {
        CAPTURE(ladder.name);
        CAPTURE(step.name);
        CHECK(!step.name.empty());
        CHECK(!step.idea.empty());
        CHECK(tile::listed(step.types) == "fp32, fp16, bf16");
      }
    };
    check(kForwardLadder);
    check(kBackwardLadder);
  }

  TEST_CASE("sizes on both sides of what each step takes, and which step runs them") {
    // On a card with 227 KiB for a block.
    struct Border {
      const char* wanted;
      std::int64_t cols;
      const char* runs;
      bool log = false;
      std::int64_t rows = 1;
    };
    constexpr Border kForwardBorders[] = {
        {"registers", 32'768, "registers"},   {"registers", 32'772, "online"},
        {"registers", 8191, "registers"},     {"registers", 32'775, "registers"},
        {"registers", 32'777, "online"},      {"registers", 8192, "registers", true},
        {"registers", 8196, "online", true},  {"registers", 8199, "registers", true},
        {"registers", 8201, "online", true},  {"shared", 16'384, "registers"},
        {"shared", 16'388, "shared"},         {"shared", 8192, "registers", true},
        {"shared", 8196, "shared", true},     {"shared", 4095, "registers"},
        {"shared", 4097, "shared"},           {"shared", 32'774, "shared"},
        {"shared", 32'775, "registers"},      {"shared", 32'777, "online"},
        {"shared", 32'768, "shared"},         {"shared", 32'772, "online"},
        {"cluster", 16'384, "registers"},     {"cluster", 32'768, "shared"},
        {"cluster", 32'772, "cluster"},       {"cluster", 32'774, "shared"},
        {"cluster", 32'775, "cluster"},       {"cluster", 262'144, "cluster"},
        {"cluster", 262'148, "online"},       {"cluster", 262'150, "cluster"},
        {"cluster", 262'151, "online"},       {"queue", 16'384, "registers"},
        {"queue", 16'388, "queue"},           {"queue", 16'383, "shared"},
        {"queue", 16'385, "shared"},          {"queue", 16'384, "shared", true},
        {"queue", 524'288, "queue"},          {"queue", 524'292, "online"},
        {"queue", 262'150, "queue"},          {"queue", 262'151, "online"},
        {"split", 4095, "registers"},         {"split", 4097, "shared"},
        {"split", 32'775, "queue", false, 9}, {"split", 524'292, "split"},
        {"split", 524'295, "split"},          {"split", 262'144, "queue", false, 9},
        {"split", 262'148, "split", false, 9}};
    constexpr Border kBackwardBorders[] = {{"registers", 16'384, "registers"},
                                           {"registers", 16'388, "shuffles"},
                                           {"registers", 8191, "registers"},
                                           {"registers", 16'391, "registers"},
                                           {"registers", 16'393, "shuffles"},
                                           {"registers", 8192, "registers", true},
                                           {"registers", 8196, "shuffles", true},
                                           {"registers", 8199, "registers", true},
                                           {"registers", 8201, "shuffles", true},
                                           {"shared", 8192, "registers"},
                                           {"shared", 8196, "shared"},
                                           {"shared", 4095, "registers"},
                                           {"shared", 4097, "shared"},
                                           {"shared", 27'654, "shared"},
                                           {"shared", 27'655, "shuffles"},
                                           {"shared", 27'648, "shared"},
                                           {"shared", 27'652, "shuffles"},
                                           {"cluster", 8192, "registers"},
                                           {"cluster", 27'648, "shared"},
                                           {"cluster", 27'652, "cluster"},
                                           {"cluster", 229'376, "cluster"},
                                           {"cluster", 229'380, "shuffles"},
                                           {"cluster", 27'654, "shared"},
                                           {"cluster", 27'655, "cluster"},
                                           {"cluster", 229'382, "cluster"},
                                           {"cluster", 229'383, "shuffles"},
                                           {"split", 8192, "registers"},
                                           {"split", 8196, "shared"},
                                           {"split", 4097, "shared"},
                                           {"split", 27'655, "cluster", false, 9},
                                           {"split", 229'383, "split"},
                                           {"split", 229'380, "split"}};
    if (tile::device().shared_bytes_of_block != 227 * 1024 || tile::device().capability < 90) {
      return tile::skip("the borders are those of cards with clusters and 227 KiB for a block");
    }
    auto check = [](const auto& ladder, const auto& borders) {
      using Ladder = std::remove_cvref_t<decltype(ladder)>;
      for (const Border& border : borders) {
        CAPTURE(ladder.name);
        CAPTURE(border.wanted);
        CAPTURE(border.cols);
        const std::size_t wanted = find_step(ladder, border.wanted);
        REQUIRE(wanted < ladder.steps.size());
        const tile::TestedStep<Ladder> step{ladder.steps[wanted], &ladder, wanted};
        const auto p = plain(step, DType::fp32, border.rows, border.cols, border.log);
        void* const aligned = reinterpret_cast<void*>(std::uintptr_t{256});
        tile::Choice choice;
        auto buffers = buffers_of(p, aligned, aligned, aligned);
        buffers.workspace_bytes = workspace_bytes_of(step, p);
        const Status found = choose_step(ladder, wanted, p, buffers, &choice);
        REQUIRE_MESSAGE(found.ok(), found.message);
        const bool as_expected = ladder.steps[choice.step].name == border.runs;
        CHECK_MESSAGE(as_expected, ladder.steps[choice.step].name, " runs it, because of ",
                      choice.why);
        CHECK(choice.why.empty() == (choice.step == wanted));
        check_exact(step, p);
      }
    };
    check(kForwardLadder, kForwardBorders);
    check(kBackwardLadder, kBackwardBorders);
  }

  TEST_CASE("why a step's own kernel does not run: the argument and its value") {
    auto why = [](auto* takes, DType type, std::int64_t cols, std::int64_t ldx,
                  std::uintptr_t address) {
      ForwardProblem p = forward_problem(type, 2, cols);
      p.ldx = ldx;
      const ForwardBuffers buffers{reinterpret_cast<const void*>(address),
                                   reinterpret_cast<void*>(std::uintptr_t{256})};
      return takes(p, buffers, tile::device()).message;
    };
    ForwardTakes* const chunks = [](const ForwardProblem& p, const ForwardBuffers& buffers,
                                    const tile::Device&) { return check_chunks(p, buffers); };
    CHECK(why(chunks, DType::fp32, 20'003, 20'008, 256) ==
          "cols: 20003 do not fill chunks of 16 bytes");
    CHECK(why(chunks, DType::bf16, 20'004, 20'008, 256) ==
          "cols: 20004 do not fill chunks of 16 bytes");
    CHECK(why(chunks, DType::fp32, 20'008, 20'009, 256) == "ldx: 20009 is no multiple of 16 bytes");
    CHECK(why(chunks, DType::fp32, 20'008, 20'008, 260) == "x: is not aligned to 16 bytes");
    for (ForwardTakes* takes :
         {static_cast<ForwardTakes*>(takes_shared), static_cast<ForwardTakes*>(takes_cluster),
          static_cast<ForwardTakes*>(takes_queue)}) {
      CHECK(why(takes, DType::fp32, 40'003, 40'008, 256) ==
            "ldy: 40003 and 40008 differ by no multiple of 16 bytes");
      CHECK(why(takes, DType::fp32, 40'003, 40'003, 260) == "y: begins otherwise than x");
    }
    const auto shared = static_cast<ForwardTakes*>(takes_shared);
    CHECK(why(shared, DType::fp32, 4096, 4096, 256) == "cols: 4096 are as fast in registers");
    CHECK(why(shared, DType::fp32, 40'000, 40'000, 256) ==
          "cols: 40000 do not fit into shared memory");

    // 9001 elements are too many one by one, and not in chunks. Those need rows that begin alike.
    const auto registers = static_cast<ForwardTakes*>(takes_registers);
    const std::string too_many = "cols: 9001 do not fit into registers";
    CHECK(why(registers, DType::bf16, 9001, 9001, 256).empty());
    CHECK(why(registers, DType::bf16, 9001, 9009, 256).empty());
    CHECK(why(registers, DType::bf16, 9001, 9005, 256) == too_many);
    CHECK(why(registers, DType::bf16, 9001, 9001, 264) == too_many);
    CHECK(why(registers, DType::fp32, 9001, 9005, 272).empty());

    // Of dy and dx, one begins otherwise or has other rows.
    const auto why_backward = [](std::uintptr_t dy, std::uintptr_t dx, std::int64_t lddy,
                                 std::int64_t lddx, BackwardTakes* takes = takes_registers) {
      BackwardProblem p{DType::bf16, 2, 9001};
      p.lddy = lddy, p.lddx = lddx;
      const BackwardBuffers buffers{reinterpret_cast<const void*>(std::uintptr_t{258}),
                                    reinterpret_cast<const void*>(dy), reinterpret_cast<void*>(dx)};
      return takes(p, buffers, tile::device()).message;
    };
    CHECK(why_backward(258, 274, 9001, 9009).empty());
    CHECK(why_backward(266, 258, 9001, 9001) == too_many);
    CHECK(why_backward(258, 266, 9001, 9001) == too_many);
    CHECK(why_backward(258, 258, 9005, 9001) == too_many);
    CHECK(why_backward(258, 258, 9001, 9005) == too_many);
    for (BackwardTakes* takes :
         {static_cast<BackwardTakes*>(takes_shared), static_cast<BackwardTakes*>(takes_cluster)}) {
      CHECK(why_backward(266, 258, 9001, 9001, takes) == "dy: begins otherwise than y");
      CHECK(why_backward(258, 266, 9001, 9001, takes) == "dx: begins otherwise than y");
      CHECK(why_backward(258, 258, 9005, 9001, takes) ==
            "lddy: 9005 and 9001 differ by no multiple of 16 bytes");
      CHECK(why_backward(258, 258, 9001, 9005, takes) ==
            "lddx: 9005 and 9001 differ by no multiple of 16 bytes");
    }
  }
}

}  // namespace softmax
