// Chapter 03 for ./tour and the benchmark.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>

#include "harness/chapter.hpp"
#include "tile/host/cuda_check.hpp"
#include "tile/host/device.hpp"
#include "harness/sample.hpp"
#include "tile/host/text.hpp"
#include "inputs.hpp"
#include "softmax.hpp"

namespace softmax {
namespace {

using Values = std::vector<double>;

void require(const tile::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message);
}

/// A matrix that never is on the host as a whole: with 2^31 elements that would take minutes.
class DeviceMatrix {
 public:
  DeviceMatrix(const char* name, tile::DType type, std::int64_t rows, std::int64_t cols)
      : rows_(rows), cols_(cols), type_(type) {
    void* memory = nullptr;
    require(tile::cuda_status(cudaMalloc(&memory, bytes()), "cudaMalloc"));
    memory_.reset(static_cast<std::byte*>(memory));
    if (bytes() > 0) {
      tile::name_array({name, memory, tile::size_bytes(type), rows, cols, cols, false});
    }
    poison();
  }

  void* raw() const { return memory_.get(); }

  void fill(std::uint64_t seed, double mean, double deviation) {
    if (bytes() == 0) return;
    require(fill_random({type_, raw(), rows_, cols_, cols_}, seed, mean, deviation));
  }

  /// Makes all bits one, which is NaN in every type.
  void poison() { require(tile::cuda_status(cudaMemset(raw(), 0xff, bytes()), "cudaMemset")); }

  Values rows(const std::vector<std::int64_t>& numbers) const {
    Values values;
    require(tile::download_rows(raw(), type_, cols_, numbers, &values));
    return values;
  }

 private:
  struct CudaFree {
    void operator()(std::byte* memory) const { static_cast<void>(cudaFree(memory)); }
  };

  std::size_t bytes() const {
    return static_cast<std::size_t>(rows_ * cols_) * tile::size_bytes(type_);
  }

  std::int64_t rows_, cols_;
  tile::DType type_;
  std::unique_ptr<std::byte, CudaFree> memory_;
};

// So many elements are checked in a fraction of a second. Of more, some rows are.
constexpr std::int64_t kElementsToCheckAll = 1 << 20;

class Softmax : public tile::Workload {
 public:
  explicit Softmax(const Problem& problem)
      : problem_(problem),
        rows_(problem.rows * problem.cols > kElementsToCheckAll ? tile::sample_rows(problem.rows)
                                                                : tile::all_rows(problem.rows)),
        first_(forward() ? "x" : "y", problem.type, problem.rows, problem.cols),
        dy_("dy", problem.type, forward() ? 0 : problem.rows, problem.cols),
        output_(forward() ? "y" : "dx", problem.type, problem.rows, problem.cols) {
    if (forward()) {
      first_.fill(1, 0, 1);
    } else {
      // Like probabilities: positive, and together about 1.
      const double mean = 1 / static_cast<double>(std::max<std::int64_t>(1, problem.cols));
      first_.fill(1, mean, mean / 4);
      dy_.fill(2, 0, 1);
    }
    require(tile::synchronize_status(nullptr));
    Problem checked = problem;
    checked.rows = std::ssize(rows_);
    expected_ = reference(checked, first_.rows(rows_), forward() ? Values{} : dy_.rows(rows_));
  }

  std::string name() const override {
    return std::string(tile::name(problem_.type))
        .append(" rows")
        .append(std::to_string(problem_.rows))
        .append(" cols")
        .append(std::to_string(problem_.cols));
  }
  std::string_view direction() const override { return tile::name(problem_.direction); }
  double bytes() const override {
    return (forward() ? 2.0 : 3.0) * static_cast<double>(problem_.rows) *
           static_cast<double>(problem_.cols) *
           static_cast<double>(tile::size_bytes(problem_.type));
  }
  tile::Status launch(std::size_t step, void* stream) override {
    const Buffers buffers = forward()
                                ? Buffers{.x = first_.raw(), .y = output_.raw()}
                                : Buffers{.y = first_.raw(), .dy = dy_.raw(), .dx = output_.raw()};
    return kSteps[step].launch(problem_, buffers, stream);
  }
  tile::Comparison check() override {
    tile::Comparison result;
    const tile::Status status = tile::synchronize_status(nullptr);
    if (!status.ok()) {
      result.message = status.message;
      return result;
    }
    const Values got = output_.rows(rows_);
    output_.poison();
    const char* name = forward() ? "y" : "dx";
    if (checks_all()) return tile::compare(name, got, expected_);
    return tile::compare_rows(name, rows_, got, expected_);
  }
  std::string checked_part() const override {
    if (checks_all()) return {};
    return tile::grouped(std::ssize(rows_)) + " of " + tile::counted(problem_.rows, "row");
  }

 private:
  bool forward() const { return problem_.direction == tile::Direction::forward; }
  bool checks_all() const { return std::ssize(rows_) == problem_.rows; }

  Problem problem_;
  std::vector<std::int64_t> rows_;    // that check() compares
  DeviceMatrix first_, dy_, output_;  // x, none and y; or y, dy and dx
  tile::Expected expected_;           // of these rows
};

std::unique_ptr<tile::Workload> make(const std::vector<std::int64_t>& size, tile::DType type,
                                     tile::Direction direction) {
  const std::int64_t rows = size.at(0), cols = size.at(1);
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(rows, cols, &bytes) ||
      __builtin_mul_overflow(bytes, sizeof(double), &bytes)) {
    throw std::invalid_argument(
        tile::invalid_argument(rows > cols ? "rows" : "cols",
                               std::to_string(std::max(rows, cols)) + " makes a matrix too large")
            .message);
  }
  return std::make_unique<Softmax>(Problem{type, rows, cols, direction});
}

std::unique_ptr<tile::Workload> make_forward(const std::vector<std::int64_t>& size,
                                             tile::DType type) {
  return make(size, type, tile::Direction::forward);
}

std::unique_ptr<tile::Workload> make_backward(const std::vector<std::int64_t>& size,
                                              tile::DType type) {
  return make(size, type, tile::Direction::backward);
}

const tile::Chapter kChapter{
    .name = kName,
    .title = kTitle,
    .next =
        "read 03_softmax/README.md; then `./tour run 03 4 --size 300x2000` and "
        "`./tour test 03`",
    .steps = tile::infos_of(kSteps),
    .extents = {"rows", "cols"},
    .size_on_cpu = {37, 1003},  // no multiple of a block, a warp or a vector
    .size_on_gpu = {32768, 4096},
    .benchmark_sizes = {{32768, 1024},
                        {32768, 4096},
                        {16384, 8192},
                        {8192, 32768},
                        {4096, 131072},
                        {8192, 262144}},
    .benchmark_types = {tile::DType::fp32, tile::DType::bf16},
    .make = {make_forward, make_backward}};
const tile::RegisterChapter kRegistered{kChapter};

}  // namespace
}  // namespace softmax
