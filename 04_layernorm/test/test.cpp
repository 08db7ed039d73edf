// Chapter 04's tests: every step on every type, in shapes, options and places.
#include "test_support.hpp"

namespace layernorm {
namespace {

// Around warps, blocks and chunks of 16 bytes, one and two of them; whole chunks that leave lanes
// without one; primes; and rows that take the card or a cluster, backward and forward.
constexpr std::int64_t kCols[] = {1,   2,    3,    7,    8,    9,      15,     16,     17,    31,
                                  32,  33,   40,   63,   64,   65,     97,     113,    127,   128,
                                  129, 200,  255,  256,  257,  511,    512,    513,    587,   776,
                                  799, 1023, 1024, 1025, 9001, 17'000, 17'001, 33'000, 32'901};
constexpr std::int64_t kRows[] = {1, 2, 3, 5, 7};

/// Rows of every alignment, and more than one block has.
template <class Step>
std::int64_t some_rows(const Step& step) {
  return step.name == "four_rows" ? 43 : step.name == "ends" ? 17 : 5;
}

}  // namespace

// Declared in row_sums.cuh, which kernels include.
Status sum_partial_sums(const BackwardProblem& problem, const BackwardBuffers& buffers,
                        std::int64_t count, void* stream);

TEST_SUITE("step") {
  TEST_CASE("all sizes, with and without gamma and beta") {
    for_each_step(
        [](const auto& step, DType type) {
          Cases cases(step, type);
          std::size_t turn = 0;
          for (const std::int64_t cols : kCols) {
            for (const Norm norm : kNorms) {
              ++turn;
              // A block may have several of the short ones.
              const std::int64_t rows = kRows[turn % std::size(kRows)] + (cols <= 33 ? 26 : 0);
              const auto p = problem_for(step, type, rows, cols, norm);
              if (cases.take(step, p)) check_step(step, p, normal(p, turn % 5 != 0, turn % 3 != 0));
            }
          }
        },
        tile::OwnKernel::must_run, tile::Types::all);
  }

  TEST_CASE("whatever may be null is null, alone and together") {
    for_each_step([](const auto& step, DType type) {
      Cases cases(step, type);
      for (const std::int64_t cols : lengths_for(step, type, {45, 264})) {
        for (const Norm norm : kNorms) {
          for (int bits = 0; bits < 16; ++bits) {
            const auto p = problem_for(step, type, 5, cols, norm);
            const bool gamma = bits & 1, beta = bits & 2, first = bits & 4, second = bits & 8;
            const bool has_beta = kIsForward<std::decay_t<decltype(p)>> && norm == Norm::layer;
            if ((beta && !has_beta) || !cases.take(step, p)) continue;
            check_step(step, p, normal(p, gamma, beta), {first, second, first, second});
          }
        }
      }
    });
  }

  TEST_CASE("long rows") {
    for_each_step([](const auto& step, DType type) {
      std::vector<std::int64_t> lengths{1024, 1843,   2048,   3585,   5000,   8191,   8192,  8193,
                                        8200, 16'383, 16'384, 16'392, 32'768, 32'769, 32'776};
      if (tile::device().simulated) {
        lengths.insert(lengths.end(), {32'901, 40'000, 70'001, 70'008});  // several blocks
      } else {
        lengths.insert(lengths.end(),
                       {32'767, 32'901, 65'536, 131'072, 131'080, 1'000'003, 1 << 20});
      }
      Cases cases(step, type);
      std::int64_t turn = 0;
      for (const std::int64_t cols : lengths) {
        ++turn;
        const auto p = problem_for(step, type, 1 + turn % 2, cols, kNorms[turn / 2 % 2]);
        if (!takes(step, p) || (!cases.take(step, p) && step.name != "cluster")) continue;
        check_step(step, p, normal(p));
      }
    });
  }

  TEST_CASE("so many rows that a block has several") {
    for_each_step([](const auto& step, DType type) {
      struct Shape {
        std::int64_t rows, cols, rows_on_gpu;
      };
      Cases cases(step, type);
      std::size_t turn = 0;
      for (const Shape shape :
           {Shape{700, 70, 40'003}, Shape{203, 72, 40'003}, Shape{300, 33, 65'537},
            Shape{140, 264, 10'007}, Shape{131, 1032, 2011}, Shape{517, 8, 40'009},
            Shape{9, 12'296, 301}, Shape{21, 9001, 301}, Shape{8, 20'008, 281},
            Shape{5, 40'008, 149}, Shape{21, 17'001, 301}, Shape{17, 32'769, 601},
            Shape{19, 32'901, 1009}}) {
        const Norm norm = kNorms[turn++ % 2];
        const std::int64_t rows = tile::device().simulated ? shape.rows : shape.rows_on_gpu;
        const auto p = problem_for(step, type, rows, shape.cols, norm);
        // `split` has two groups of rows, of 2 bytes, and a group that has rows twice; `cluster` as
        // many clusters as rows begin in other ways, and more rows; `persistent` all kinds of rows.
        const bool is_long = shape.cols == 17'001 || (shape.cols > 32'768 && shape.rows > 5);
        const bool is_of_step = step.name == (shape.rows == 19 ? "persistent" : "split") ||
                                (step.name == "cluster" && shape.rows == 21);
        if (is_long ? is_of_step && takes(step, p) : cases.take(step, p)) {
          check_step(step, p, normal(p));
        }
      }
    });
  }

  TEST_CASE("rows that begin anywhere, in numbers that no block or every block has") {
    for_each_step(
        [](const auto& step, DType type) {
          if (step.name != "ends") return;
          std::size_t turn = 0;
          for (const std::int64_t cols : {17, 31, 100, 175, 257, 295, 515, 777, 1039, 1363, 1843}) {
            for (const std::int64_t rows : {1, 7, 8, 9, 37, 67}) {
              if (rows * cols > 70'000 && tile::device().simulated) continue;
              const auto p = problem_for(step, type, rows, cols, kNorms[turn++ % 2]);
              const OutputAt output = turn % 3 == 0 ? OutputAt::on_x : OutputAt::apart;
              if (!takes(step, p)) continue;  // whole chunks of fp32
              check_step(step, p, normal(p, turn % 5 != 0, turn % 7 != 0), {.output = output});
            }
          }
        },
        OwnKernel::need_not_run);
  }

  TEST_CASE("rows that begin anywhere and that several blocks share") {
    for_each_step(
        [](const auto& step, DType type) {
          if (step.name != "persistent" && step.name != "exchange") return;
          const bool simulated = tile::device().simulated;
          struct Shape {
            std::int64_t rows, cols, rows_on_gpu;
          };
          // Two rows and one; parts of three and of four chunks a thread; one group of blocks and
          // two; and more blocks than a warp has lanes.
          std::size_t turn = 0;
          for (const Shape shape :
               {Shape{2, 32'903, 2}, Shape{9, 48'001, 1}, Shape{21, 32'786, 133},
                Shape{9, 32'785, 66}, Shape{0, 100'003, 601}, Shape{0, 1'000'001, 17}}) {
            const std::int64_t rows = simulated ? shape.rows : shape.rows_on_gpu;
            const auto p = problem_for(step, type, rows, shape.cols, kNorms[turn++ % 3 == 1]);
            if (rows == 0 || !takes(step, p)) continue;
            const OutputAt output = turn % 2 == 0 ? OutputAt::on_x : OutputAt::apart;
            check_step(step, p, normal(p, turn % 4 != 0, turn % 5 != 0), {.output = output});
          }
        },
        OwnKernel::need_not_run);
  }

  TEST_CASE("pointers aligned in every way") {
    for_each_step([](const auto& step, DType type) {
      constexpr std::int64_t Offsets::*kOf[] = {
          &Offsets::x,    &Offsets::gamma, &Offsets::beta, &Offsets::y,      &Offsets::mean,
          &Offsets::rstd, &Offsets::dy,    &Offsets::dx,   &Offsets::dgamma, &Offsets::dbeta};
      std::vector<Offsets> all{{}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {3, 3, 3, 3, 3, 3, 3, 3, 3, 3}};
      for (const auto of : kOf) {
        // Those that the pass has.
        const bool of_forward = of == &Offsets::beta || of == &Offsets::y;
        const bool of_backward = of == &Offsets::dy || of == &Offsets::dx ||
                                 of == &Offsets::dgamma || of == &Offsets::dbeta;
        const bool forward = step.ladder->name == "forward";
        if (forward ? of_backward : of_forward) continue;
        for (const std::int64_t offset : {1, 3}) {
          all.emplace_back();
          all.back().*of = offset;
        }
      }
      Cases cases(step, type);
      for (const Offsets& offsets : all) {
        for (const std::int64_t cols : lengths_for(step, type, {1000, 1032, 77})) {
          const auto p = problem_for(step, type, some_rows(step), cols);
          if (cases.take(step, p, {.offsets = offsets})) {
            check_step(step, p, normal(p), {.offsets = offsets});
          }
        }
      }
    });
  }

  TEST_CASE("rows that do not follow one another, at distances of their own") {
    for_each_step([](const auto& step, DType type) {
      Cases cases(step, type);
      for (const Paddings padding :
           {Paddings{8, 16, 24, 32}, Paddings{1, 2, 3, 5}, Paddings{1, 0, 0, 0},
            Paddings{0, 1, 0, 0}, Paddings{0, 0, 1, 0}, Paddings{0, 0, 0, 1}, Paddings{4, 4, 4, 4},
            Paddings{0, 0, 0, 0}, Paddings{1000, 3000, 2000, 4000}}) {
        for (const std::int64_t cols : lengths_for(step, type, {1000, 1032, 77})) {
          for (const std::int64_t offset : {0, 1}) {
            const auto p = padded(problem_for(step, type, some_rows(step), cols), padding);
            const Call call{.offsets = {.x = offset, .y = offset, .dy = offset, .dx = offset}};
            if (cases.take(step, p, call)) check_step(step, p, normal(p), call);
          }
        }
      }
    });
  }

  TEST_CASE("rows half a vector further apart, or shorter, than whole vectors") {
    // A check for less than the 16 bytes of a vector lets this pass.
    for_each_step(
        [](const auto& step, DType type) {
          const auto half = static_cast<std::int64_t>(8 / tile::size_bytes(type));
          for (const std::int64_t cols : lengths_for(step, type, {64, 1032})) {
            const auto whole = problem_for(step, type, 5, cols);
            const auto shorter = problem_for(step, type, 5, cols - half);
            if (!takes(step, whole)) continue;
            for (const auto& p : {padded(whole, {.x = half}), padded(whole, {.y = half}),
                                  padded(whole, {.dy = half}), padded(whole, {.dx = half}),
                                  padded(shorter, {half, half, half, half})}) {
              if (takes(step, p)) check_step(step, p, normal(p));
            }
          }
        },
        OwnKernel::need_not_run);
  }

  TEST_CASE("the output takes the place of an input") {
    for_each_step([](const auto& step, DType type) {
      Cases cases(step, type);
      std::size_t turn = 0;
      for (const OutputAt output : {OutputAt::on_x, OutputAt::on_dy}) {
        if (output == OutputAt::on_dy && step.ladder->name == "forward") continue;
        for (const std::int64_t cols : {1, 45, 264, 1032, 12'296, 9001, 20'000, 33'000, 32'901}) {
          for (const std::int64_t padding : {0, 3, 8}) {
            const Norm norm = kNorms[turn++ % 2];
            const auto p =
                padded(problem_for(step, type, cols < 9000 ? some_rows(step) : 2, cols, norm),
                       {padding, padding, padding, padding});
            const Call call{.output = output};
            if (cases.take(step, p, call)) check_step(step, p, normal(p), call);
          }
        }
      }
    });
  }

  TEST_CASE("no rows, no columns") {
    for_each_step(
        [](const auto& step, DType type) {
          using Problem = std::decay_t<decltype(problem_for(step, type, 0, 0))>;
          for (const Norm norm : kNorms) {
            for (const std::int64_t rows : {0, 1, 5}) {
              for (const std::int64_t cols : {0, 1, 304, 17'000}) {
                if (rows > 0 && cols > 0) continue;
                const Problem p = problem_for(step, type, rows, cols, norm);
                CAPTURE(step.name);
                CAPTURE(rows);
                CAPTURE(cols);
                Inputs in{{}, Values(static_cast<std::size_t>(cols), 2.0)};
                // Without columns nothing means anything, and nothing is written.
                in.mean.assign(static_cast<std::size_t>(norm == Norm::layer ? rows : 0), 0.0);
                in.rstd.assign(static_cast<std::size_t>(rows), 1.0);
                for (const Poison poison : tile::kOutputPoisons) {
                  Arrays<Problem> arrays(p, in, {}, poison);
                  const Status done = tile::run_step(step, p, arrays.buffers());
                  CHECK_MESSAGE(done.ok(), done.message);
                  if (cols == 0 || kIsForward<Problem>) {
                    arrays.check_untouched();
                    continue;
                  }
                  arrays.check_intact();
                  const Outputs out = arrays.download();
                  const Expected zero{{cols},
                                      Values(static_cast<std::size_t>(cols), 0.0),
                                      Values(static_cast<std::size_t>(cols), 0.0)};
                  check_values("dgamma", out.dgamma, zero);
                  if (norm == Norm::layer) check_values("dbeta", out.dbeta, zero);
                }
              }
            }
          }
        },
        OwnKernel::need_not_run);
  }

  TEST_CASE("repeated runs give the same bytes") {
    for_each_step([](const auto& step, DType type) {
      CAPTURE(step.name);
      // Blocks add in the order in which they come, so that sums over rows may differ in their last
      // bits. What belongs to a row may not.
      const bool sums_may_differ = step.name == "atomics";
      for (const auto& [rows, cols] :
           {std::pair{131, 133}, std::pair{37, 1000}, std::pair{37, 1032}, std::pair{3, 17'000},
            std::pair{3, 33'000}, std::pair{20, 9001}, std::pair{11, 32'901}}) {
        const auto p = problem_for(step, type, rows, cols);
        if (!takes(step, p)) continue;
        const Inputs in = normal(p);
        std::vector<std::byte> first, first_sums;
        const int runs = tile::device().simulated ? 2 : 100;
        for (int i = 0; i < runs; ++i) {
          CAPTURE(i);
          Arrays<std::decay_t<decltype(p)>> arrays(p, in, {}, tile::kOutputPoisons[i % 2]);
          const Status done = tile::run_step(step, p, arrays.buffers());
          REQUIRE_MESSAGE(done.ok(), done.message);
          const auto bytes = arrays.result_bytes(), sums = arrays.sums_bytes();
          if (i == 0) first = bytes, first_sums = sums;
          const bool same = bytes == first, same_sums = sums == first_sums;
          REQUIRE(same);
          if (!sums_may_differ) REQUIRE(same_sums);
        }
      }
    });
  }
}

TEST_SUITE("chapter") {
  // How many a step makes depends on the card.
  TEST_CASE("the second stage adds up any number of partial sums") {
    for (const DType type : kTypesOfSteps) {
      for (const std::int64_t cols : {1, 33, 70}) {
        for (const std::int64_t count : {1, 31, 32, 33, 300, 2048}) {
          CAPTURE(cols);
          CAPTURE(count);
          const Values sums = tile::integers(2 * count * cols, DType::fp32, 1, -2, 2);
          Expected expected[2];  // dgamma and dbeta
          for (Expected& one : expected) {
            one.shape = {cols};
            one.value = one.bound = Values(static_cast<std::size_t>(cols), 0.0);
          }
          for (std::size_t i = 0; i < sums.size(); ++i) {
            Expected& one = expected[i < sums.size() / 2 ? 0 : 1];
            one.value[i % static_cast<std::size_t>(cols)] += sums[i];
          }
          const Layout layout = tile::vector_layout(type, cols);
          DeviceBuffer dgamma = DeviceBuffer::output("dgamma", layout, Poison::unwritten_nan);
          DeviceBuffer dbeta = DeviceBuffer::output("dbeta", layout, Poison::unwritten_nan);
          DeviceBuffer workspace = DeviceBuffer::input(
              "workspace", tile::vector_layout(DType::fp32, std::ssize(sums)), sums);
          BackwardBuffers buffers;
          buffers.dgamma = dgamma.raw();
          buffers.dbeta = dbeta.raw();
          buffers.workspace = workspace.raw();
          const Status launched = sum_partial_sums({type, count, cols}, buffers, count, nullptr);
          REQUIRE_MESSAGE(launched.ok(), launched.message);
          const Status done = tile::synchronize_status(nullptr);
          REQUIRE_MESSAGE(done.ok(), done.message);
          for (Expected& one : expected) tile::round_to(one.value, type);
          check_values("dgamma", dgamma.download(), expected[0]);
          check_values("dbeta", dbeta.download(), expected[1]);
          for (const DeviceBuffer* buffer : {&dgamma, &dbeta, &workspace}) {
            const Status intact = buffer->check();
            CHECK_MESSAGE(intact.ok(), intact.message);
          }
        }
      }
    }
  }
}

TEST_SUITE("launch") {
  TEST_CASE("the kernels run in the stream they were given, and a launch that fails is reported") {
    // A stream that does not exist shows both.
    if (!tile::device().simulated) return tile::skip("a GPU's driver may crash on such a stream");
    for_each_step(
        [](const auto& step, DType type) {
          CAPTURE(step.name);
          for (const std::int64_t cols : lengths_for(step, type, {5, 64, 3000})) {
            const auto p = problem_for(step, type, 3, cols);
            if (!takes(step, p)) continue;
            const Arrays<std::decay_t<decltype(p)>> arrays(p, normal(p), {}, Poison::unwritten_nan);
            int no_stream = 0;
            const Status status = run(*step.ladder, step.number, p, arrays.buffers(), &no_stream);
            CHECK(status.code == tile::Code::device_error);
            const bool named =
                status.message.find("cudaErrorInvalidResourceHandle") != std::string::npos;
            CHECK_MESSAGE(named, status.message);
            arrays.check_untouched();
          }
        },
        OwnKernel::need_not_run);
  }
}

}  // namespace layernorm
