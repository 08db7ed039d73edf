// Chapter 04 for ./tour and the benchmark.
#include <algorithm>
#include <stdexcept>

#include "harness/buffer.hpp"
#include "harness/chapter.hpp"
#include "tile/host/cuda_check.hpp"
#include "harness/inputs.hpp"
#include "harness/sample.hpp"
#include "tile/host/text.hpp"
#include "layernorm.hpp"

namespace layernorm {
namespace {

using Numbers = std::vector<std::int64_t>;  // of rows or columns
using Values = std::vector<double>;

// The reference of as many elements takes a second or two. Of more it computes some rows, and of
// sums over rows some columns.
constexpr double kElementsToCheckAll = 0x1p22;

Numbers to_check(const Problem& p, std::int64_t extent) {
  const bool all = static_cast<double>(p.rows) * static_cast<double>(p.cols) <= kElementsToCheckAll;
  return all ? tile::all_rows(extent) : tile::sample_rows(extent);
}

/// These rows of a matrix of `cols` columns.
Values rows_of(const Values& matrix, std::int64_t cols, const Numbers& rows) {
  Values part;
  part.reserve(rows.size() * static_cast<std::size_t>(cols));
  for (const std::int64_t row : rows) {
    const auto begin = matrix.begin() + row * cols;
    part.insert(part.end(), begin, begin + cols);
  }
  return part;
}

Values columns_of(const Values& matrix, std::int64_t cols, const Numbers& columns) {
  Values part;
  part.reserve(matrix.size() / static_cast<std::size_t>(cols) * columns.size());
  for (std::size_t row = 0; row < matrix.size(); row += static_cast<std::size_t>(cols)) {
    for (const std::int64_t column : columns) {
      part.push_back(matrix[row + static_cast<std::size_t>(column)]);
    }
  }
  return part;
}

/// An output, and what some of its rows must hold. Of a vector each element is a row.
struct Output {
  Output(const char* output_name, tile::DType type, std::int64_t rows, std::int64_t cols,
         const Numbers& checked_rows, tile::Expected wanted)
      : name(output_name),
        checked(checked_rows),
        expected(std::move(wanted)),
        buffer(tile::DeviceBuffer::output(name, tile::matrix_layout(type, rows, cols, cols),
                                          tile::Poison::unwritten_nan)) {
    expected.shape = {std::ssize(checked), cols};
  }

  const char* name;
  Numbers checked;
  tile::Expected expected;
  tile::DeviceBuffer buffer;

  tile::Comparison compare() const {
    tile::Comparison result;
    const tile::Layout& layout = buffer.layout();
    Values got;
    const tile::Status copied =
        tile::download_rows(buffer.raw(), layout.dtype, layout.cols, checked, &got);
    if (!copied.ok()) {
      result.message = copied.message;
      return result;
    }
    if (std::ssize(checked) == layout.rows) return tile::compare(name, got, expected);
    return tile::compare_rows(name, checked, got, expected);
  }
};

class Normalization : public tile::Workload {
 public:
  std::string name() const override {
    std::string text(tile::name(problem_.type));
    text.append(" rows").append(std::to_string(problem_.rows));
    text.append(" cols").append(std::to_string(problem_.cols));
    return text.append(problem_.norm == Norm::rms ? " rms" : "");
  }
  std::string_view direction() const override { return tile::name(problem_.direction); }
  // x and y, or x, dy and dx. What has an element for each row or column is not counted.
  double bytes() const override {
    const int matrices = problem_.direction == tile::Direction::forward ? 2 : 3;
    return matrices * static_cast<double>(problem_.rows) * static_cast<double>(problem_.cols) *
           static_cast<double>(tile::size_bytes(problem_.type));
  }
  bool takes(std::size_t step) const override { return kSteps[step].supports(problem_).ok(); }
  tile::Status launch(std::size_t step, void* stream) override {
    return kSteps[step].launch(problem_, buffers_, stream);
  }
  tile::Comparison check() override {
    tile::Comparison all;
    const tile::Status status = tile::synchronize_status(nullptr);
    if (!status.ok()) {
      all.message = status.message;
      return all;
    }
    for (Output& output : outputs_) {
      const tile::Comparison one = output.compare();
      output.buffer.restore();
      all.count += one.count;
      all.mismatches += one.mismatches;
      all.worst_ratio = std::max(all.worst_ratio, one.worst_ratio);
      if (one.ok()) continue;
      all.message.append(all.message.empty() ? "" : "\n").append(one.message);
    }
    return all;
  }
  std::string checked_part() const override {
    std::string text;
    auto add = [&text](const Numbers& checked, std::int64_t all, const char* what) {
      if (std::ssize(checked) == all) return;
      text.append(text.empty() ? "" : ", ").append(tile::grouped(std::ssize(checked)));
      text.append(" of ").append(tile::counted(all, what));
    };
    add(rows_, problem_.rows, "row");
    // A forward pass has no sums over rows.
    if (problem_.direction == tile::Direction::backward) add(columns_, problem_.cols, "column");
    return text;
  }

  explicit Normalization(const Problem& problem)
      : problem_(problem),
        rows_(to_check(problem, problem.rows)),
        columns_(to_check(problem, problem.cols)) {
    const Values x = tile::uniform(problem_.rows * problem_.cols, problem_.type, 1, -1, 1);
    const Values gamma = tile::uniform(problem_.cols, problem_.type, 2, -2, 2);
    buffers_.x = input("x", problem_.rows, problem_.type, x);
    buffers_.gamma = input("gamma", 1, problem_.type, gamma);
    if (problem_.direction == tile::Direction::forward) {
      make_forward(x, gamma);
    } else {
      make_backward(x, gamma);
    }
  }

 private:
  bool layer() const { return problem_.norm == Norm::layer; }

  void make_forward(const Values& x, const Values& gamma) {
    Values beta;
    if (layer()) {
      beta = tile::uniform(problem_.cols, problem_.type, 3, -2, 2);
      buffers_.beta = input("beta", 1, problem_.type, beta);
    }
    Problem part = problem_;
    part.rows = std::ssize(rows_);
    ForwardReference expected = reference(part, rows_of(x, problem_.cols, rows_), gamma, beta);
    buffers_.y = output("y", problem_.type, problem_.rows, problem_.cols, rows_, expected.y);
    buffers_.rstd = static_cast<float*>(
        output("rstd", tile::DType::fp32, problem_.rows, 1, rows_, expected.rstd));
    if (!layer()) return;
    buffers_.mean = static_cast<float*>(
        output("mean", tile::DType::fp32, problem_.rows, 1, rows_, expected.mean));
  }

  // mean and rstd are any numbers like those of such rows: the gradients are functions of them.
  void make_backward(const Values& x, const Values& gamma) {
    const Values dy = tile::uniform(problem_.rows * problem_.cols, problem_.type, 4, -1, 1);
    const Values rstd = tile::uniform(problem_.rows, tile::DType::fp32, 5, 1.5, 2);
    Values mean;
    buffers_.dy = input("dy", problem_.rows, problem_.type, dy);
    buffers_.rstd = static_cast<float*>(input("rstd", problem_.rows, tile::DType::fp32, rstd));
    if (layer()) {
      mean = tile::uniform(problem_.rows, tile::DType::fp32, 6, -0.1, 0.1);
      buffers_.mean = static_cast<float*>(input("mean", problem_.rows, tile::DType::fp32, mean));
    }

    Problem some_rows = problem_, some_columns = problem_;
    some_rows.rows = std::ssize(rows_);
    some_columns.cols = std::ssize(columns_);
    const std::int64_t cols = problem_.cols;
    BackwardReference of_rows = backward_reference(
        some_rows, rows_of(x, cols, rows_), gamma, layer() ? rows_of(mean, 1, rows_) : Values{},
        rows_of(rstd, 1, rows_), rows_of(dy, cols, rows_));
    // dgamma and dbeta do not depend on what lies in other columns.
    BackwardReference of_columns =
        backward_reference(some_columns, columns_of(x, cols, columns_), rows_of(gamma, 1, columns_),
                           mean, rstd, columns_of(dy, cols, columns_));
    buffers_.dx = output("dx", problem_.type, problem_.rows, cols, rows_, of_rows.dx);
    buffers_.dgamma = output("dgamma", problem_.type, cols, 1, columns_, of_columns.dgamma);
    if (layer()) {
      buffers_.dbeta = output("dbeta", problem_.type, cols, 1, columns_, of_columns.dbeta);
    }
    workspace_ = std::make_unique<tile::DeviceBuffer>(tile::DeviceBuffer::output(
        "workspace", tile::vector_layout(tile::DType::fp32, workspace_bytes(problem_) / 4),
        tile::Poison::unwritten_nan));
    buffers_.workspace = workspace_->raw();
  }

  void* input(const char* name, std::int64_t rows, tile::DType type, const Values& values) {
    const std::int64_t cols = rows == 0 ? 0 : std::ssize(values) / rows;
    inputs_.push_back(
        tile::DeviceBuffer::input(name, tile::matrix_layout(type, rows, cols, cols), values));
    return inputs_.back().raw();
  }
  void* output(const char* name, tile::DType type, std::int64_t rows, std::int64_t cols,
               const Numbers& checked, tile::Expected& expected) {
    outputs_.emplace_back(name, type, rows, cols, checked, std::move(expected));
    return outputs_.back().buffer.raw();
  }

  Problem problem_;
  Numbers rows_, columns_;  // that check() compares
  std::vector<tile::DeviceBuffer> inputs_;
  std::vector<Output> outputs_;
  std::unique_ptr<tile::DeviceBuffer> workspace_;
  Buffers buffers_;
};

using Size = std::vector<std::int64_t>;  // rows and columns

template <Norm kNorm, tile::Direction kDirection>
std::unique_ptr<tile::Workload> make(const Size& size, tile::DType type) {
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(size.at(0), size.at(1), &bytes) ||
      __builtin_mul_overflow(bytes, sizeof(double), &bytes)) {
    throw std::invalid_argument(tile::invalid_argument(size[0] < size[1] ? "cols" : "rows",
                                                       std::to_string(std::max(size[0], size[1])) +
                                                           " makes a matrix too large")
                                    .message);
  }
  Problem p{type, size[0], size[1], kNorm};
  p.direction = kDirection;
  return std::make_unique<Normalization>(p);
}

const tile::Chapter kChapter{
    .name = kName,
    .title = kTitle,
    .next =
        "read 04_layernorm/README.md; then `./tour run 04 2 --size 100x1000` and "
        "`./tour test 04`",
    .steps = tile::infos_of(kSteps),
    .extents = {"rows", "cols"},
    .size_on_cpu = {37, 1003},  // rows that no vector of 16 bytes divides
    .size_on_gpu = {32768, 4096},
    .benchmark_sizes = {{32768, 1024}, {32768, 4096}, {16384, 8192}, {8192, 16384}},
    .benchmark_types = {tile::DType::fp32, tile::DType::bf16, tile::DType::fp16},
    .make = {make<Norm::layer, tile::Direction::forward>,
             make<Norm::layer, tile::Direction::backward>},
    .make_for_benchmark = {make<Norm::rms, tile::Direction::forward>,
                           make<Norm::rms, tile::Direction::backward>}};
const tile::RegisterChapter kRegistered{kChapter};

}  // namespace
}  // namespace layernorm
