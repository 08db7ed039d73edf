// Chapter 01's tests: every step on every check.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <cmath>

#include "harness/buffer.hpp"
#include "harness/inputs.hpp"
#include "harness/test_main.hpp"
#include "large.hpp"
#include "reference.hpp"
#include "tile/basics.cuh"
#include "tile/host/cuda_check.hpp"
#include "tile/host/device.hpp"

using tile::Comparison;
using tile::DeviceBuffer;
using tile::DType;
using tile::Poison;
using tile::Status;

namespace vector_add {
namespace {

using Values = std::vector<double>;
using Step = tile::TestedStep<Ladder>;

/// Elements from a 256-byte boundary to each vector's first.
struct Offsets {
  std::int64_t a, b, c;
};

// Runs the step on these inputs, with poison in the output, and checks result and buffers.
void check_sum(const Step& step, DType type, const Values& a, const Values& b, Offsets offsets) {
  const auto n = static_cast<std::int64_t>(a.size());
  CAPTURE(step.name);
  CAPTURE(n);
  CAPTURE(offsets.a);
  CAPTURE(offsets.b);
  CAPTURE(offsets.c);
  const tile::Expected expected = reference(type, a, b);
  for (const Poison poison : tile::poisons_for({&expected})) {
    auto layout = [&](std::int64_t offset) { return tile::vector_layout(type, n, offset); };
    DeviceBuffer device_a = DeviceBuffer::input("a", layout(offsets.a), a);
    DeviceBuffer device_b = DeviceBuffer::input("b", layout(offsets.b), b);
    DeviceBuffer device_c = DeviceBuffer::output("c", layout(offsets.c), poison);

    const Status done =
        tile::run_step(step, {type, n}, {device_a.raw(), device_b.raw(), device_c.raw()});
    REQUIRE_MESSAGE(done.ok(), done.message);

    const Comparison sum = tile::compare("c", device_c.download(), expected);
    CHECK_MESSAGE(sum.ok(), sum.message);
    for (const DeviceBuffer* buffer : {&device_a, &device_b, &device_c}) {
      const Status intact = buffer->check();
      // A kernel that writes too far would go beyond all canaries at a larger size.
      REQUIRE_MESSAGE(intact.ok(), intact.message);
    }
  }
}

constexpr std::int64_t kTile = 256;  // threads of a block

}  // namespace

TEST_SUITE("step") {
  TEST_CASE("random values at odd sizes and offsets") {
    tile::for_each_step(
        kLadder,
        [](const Step& step, DType type) {
          for (const std::int64_t n : tile::odd_sizes(kTile)) {
            for (const std::int64_t offset : tile::pointer_offsets()) {
              check_sum(step, type, tile::normal(n, type, 1), tile::normal(n, type, 2),
                        {offset, offset, offset});
            }
          }
        },
        tile::OwnKernel::must_run, tile::Types::all);
  }

  TEST_CASE("vectors that are aligned differently") {
    tile::for_each_step(kLadder, [](const Step& step, DType type) {
      for (const Offsets offsets : {Offsets{1, 0, 0}, Offsets{0, 1, 0}, Offsets{0, 0, 1},
                                    Offsets{1, 1, 3}, Offsets{0, 2, 4}}) {
        for (const std::int64_t n : {1, 31, 1025}) {
          check_sum(step, type, tile::normal(n, type, 1), tile::normal(n, type, 2), offsets);
        }
      }
    });
  }

  TEST_CASE("more elements than the card runs at one time, aligned alike and differently") {
    tile::for_each_step(kLadder, [](const Step& step, DType type) {
      const std::int64_t count = tile::device().simulated ? 100'003 : 1'000'003;
      const Values a = tile::uniform(count, type, 3, -1, 1), b = tile::normal(count, type, 4);
      for (const Offsets offsets : {Offsets{0, 0, 0}, Offsets{0, 0, 1}}) {
        check_sum(step, type, a, b, offsets);
      }
    });
  }

  TEST_CASE("integers, whose sums are exact") {
    tile::for_each_step(kLadder, [](const Step& step, DType type) {
      const auto limit = static_cast<std::int64_t>(0.5 / tile::unit_roundoff(type));
      check_sum(step, type, tile::integers(10'007, type, 5, -limit, limit),
                tile::integers(10'007, type, 6, -limit, limit), {1, 1, 1});
    });
  }

  TEST_CASE("zeros, denormals, infinities, NaN and the largest numbers, in all pairs") {
    tile::for_each_step(kLadder, [](const Step& step, DType type) {
      constexpr std::int64_t kPeriod = 31;  // of the adversarial values
      const Values values = tile::adversarial(kPeriod, type);
      Values a, b;
      for (const double x : values) {
        for (const double y : values) {
          a.push_back(x);
          b.push_back(y);
        }
      }
      check_sum(step, type, a, b, {3, 3, 3});
    });
  }

  TEST_CASE("the output may be an input") {
    tile::for_each_step(kLadder, [](const Step& step, DType type) {
      constexpr std::int64_t kCount = 1023;
      const Values a = tile::normal(kCount, type, 7), b = tile::normal(kCount, type, 8);
      const tile::Layout layout = tile::vector_layout(type, kCount);
      for (const bool c_is_a : {true, false}) {
        DeviceBuffer in_out = DeviceBuffer::in_out("c", layout, c_is_a ? a : b);
        DeviceBuffer other = DeviceBuffer::input("other", layout, c_is_a ? b : a);
        const void* pointer_a = c_is_a ? in_out.raw() : other.raw();
        const void* pointer_b = c_is_a ? other.raw() : in_out.raw();
        const Status done =
            tile::run_step(step, {type, kCount}, {pointer_a, pointer_b, in_out.raw()});
        REQUIRE_MESSAGE(done.ok(), done.message);
        const Comparison sum = tile::compare("c", in_out.download(), reference(type, a, b));
        CHECK_MESSAGE(sum.ok(), sum.message);
        const Status intact = in_out.check();
        CHECK_MESSAGE(intact.ok(), intact.message);
      }
    });
  }

  TEST_CASE("bad arguments are refused by name and nothing is written") {
    tile::for_each_step(kLadder, [](const Step& step, DType type) {
      constexpr std::int64_t kCount = 100;
      const Values values = tile::normal(2 * kCount, type, 9);
      const tile::Layout layout = tile::vector_layout(type, 2 * kCount);
      DeviceBuffer a = DeviceBuffer::input("a", layout, values);
      DeviceBuffer b = DeviceBuffer::input("b", layout, values);
      // Its second half serves as a, so it has values.
      DeviceBuffer c = DeviceBuffer::in_out("c", layout, values);
      auto shifted = [](void* pointer, std::int64_t bytes) {
        return static_cast<void*>(static_cast<char*>(pointer) + bytes);
      };
      auto refuses = [&](const Problem& problem, const Buffers& buffers,
                         const std::string& argument) {
        CAPTURE(step.name);
        CAPTURE(argument);
        const Status status = tile::run_step(step, problem, buffers);
        CHECK(status.code == tile::Code::invalid_argument);
        CHECK_MESSAGE(status.message.rfind(argument + ": ", 0) == 0, status.message);
        const Status untouched = c.check_unchanged();
        CHECK_MESSAGE(untouched.ok(), untouched.message);
      };
      const Problem problem{type, kCount};
      refuses({type, -1}, {a.raw(), b.raw(), c.raw()}, "n");
      refuses({type, INT64_MAX}, {a.raw(), b.raw(), c.raw()}, "n");
      refuses(problem, {nullptr, b.raw(), c.raw()}, "a");
      refuses(problem, {a.raw(), nullptr, c.raw()}, "b");
      refuses(problem, {a.raw(), b.raw(), nullptr}, "c");
      refuses(problem, {shifted(a.raw(), 1), b.raw(), c.raw()}, "a");
      refuses(problem, {a.raw(), shifted(b.raw(), 1), c.raw()}, "b");
      refuses(problem, {a.raw(), b.raw(), shifted(c.raw(), 1)}, "c");
      const auto element = static_cast<std::int64_t>(tile::size_bytes(type));
      refuses(problem, {shifted(c.raw(), element), b.raw(), c.raw()}, "c");
      refuses(problem, {a.raw(), shifted(c.raw(), (kCount - 1) * element), c.raw()}, "c");
      refuses(problem, {a.raw(), b.raw(), shifted(a.raw(), element)}, "c");
      refuses(problem, {a.raw(), b.raw(), shifted(b.raw(), (kCount - 1) * element)}, "c");

      // The nearest calls that are right: no elements need no pointers, and c may lie at a's end.
      Status done = tile::run_step(step, {type, 0}, {nullptr, nullptr, nullptr});
      CHECK_MESSAGE(done.ok(), done.message);
      done = tile::run_step(step, problem, {shifted(c.raw(), kCount * element), b.raw(), c.raw()});
      CHECK_MESSAGE(done.ok(), done.message);
    });
  }
}

TEST_SUITE("launch") {
  TEST_CASE("the kernel runs in the stream it was given, and a launch that fails is reported") {
    // A stream that does not exist shows both.
    if (!tile::device().simulated) return tile::skip("a GPU's driver may crash on such a stream");
    tile::for_each_step(
        kLadder,
        [](const Step& step, DType type) {
          CAPTURE(step.name);
          const tile::Layout layout = tile::vector_layout(type, 100);
          const Values values = tile::normal(100, type, 10);
          DeviceBuffer a = DeviceBuffer::input("a", layout, values);
          DeviceBuffer c = DeviceBuffer::output("c", layout, Poison::unwritten_nan);
          int no_stream = 0;
          const Status status =
              run(kLadder, step.number, {type, 100}, {a.raw(), a.raw(), c.raw()}, &no_stream);
          CHECK(status.code == tile::Code::device_error);
          const bool named =
              status.message.find("cudaErrorInvalidResourceHandle") != std::string::npos;
          CHECK_MESSAGE(named, status.message);
          const Status untouched = c.check_unchanged();
          CHECK_MESSAGE(untouched.ok(), untouched.message);
        },
        tile::OwnKernel::need_not_run);
  }
}

TEST_SUITE("large") {
  TEST_CASE("more than 2^32 elements, and more than 2^31 vectors") {
    if (tile::device().simulated) return tile::skip("takes minutes on the CPU device");
    // One after the other in memory, the vectors are aligned differently if n is odd. Of the
    // longest ones c takes the place of a.
    struct Vectors {
      std::int64_t n;
      bool in_place;
    };
    for (const Vectors& vectors : {Vectors{(std::int64_t{1} << 32) + 259, false},
                                   Vectors{(std::int64_t{1} << 32) + 256, false},
                                   Vectors{(std::int64_t{1} << 33) + 256, true}}) {
      const std::int64_t n = vectors.n;
      const std::size_t bytes =
          (vectors.in_place ? 2 : 3) * static_cast<std::size_t>(n) * sizeof(float);
      std::size_t free_bytes = 0, total_bytes = 0;
      REQUIRE(cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess);
      if (free_bytes < bytes) {
        tile::skip("needs " + std::to_string(bytes >> 30) + " GiB of device memory");
        continue;
      }
      void* memory = nullptr;
      REQUIRE(cudaMalloc(&memory, bytes) == cudaSuccess);
      auto* a = static_cast<float*>(memory);
      float* b = a + n;
      float* c = vectors.in_place ? a : b + n;
      for (const auto& step : tile::selected_steps(kLadder)) {
        CAPTURE(step.name);
        CAPTURE(n);
        Status status = fill_large(a, b, c, n);
        REQUIRE_MESSAGE(status.ok(), status.message);
        status = tile::run_step(step, {DType::fp32, n}, {a, b, c});
        REQUIRE_MESSAGE(status.ok(), status.message);
        std::int64_t wrong = -1;
        status = count_wrong(c, n, &wrong);
        REQUIRE_MESSAGE(status.ok(), status.message);
        CHECK(wrong == 0);
      }
      CHECK(cudaFree(memory) == cudaSuccess);
    }
  }

  TEST_CASE("the check of large vectors finds a wrong element") {
    constexpr std::int64_t kCount = 10'000;
    DeviceBuffer a =
        DeviceBuffer::output("a", tile::vector_layout(DType::fp32, kCount), Poison::unwritten_nan);
    DeviceBuffer b = DeviceBuffer::output("b", a.layout(), Poison::unwritten_nan);
    DeviceBuffer c = DeviceBuffer::output("c", a.layout(), Poison::unwritten_nan);
    auto* c_values = static_cast<float*>(c.raw());
    std::int64_t wrong = -1;
    REQUIRE(fill_large(static_cast<float*>(a.raw()), static_cast<float*>(b.raw()), c_values, kCount)
                .ok());
    REQUIRE(count_wrong(c_values, kCount, &wrong).ok());
    CHECK(wrong == kCount);  // all NaN
    REQUIRE(run(kLadder, 0, {DType::fp32, kCount}, {a.raw(), b.raw(), c.raw()}, nullptr).ok());
    REQUIRE(cudaMemset(c_values + 4711, 0, sizeof(float)) == cudaSuccess);
    REQUIRE(count_wrong(c_values, kCount, &wrong).ok());
    CHECK(wrong == 1);
  }
}

TEST_SUITE("chapter") {
  TEST_CASE("the reference rounds once") {
    // 2^24 + 1 lies between two floats, and the tie goes to the even one.
    const Values a{0x1p24, 0x1p24, 1.0, -0.0}, b{1.0, 1.5, -1.0, -0.0};
    const tile::Expected sum = reference(DType::fp32, a, b);
    CHECK(sum.shape == std::vector<std::int64_t>{4});
    CHECK(sum.value == Values{0x1p24, 0x1p24 + 2, 0.0, -0.0});
    CHECK(std::signbit(sum.value[3]));
    CHECK(sum.bound == Values(4, 0.0));
  }

  TEST_CASE("every step has a name, an idea and all types") {
    for (const Ladder::Step& step : kSteps) {
      CAPTURE(step.name);
      CHECK(!step.name.empty());
      CHECK(!step.idea.empty());
      CHECK(tile::listed(step.types) == "fp32, fp16, bf16");
    }
  }

  TEST_CASE("a grid has at most 2^31 - 1 blocks") {
    constexpr std::int64_t kMost = 0x7fffffff;
    unsigned int blocks = 0;
    CHECK(tile::blocks_for("n", 256 * kMost, 256, &blocks).ok());
    CHECK(blocks == kMost);
    const Status status = tile::blocks_for("rows", 256 * kMost + 1, 256, &blocks);
    CHECK(status.code == tile::Code::unsupported);
    CHECK_MESSAGE(status.message.rfind("rows: ", 0) == 0, status.message);
  }

  TEST_CASE("an element type that no step has is refused by name") {
    const Status status = run(kLadder, 0, {DType::fp64, 1}, {nullptr, nullptr, nullptr}, nullptr);
    CHECK(status.code == tile::Code::unsupported);
    CHECK_MESSAGE(status.message.rfind("type: fp64", 0) == 0, status.message);
  }
}

}  // namespace vector_add
