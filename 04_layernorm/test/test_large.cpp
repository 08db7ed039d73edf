// Chapter 04's tests: matrices too large for the host, and the kernels that check them.
#include <cuda_runtime_api.h>

#include <memory>
#include <span>

#include "large.hpp"
#include "test_support.hpp"

namespace layernorm {
namespace {

struct CudaFree {
  void operator()(void* memory) const { static_cast<void>(cudaFree(memory)); }
};

// Device memory for a matrix, all bits one.
class Large {
 public:
  Large(DType type, std::int64_t rows, std::int64_t cols, std::int64_t ld)
      : matrix_{type, nullptr, rows, cols, ld} {
    REQUIRE(cudaMalloc(&matrix_.data, bytes()) == cudaSuccess);
    memory_.reset(matrix_.data);
    poison();
  }

  void* raw() const { return matrix_.data; }
  float* floats() const { return static_cast<float*>(matrix_.data); }
  const Matrix& matrix() const { return matrix_; }

  void poison() { REQUIRE(cudaMemset(matrix_.data, 0xff, bytes()) == cudaSuccess); }
  void repeat(const Values& pattern) {
    const Status done = repeat_rows(matrix_, pattern);
    REQUIRE_MESSAGE(done.ok(), done.message);
  }
  void check(const char* name, const Expected& expected) const {
    CAPTURE(name);
    const Status right = check_repeated(matrix_, expected);
    CHECK_MESSAGE(right.ok(), right.message);
  }

 private:
  std::size_t bytes() const { return static_cast<std::size_t>(matrix_.bytes()); }

  Matrix matrix_;
  std::unique_ptr<void, CudaFree> memory_;
};

struct Shape {
  std::int64_t rows, cols, ld;
};

template <class Problem>
bool has_room(const Problem& p) {
  const std::int64_t matrices = kIsForward<Problem> ? 2 : 3;
  const auto needed = static_cast<std::size_t>(
      matrices * Matrix{p.type, nullptr, p.rows, p.cols, p.ldx}.bytes() + (std::int64_t{2} << 30));
  std::size_t free_bytes = 0, total_bytes = 0;
  REQUIRE(cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess);
  if (free_bytes >= needed) return true;
  tile::skip("needs " + std::to_string(needed >> 30) + " GiB of device memory");
  return false;
}

constexpr std::int64_t kPeriod = 7;

// The selected steps whose own kernels run this here.
template <class Ladder>
std::vector<TestedStep<Ladder>> steps_for(const Ladder& ladder, const typename Ladder::Problem& p) {
  std::vector<TestedStep<Ladder>> steps;
  for (const auto& step : tile::selected_steps(ladder)) {
    if (takes(step, p)) steps.push_back(step);
  }
  return steps;
}

void check(const ForwardProblem& p) {
  ForwardProblem small = p;
  small.rows = kPeriod;
  const Inputs in = normal(small);
  const ForwardReference expected = reference(small, in.x, in.gamma, in.beta);
  const bool layer = p.norm == Norm::layer;
  Large x(p.type, p.rows, p.cols, p.ldx), y(p.type, p.rows, p.cols, p.ldy);
  Large mean(DType::fp32, p.rows, 1, 1), rstd(DType::fp32, p.rows, 1, 1);
  x.repeat(in.x);
  DeviceBuffer gamma = DeviceBuffer::input("gamma", tile::vector_layout(p.type, p.cols), in.gamma);
  DeviceBuffer beta =
      DeviceBuffer::input("beta", tile::vector_layout(p.type, std::ssize(in.beta)), in.beta);
  ForwardBuffers buffers;
  buffers.x = x.raw();
  buffers.gamma = gamma.raw();
  if (layer) buffers.beta = beta.raw();
  buffers.y = y.raw();
  if (layer) buffers.mean = mean.floats();
  buffers.rstd = rstd.floats();
  buffers.workspace_bytes = split_bytes(p);
  Large workspace(DType::fp32, 1, split_bytes(p) / 4, split_bytes(p) / 4);
  buffers.workspace = workspace.raw();
  for (const auto& step : steps_for(kForwardLadder, p)) {
    CAPTURE(step.name);
    for (Large* output : {&y, &mean, &rstd, &workspace}) output->poison();
    const Status done = tile::run_step(step, p, buffers);
    REQUIRE_MESSAGE(done.ok(), done.message);
    y.check("y", expected.y);
    if (layer) mean.check("mean", expected.mean);
    rstd.check("rstd", expected.rstd);
  }
}

void check(const BackwardProblem& p) {
  BackwardProblem small = p;
  small.rows = kPeriod;
  // x - mean is an integer from -2 to 2, rstd 1 or 1/2, and dy 0 or 2^-8 of either sign. So terms
  // of the sums are multiples of 2^-9, and those of up to 2^22 rows add up exactly, in any order;
  // and fp16 holds the sums.
  const bool layer = p.norm == Norm::layer;
  Inputs in{tile::integers(kPeriod * p.cols, p.type, 1, -1, 1),
            tile::uniform(p.cols, p.type, 2, -2, 2)};
  in.mean = tile::integers(layer ? kPeriod : 0, DType::fp32, 3, -1, 1);
  in.dy = tile::integers(kPeriod * p.cols, p.type, 4, -1, 1);
  for (double& dy : in.dy) dy *= 0x1p-8;
  for (std::int64_t row = 0; row < kPeriod; ++row) in.rstd.push_back(row % 2 ? 0.5 : 1);
  const BackwardReference expected = reference(small, in.x, in.gamma, in.mean, in.rstd, in.dy);
  auto sums = [&](auto term) {
    Expected sum{{p.cols}, Values(static_cast<std::size_t>(p.cols), 0.0), {}};
    sum.bound = sum.value;
    for (std::int64_t row = 0; row < kPeriod; ++row) {
      const auto times = static_cast<double>((p.rows - row + kPeriod - 1) / kPeriod);
      for (std::int64_t col = 0; col < p.cols; ++col) {
        sum.value[static_cast<std::size_t>(col)] +=
            times *
            term(static_cast<std::size_t>(row), static_cast<std::size_t>(row * p.cols + col));
      }
    }
    sum.value = tile::rounded(sum.value, p.type);
    return sum;
  };
  const Expected dgamma = sums([&](std::size_t row, std::size_t i) {
    return in.dy[i] * (in.x[i] - (layer ? in.mean[row] : 0)) * in.rstd[row];
  });
  const Expected dbeta = sums([&](std::size_t, std::size_t i) { return in.dy[i]; });

  Large x(p.type, p.rows, p.cols, p.ldx), dy(p.type, p.rows, p.cols, p.lddy),
      dx(p.type, p.rows, p.cols, p.lddx);
  Large mean(DType::fp32, p.rows, 1, 1), rstd(DType::fp32, p.rows, 1, 1);
  x.repeat(in.x);
  dy.repeat(in.dy);
  if (layer) mean.repeat(in.mean);
  rstd.repeat(in.rstd);
  const Layout row = tile::vector_layout(p.type, p.cols);
  DeviceBuffer gamma = DeviceBuffer::input("gamma", row, in.gamma);
  // 32 MiB, which a DeviceBuffer would compare on the host after every step.
  Large workspace(DType::fp32, 1, workspace_bytes(p) / 4, workspace_bytes(p) / 4);
  for (const auto& step : steps_for(kBackwardLadder, p)) {
    CAPTURE(step.name);
    dx.poison();
    DeviceBuffer device_dgamma = DeviceBuffer::output("dgamma", row, Poison::unwritten_nan);
    DeviceBuffer device_dbeta = DeviceBuffer::output("dbeta", row, Poison::unwritten_nan);
    workspace.poison();
    BackwardBuffers buffers;
    buffers.x = x.raw();
    buffers.gamma = gamma.raw();
    if (layer) buffers.mean = mean.floats();
    buffers.rstd = rstd.floats();
    buffers.dy = dy.raw();
    buffers.dx = dx.raw();
    buffers.dgamma = device_dgamma.raw();
    if (layer) buffers.dbeta = device_dbeta.raw();
    buffers.workspace = workspace.raw();
    const Status done = tile::run_step(step, p, buffers);
    REQUIRE_MESSAGE(done.ok(), done.message);
    dx.check("dx", expected.dx);
    check_values("dgamma", device_dgamma.download(), dgamma);
    if (layer) check_values("dbeta", device_dbeta.download(), dbeta);
    for (const DeviceBuffer* buffer : {&device_dgamma, &device_dbeta}) {
      const Status intact = buffer->check();
      CHECK_MESSAGE(intact.ok(), intact.message);
    }
  }
}

template <class Problem>
void check_large(DType type, Shape shape, Norm norm) {
  Problem p{type, shape.rows, shape.cols, norm};
  p.ldx = shape.ld;
  if constexpr (kIsForward<Problem>) {
    p.ldy = shape.ld;
  } else {
    p.lddy = p.lddx = shape.ld;
  }
  const std::string type_name(tile::name(type));
  CAPTURE(type_name);
  const std::string problem = describe(p, {}, {});
  CAPTURE(problem);
  if (has_room(p)) check(p);
}

void check_large(Shape shape) {
  for (const DType type : kTypesOfSteps) {
    for (const Norm norm : kNorms) {
      check_large<ForwardProblem>(type, shape, norm);
      check_large<BackwardProblem>(type, shape, norm);
    }
  }
}

}  // namespace

TEST_SUITE("large") {
  TEST_CASE("the benchmark's sizes, and one more or less of each extent") {
    if (tile::device().simulated) return tile::skip("takes hours on the CPU device");
    std::size_t turn = 0;
    for (const Shape shape : {Shape{32'768, 1024, 0}, Shape{32'768, 4096, 0},
                              Shape{16'384, 8192, 0}, Shape{8192, 16'384, 0}}) {
      for (const std::int64_t rows : {-1, 0, 1}) {
        for (const std::int64_t cols : {-1, 0, 1}) {
          if (rows != 0 && cols != 0) continue;
          const Shape changed{shape.rows + rows, shape.cols + cols, shape.cols + cols};
          for (const DType type : kTypesOfSteps) {  // the norms take turns
            check_large<ForwardProblem>(type, changed, kNorms[turn % 2]);
            check_large<BackwardProblem>(type, changed, kNorms[++turn % 2]);
          }
        }
      }
    }
  }

  TEST_CASE("more than 2^31 elements") {
    if (tile::device().simulated) return tile::skip("takes minutes on the CPU device");
    check_large({4'100'003, 256, 528});
    check_large({4'100'003, 525, 527});
    check_large({2'100'007, 1032, 1032});
    check_large({66'001, 32'776, 32'776});
    check_large({30'011, 71'681, 71'690});
  }

  TEST_CASE("rows that begin more than 2^32 elements after the first") {
    if (tile::device().simulated) return tile::skip("needs more memory than the CPU device has");
    for (const std::int64_t cols : {72, 1032, 40'000}) {
      check_large({3, cols, (std::int64_t{1} << 31) + 8});
      check_large({3, cols + 1, (std::int64_t{1} << 31) + 9});
    }
  }

  TEST_CASE("rows that begin more than 2^31 vectors after the first") {
    if (tile::device().simulated) return tile::skip("needs more memory than the CPU device has");
    for (const DType type : kTypesOfSteps) {
      const auto vector = static_cast<std::int64_t>(16 / tile::size_bytes(type));
      for (const std::int64_t cols : {72, 1032, 40'000}) {
        const Shape shape{3, cols, (std::int64_t{1} << 30) * vector + vector};
        check_large<ForwardProblem>(type, shape, Norm::layer);
        check_large<BackwardProblem>(type, shape, Norm::layer);
      }
    }
  }
}

TEST_SUITE("chapter") {
  TEST_CASE("the check of large matrices takes what is right") {
    check_large({60, 45, 52});
    check_large({9, 1032, 1032});
    check_large({3, 7, 9});
  }

  TEST_CASE("the check of large matrices finds what is wrong") {
    for (const DType type : kTypesOfSteps) {
      Large m(type, 20, 5, 8);
      const Expected expected{
          {kPeriod, 5}, tile::integers(kPeriod * 5, type, 1, -8, 8), Values(kPeriod * 5, 0.25)};
      m.repeat(expected.value);
      auto find = [&](const std::string& text) {
        const Status status = check_repeated(m.matrix(), expected);
        CHECK(status.code == tile::Code::device_error);
        CHECK_MESSAGE(status.message.find(text) != std::string::npos, status.message);
      };
      auto put = [&](std::int64_t row, std::int64_t col, double value) {
        const std::vector<std::byte> bytes = tile::from_double(Values{value}, type);
        const auto size = static_cast<std::int64_t>(bytes.size());
        REQUIRE(cudaMemcpy(static_cast<char*>(m.raw()) + (row * 8 + col) * size, bytes.data(),
                           bytes.size(), cudaMemcpyHostToDevice) == cudaSuccess);
      };
      auto right = [&](std::int64_t row, std::int64_t col) {
        return expected.value[static_cast<std::size_t>(row % kPeriod * 5 + col)];
      };
      CHECK(check_repeated(m.matrix(), expected).ok());
      for (const std::int64_t row : {0, 8, 19}) {
        for (const std::int64_t col : {0, 4}) {
          const std::string where = "1 elements are wrong, the first in row " +
                                    std::to_string(row) + ", column " + std::to_string(col);
          for (const double wrong :
               {right(row, col) + 0.5, right(row, col) - 0.5, kNaN, kInfinity}) {
            put(row, col, wrong);
            find(where);
          }
          put(row, col, right(row, col) + 0.25);
          CHECK(check_repeated(m.matrix(), expected).ok());
          put(row, col, right(row, col));
        }
      }
      put(3, 5, 1.0);  // between two rows
      put(18, 7, 1.0);
      find("2 elements are wrong, the first in row 3, column 5");
      m.poison();
      find("100 elements are wrong, the first in row 0, column 0");
    }
  }
}

}  // namespace layernorm
