// Chapter 02's tests: products too large for the host, and the kernels that check them.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "large.hpp"
#include "test_support.hpp"

namespace matmul {
namespace {

// ---- Products checked on the device ----

struct CudaFree {
  void operator()(std::byte* memory) const { static_cast<void>(cudaFree(memory)); }
};
using DeviceMemory = std::unique_ptr<std::byte, CudaFree>;

// A, B and C in one piece of memory, all bits one (a NaN) around them.
struct LargeMatrices {
  static constexpr std::int64_t kGap = 1 << 13;  // elements; a power of two keeps all aligned

  DeviceMemory memory;
  std::int64_t count;  // elements
  Matrix a, b, c;

  Buffers buffers() const { return {a.data, b.data, c.data}; }

  std::int64_t element() const { return static_cast<std::int64_t>(tile::size_bytes(c.type)); }
  std::byte* end() const { return memory.get() + count * element(); }
  // C, its padding, and the gaps before and after it.
  std::byte* around_c() const { return static_cast<std::byte*>(c.data) - kGap * element(); }
  std::int64_t count_around_c() const { return (end() - around_c()) / element(); }
};

Matrix matrix_of(const Layout& layout) {
  return {layout.dtype, nullptr, layout.rows, layout.cols, layout.ld};
}

std::int64_t in_gaps(const Matrix& matrix) {
  constexpr std::int64_t kGap = LargeMatrices::kGap;
  return (matrix.extent() + kGap - 1) / kGap * kGap + kGap;
}

LargeMatrices place(const Problem& p) {
  LargeMatrices x{{},
                  LargeMatrices::kGap,
                  matrix_of(layout_a(p)),
                  matrix_of(layout_b(p)),
                  matrix_of(layout_c(p))};
  for (const Matrix* matrix : {&x.a, &x.b, &x.c}) x.count += in_gaps(*matrix);
  void* memory = nullptr;
  const auto bytes = static_cast<std::size_t>(x.count * x.element());
  const Status allocated = tile::cuda_status(cudaMalloc(&memory, bytes), "cudaMalloc");
  REQUIRE_MESSAGE(allocated.ok(), allocated.message);
  x.memory.reset(static_cast<std::byte*>(memory));
  REQUIRE(cudaMemset(memory, 0xff, bytes) == cudaSuccess);
  std::byte* next = x.memory.get() + LargeMatrices::kGap * x.element();
  for (Matrix* matrix : {&x.a, &x.b, &x.c}) {
    matrix->data = next;
    next += in_gaps(*matrix) * x.element();
  }
  Status filled = fill_integers(x.a, 1);
  REQUIRE_MESSAGE(filled.ok(), filled.message);
  filled = fill_integers(x.b, 2);
  REQUIRE_MESSAGE(filled.ok(), filled.message);
  return x;
}

// The types of the selected steps whose C is of the same type, as it is of all matrices here. The
// kernel for e4m3 computes no address that that of tma_store does not.
std::vector<DType> selected_types() {
  std::vector<DType> types;
  for (const DType type : tile::kDTypes) {
    if (type == DType::e4m3) continue;
    const auto steps = tile::selected_steps(kLadder);
    if (std::ranges::any_of(steps, [&](const Step& step) { return step.types.contains(type); })) {
      types.push_back(type);
    }
  }
  return types;
}

// The first step with this type that this device can run.
std::optional<Step> step_for(DType type) {
  for (const Step& step : tile::selected_steps(kLadder)) {
    if (tile::check_requirements(step.types, step.needs, type).ok()) return step;
  }
  return {};
}

// A step on integers, all of C checked, and what lies around it.
void check_large(const Step& step, const Problem& p, const LargeMatrices& x) {
  const std::string type(tile::name(p.type));
  CAPTURE(type);
  CAPTURE(step.name);
  const std::string problem = describe(p, {});
  CAPTURE(problem);
  REQUIRE(cudaMemset(x.around_c(), 0xff,
                     static_cast<std::size_t>(x.count_around_c() * x.element())) == cudaSuccess);
  Buffers buffers = x.buffers();
  DeviceMemory workspace;
  constexpr std::int64_t kMostWorkspace = std::int64_t{1} << 30;
  if (const std::int64_t bytes = most_workspace(step, p); bytes > 0 && bytes <= kMostWorkspace) {
    REQUIRE(cudaMalloc(&buffers.workspace, static_cast<std::size_t>(bytes)) == cudaSuccess);
    workspace.reset(static_cast<std::byte*>(buffers.workspace));
    buffers.workspace_bytes = bytes;
  }
  Status status = tile::run_step(step, p, buffers);
  REQUIRE_MESSAGE(status.ok(), status.message);
  status = check_product(p, buffers);
  CHECK_MESSAGE(status.ok(), status.message);
  status = check_surroundings(x.around_c(), x.count_around_c(), x.c);
  CHECK_MESSAGE(status.ok(), status.message);
}

void check_large(const Step& step, const Problem& p) { check_large(step, p, place(p)); }

// Every selected step.
void check_large(const Problem& p) {
  const LargeMatrices x = place(p);
  for (const Step& step : tile::selected_steps(kLadder)) {
    if (tile::check_requirements(step.types, step.needs, p.type).ok()) check_large(step, p, x);
  }
}

}  // namespace

TEST_SUITE("large") {
  TEST_CASE("the benchmark's sizes, and one more or less of each extent") {
    if (tile::device().simulated) return tile::skip("takes hours on the CPU device");
    for (const DType type : selected_types()) {
      for (const std::int64_t n : {2048, 4096, 8192}) {
        for (const Shape change :
             {Shape{0, 0, 0}, Shape{1, 1, 1}, Shape{-1, -1, -1}, Shape{1, 0, 0}, Shape{-1, 0, 0},
              Shape{0, 1, 0}, Shape{0, -1, 0}, Shape{0, 0, 1}, Shape{0, 0, -1}}) {
          check_large(plain(type, {n + change.m, n + change.n, n + change.k}));
          if (n == 8192 && change.m < 0) break;  // a single extent shows no more there
        }
      }
      for (const Transposes transposes : kTransposes) {
        // The last ones are whole but for half of the largest tile's rows, columns or part of k.
        for (const Shape shape :
             {Shape{2048, 2048, 2048}, Shape{2047, 2049, 2051}, Shape{2048 - 64, 2048, 2048},
              Shape{2048, 2048 - 128, 2048}, Shape{2048, 2048, 2048 - 16}}) {
          check_large(plain(type, shape, transposes));
        }
      }
    }
  }

  TEST_CASE("elements that lie more than 2^32 elements after the first") {
    if (tile::device().simulated) return tile::skip("needs more memory than the CPU device has");
    std::size_t free_bytes = 0, total_bytes = 0;
    REQUIRE(cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess);
    if (free_bytes < std::size_t{20} << 30) return tile::skip("needs 20 GiB of device memory");
    // 133 rows, the last at about 2^32 + 2^27: inside a tile and at its corner rows begin beyond
    // 2^31.
    constexpr std::int64_t kLd = (std::int64_t{1} << 25) + 1;
    for (const DType type : selected_types()) {
      for (const Transposes transposes : kTransposes) {
        Problem p = plain(type, {133, 133, 133}, transposes);
        p.lda = kLd;
        check_large(p);
        p = plain(type, {133, 133, 133}, transposes);
        p.ldb = kLd;
        check_large(p);
      }
      Problem p = plain(type, {133, 37, 9});
      p.ldc = kLd;
      check_large(p);
      check_large(plain(type, {65'539, 65'541, 3}));
    }
  }

  TEST_CASE("vectors that lie more than 2^31 vectors after the first") {
    if (tile::device().simulated) return tile::skip("needs more memory than the CPU device has");
    std::size_t free_bytes = 0, total_bytes = 0;
    REQUIRE(cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess);
    if (free_bytes < std::size_t{34} << 30) return tile::skip("needs 34 GiB of device memory");
    // 256 rows, so that all tiles are whole, the last 32 GiB after the first: 2^31 vectors.
    constexpr std::int64_t kRowBytes = (std::int64_t{1} << 27) + (std::int64_t{1} << 20);
    for (const DType type : selected_types()) {
      const std::int64_t ld = kRowBytes / static_cast<std::int64_t>(tile::size_bytes(type));
      for (const Transposes transposes : kTransposes) {
        for (const auto member : {&Problem::lda, &Problem::ldb, &Problem::ldc}) {
          Problem p = plain(type, {256, 256, 256}, transposes);
          p.*member = ld;
          check_large(p);
        }
      }
    }
  }
}

TEST_SUITE("chapter") {
  TEST_CASE("the check of large products takes what is right") {
    for (const DType type : selected_types()) {
      const std::optional<Step> step = step_for(type);
      if (!step) continue;
      for (const Transposes transposes : kTransposes) {
        check_large(*step, plain(type, {131, 67, 45}, transposes));
        check_large(*step, padded(plain(type, {7, 67, 45}, transposes), {1, 2, 3}));
      }
    }
  }

  TEST_CASE("the check of large products finds what is wrong") {
    for (const DType type : selected_types()) {
      const std::optional<Step> step = step_for(type);
      if (!step) continue;
      const std::string type_name(tile::name(type));
      CAPTURE(type_name);
      Problem p = plain(type, {131, 67, 45});
      p.lda += 4, p.ldb += 3, p.ldc += 4;
      const LargeMatrices x = place(p);
      auto says = [&](const std::string& text) {
        const Status status = check_product(p, x.buffers());
        CHECK(status.code == tile::Code::device_error);
        CHECK_MESSAGE(status.message.find(text) != std::string::npos, status.message);
      };
      auto at = [&](std::int64_t row, std::int64_t col) {
        return static_cast<std::byte*>(x.c.data) + (row * x.c.ld + col) * x.element();
      };
      auto get = [&](const std::byte* from) {
        std::vector<std::byte> bytes(tile::size_bytes(type));
        REQUIRE(cudaMemcpy(bytes.data(), from, bytes.size(), cudaMemcpyDeviceToHost) ==
                cudaSuccess);
        return tile::to_double(bytes.data(), type, 1).front();
      };
      auto set = [&](std::byte* to, double value) {
        const std::vector<std::byte> bytes = tile::from_double(Values{value}, type);
        REQUIRE(cudaMemcpy(to, bytes.data(), bytes.size(), cudaMemcpyHostToDevice) == cudaSuccess);
      };

      says("131 of 131 rows are wrong; in the first, row 0, 67 of 67 elements");  // all NaN
      REQUIRE(tile::run_step(*step, p, x.buffers()).ok());
      REQUIRE(check_product(p, x.buffers()).ok());

      // Two that differ, neither of them 0, in one row; and a 0.
      std::int64_t row = 17, col = 3, other_col = 66, zero = 0;
      while (get(at(row, col)) == 0) ++col;
      while (get(at(row, other_col)) == 0 || get(at(row, other_col)) == get(at(row, col))) {
        --other_col;
      }
      REQUIRE(col < other_col);
      while (zero < 131 * 67 && get(at(zero / 67, zero % 67)) != 0) ++zero;
      REQUIRE(zero < 131 * 67);
      const std::string in_row = "1 of 131 rows are wrong; in the first, row 17, ";
      const std::string in_column = " of 67 elements, the first in column " + std::to_string(col);

      const double old = get(at(row, col)), other = get(at(row, other_col));
      for (const double wrong : {old + 1, old + 0.25, -old - 1, 0.0, kNaN, kInfinity, 1e30}) {
        CAPTURE(wrong);
        set(at(row, col), wrong);
        says(in_row + "1" + in_column);
      }
      set(at(row, col), old);
      // A NaN in place of a zero: neither adds anything to a sum that leaves NaN out.
      set(at(zero / 67, zero % 67), kNaN);
      says("1 of 131 rows are wrong");
      set(at(zero / 67, zero % 67), 0);
      set(at(row, col), other);  // two exchanged
      set(at(row, other_col), old);
      says(in_row + "2" + in_column);
      set(at(row, col), old);
      set(at(row, other_col), other);
      set(at(130, 66), get(at(130, 66)) + 1);
      says(
          "1 of 131 rows are wrong; in the first, row 130, 1 of 67 elements, the first in column "
          "66");
      set(at(130, 66), get(at(130, 66)) - 1);
      REQUIRE(check_product(p, x.buffers()).ok());

      auto surroundings = [&] { return check_surroundings(x.around_c(), x.count_around_c(), x.c); };
      REQUIRE(surroundings().ok());
      for (std::byte* outside :
           {at(0, -1), at(5, 67), at(130, 67), x.around_c(), x.end() - x.element()}) {
        const double poison = get(outside);
        set(outside, 1);
        const Status status = surroundings();
        CHECK(status.code == tile::Code::device_error);
        CHECK_MESSAGE(status.message.find("c: 1 elements outside") == 0, status.message);
        // All bits one, which is a NaN, and no conversion may change them.
        REQUIRE(std::isnan(poison));
        REQUIRE(cudaMemset(outside, 0xff, tile::size_bytes(type)) == cudaSuccess);
      }
      REQUIRE(surroundings().ok());
    }
  }
}

}  // namespace matmul
