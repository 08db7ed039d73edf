// Chapter 03's tests: matrices too large for the host.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>

#include "large.hpp"
#include "test_support.hpp"

namespace softmax {
namespace {

struct CudaFree {
  void operator()(std::byte* memory) const { static_cast<void>(cudaFree(memory)); }
};

// Room for three matrices of so many bytes, or null with a skip.
std::unique_ptr<std::byte, CudaFree> room_for(std::size_t bytes) {
  std::size_t free_bytes = 0, total_bytes = 0;
  REQUIRE(cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess);
  if (free_bytes < 3 * bytes + (std::size_t{1} << 30)) {
    tile::skip("needs " + std::to_string(3 * bytes >> 30) + " GiB of device memory");
    return nullptr;
  }
  void* memory = nullptr;
  REQUIRE(cudaMalloc(&memory, 3 * bytes) == cudaSuccess);
  return std::unique_ptr<std::byte, CudaFree>(static_cast<std::byte*>(memory));
}

Status fill(const ForwardProblem& p, void* first, void*) { return fill_exact(p, first); }
Status fill(const BackwardProblem& p, void* first, void* dy) { return fill_exact(p, first, dy); }

// Runs all selected steps of this type on exact inputs, and checks every element of the outputs.
template <class Ladder>
void check_ladder(const Ladder& ladder, DType type, std::int64_t rows, std::int64_t cols,
                  std::int64_t ld) {
  // Each matrix begins at a multiple of 256.
  const std::size_t bytes =
      (static_cast<std::size_t>((rows - 1) * ld + cols) * tile::size_bytes(type) + 255) / 256 * 256;
  const auto memory = room_for(bytes);
  if (!memory) return;
  std::byte* const out = memory.get();
  const typename Ladder::Problem tight{.type = type, .rows = rows, .cols = cols};
  const auto p = padded(tight, {ld - cols, ld - cols, ld - cols});
  const std::string problem = describe(p);
  CAPTURE(problem);
  Status status = fill(p, out + bytes, out + 2 * bytes);
  REQUIRE_MESSAGE(status.ok(), status.message);
  for (const auto& step : tile::selected_steps(ladder)) {
    if (!takes(step, p)) continue;
    CAPTURE(step.name);
    REQUIRE(cudaMemset(out, 0xff, bytes) == cudaSuccess);
    auto buffers = buffers_of(p, out + bytes, out + 2 * bytes, out);
    const DeviceBuffer workspace = give_workspace(step, p, &buffers);
    status = tile::run_step(step, p, buffers);
    REQUIRE_MESSAGE(status.ok(), status.message);
    std::int64_t wrong = -1;
    status = count_wrong(p, out, &wrong);
    REQUIRE_MESSAGE(status.ok(), status.message);
    CHECK(wrong == 0);
  }
}

void check_large(DType type, std::int64_t rows, std::int64_t cols, std::int64_t ld) {
  check_ladder(kForwardLadder, type, rows, cols, ld);
  check_ladder(kBackwardLadder, type, rows, cols, ld);
}

constexpr DType kAll[] = {DType::fp32, DType::fp16, DType::bf16};

}  // namespace

TEST_SUITE("large") {
  TEST_CASE("more than 2^31 elements") {
    if (tile::device().simulated) return tile::skip("takes minutes on the CPU device");
    for (const DType type : kAll) {
      // Rows for part of a warp, a block and several blocks; with vectors and without.
      check_large(type, 4'200'007, 515, 515);
      check_large(type, 2'100'007, 1032, 1032);
      check_large(type, 65'539, 32'776, 32'776);
      check_large(type, 30'011, 71'681, 71'681);
      check_large(type, 16'411, 131'072, 131'072);
      check_large(type, 2'053, 1'050'001, 1'050'001);  // for no cluster
    }
  }

  TEST_CASE("rows that begin more than 2^32 elements after the first") {
    if (tile::device().simulated) return tile::skip("needs more memory than the CPU device has");
    for (const DType type : kAll) {
      for (const std::int64_t cols : {40, 1032, 40'000}) {
        check_large(type, 3, cols, (std::int64_t{1} << 31) + 8);
        check_large(type, 3, cols + 1, (std::int64_t{1} << 31) + 9);
        // The last row begins 32 GiB after the first: 2^31 vectors.
        const std::int64_t vector = vector_length(type);
        check_large(type, 3, cols, (std::int64_t{1} << 30) * vector + vector);
      }
    }
  }
}

TEST_SUITE("chapter") {
  TEST_CASE("the check of large matrices takes what is right") {
    for (const DType type : kAll) check_large(type, 9, 1031, 1040);
  }

  TEST_CASE("the check of large matrices finds a wrong element") {
    auto check = [](const auto& ladder, DType type) {
      using Problem = typename std::remove_cvref_t<decltype(ladder)>::Problem;
      const Problem p{.type = type, .rows = 37, .cols = 45};
      const std::string problem = describe(p);
      CAPTURE(problem);
      const Layout layout = layout_of(p, p.cols, 0);
      DeviceBuffer first = DeviceBuffer::output("first", layout, Poison::unwritten_nan);
      DeviceBuffer dy = DeviceBuffer::output("dy", layout, Poison::unwritten_nan);
      // Written, for the check build: no poison may be read.
      DeviceBuffer out = DeviceBuffer::in_out("out", layout, Values(37 * 45, kNaN));
      auto wrong = [&] {
        std::int64_t count = -1;
        REQUIRE(count_wrong(p, out.raw(), &count).ok());
        return count;
      };
      REQUIRE(fill(p, first.raw(), dy.raw()).ok());
      CHECK(wrong() == 37 * 45);  // all NaN
      const auto buffers = buffers_of(p, first.raw(), dy.raw(), out.raw());
      REQUIRE(run(ladder, 0, p, buffers, nullptr).ok());
      CHECK(wrong() == 0);
      // The inputs must be of all kinds, or little would be checked.
      const Values x = first.download(), y = out.download();
      const auto zeros = std::ranges::count(x, 0.0);
      CHECK(zeros > 400);
      CHECK(zeros < 37 * 45 - 300);
      if (!is_forward(p)) CHECK(std::ranges::count(dy.download(), -1.0) > 400);

      // An element as it is in the next row, and one of the other kind.
      const auto element = static_cast<std::int64_t>(tile::size_bytes(type));
      auto put = [&](std::int64_t at, double value) {
        const std::vector<std::byte> bytes = tile::from_double(Values{value}, type);
        REQUIRE(cudaMemcpy(static_cast<char*>(out.raw()) + at * element, bytes.data(), bytes.size(),
                           cudaMemcpyHostToDevice) == cudaSuccess);
      };
      for (const std::int64_t at : {std::int64_t{0}, std::int64_t{44}, std::int64_t{37 * 45 - 1}}) {
        const double right = y[static_cast<std::size_t>(at)];
        for (const double bad : {right + 0.125, kNaN}) {
          put(at, bad);
          CHECK(wrong() == 1);
        }
        put(at, right);
      }
      CHECK(wrong() == 0);
    };
    for (const DType type : kAll) {
      check(kForwardLadder, type);
      check(kBackwardLadder, type);
    }
  }
}

}  // namespace softmax
