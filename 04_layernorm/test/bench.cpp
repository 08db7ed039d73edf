// Chapter 04 for ./tour and the benchmark.
#include <algorithm>

#include "harness/inputs.hpp"
#include "harness/sample.hpp"
#include "harness/workload.hpp"
#include "reference.hpp"

namespace layernorm {
namespace {

using Numbers = std::vector<std::int64_t>;  // of rows or columns
using Values = std::vector<double>;

// So many elements are checked in a fraction of a second. Of more, some rows are, and of sums over
// rows some columns.
constexpr std::int64_t kElementsToCheckAll = 1 << 20;

template <class Problem>
Numbers to_check(const Problem& p, std::int64_t extent) {
  return p.rows * p.cols > kElementsToCheckAll ? tile::sample_rows(extent) : tile::all_rows(extent);
}

/// What both passes have.
template <class Ladder>
class Normalization : public tile::LadderWorkload<Ladder> {
 public:
  using Problem = typename Ladder::Problem;

  Normalization(const Ladder& ladder, const Problem& p)
      : tile::LadderWorkload<Ladder>(ladder, p), rows_(to_check(p, p.rows)) {}

  std::string name() const override {
    std::string text(tile::name(p().type));
    text.append(" rows").append(std::to_string(p().rows));
    text.append(" cols").append(std::to_string(p().cols));
    return text.append(layer() ? "" : " rms");
  }
  std::string checked_part() const override {
    return tile::checked_text(std::ssize(rows_), p().rows, "row");
  }

 protected:
  const Problem& p() const { return this->problem_; }
  bool layer() const { return p().norm == Norm::layer; }
  /// The problem of the rows that are checked.
  Problem checked() const {
    Problem checked = p();
    checked.rows = std::ssize(rows_);
    return checked;
  }
  /// Of so many matrices, and so many vectors with an element for each column. What has one for
  /// each row is not counted.
  double bytes_of(double matrices, double vectors) const {
    return (matrices * static_cast<double>(p().rows) + vectors) * static_cast<double>(p().cols) *
           static_cast<double>(tile::size_bytes(p().type));
  }
  /// A row of gamma or beta.
  void* of_cols(const char* name, const Values& values) {
    return this->tensors_.input(name, p().type, 1, p().cols, values);
  }

  Numbers rows_;  // that are checked
};

class Forward : public Normalization<ForwardLadder> {
 public:
  explicit Forward(const ForwardProblem& p) : Normalization(kForwardLadder, p) {
    place(buffers_.x, tensors_.random_input("x", p.type, p.rows, p.cols, 1, 0, 1));
    const Values x = tensors_.rows_of_last(rows_);
    const Values gamma = tile::uniform(p.cols, p.type, 2, -2, 2);
    const Values beta = layer() ? tile::uniform(p.cols, p.type, 3, -2, 2) : Values{};
    place(buffers_.gamma, of_cols("gamma", gamma));
    if (layer()) place(buffers_.beta, of_cols("beta", beta));
    ForwardReference expected = reference(checked(), x, gamma, beta);
    auto statistic = [&](const char* name, tile::Expected& wanted) {
      return tensors_.output(name, tile::DType::fp32, p.rows, 1, rows_, std::move(wanted));
    };
    place(buffers_.y, tensors_.output("y", p.type, p.rows, p.cols, rows_, std::move(expected.y)));
    place(buffers_.rstd, statistic("rstd", expected.rstd));
    if (layer()) place(buffers_.mean, statistic("mean", expected.mean));
    buffers_.workspace_bytes = split_bytes(p);
    buffers_.workspace = tensors_.workspace(buffers_.workspace_bytes);
  }
  double bytes() const override { return bytes_of(2, layer() ? 2 : 1); }  // gamma, beta
};

class Backward : public Normalization<BackwardLadder> {
 public:
  explicit Backward(const BackwardProblem& p)
      : Normalization(kBackwardLadder, p), columns_(to_check(p, p.cols)) {
    place(buffers_.x, tensors_.random_input("x", p.type, p.rows, p.cols, 1, 0, 1));
    const Values x = tensors_.rows_of_last(rows_), x_columns = columns_of_last();
    place(buffers_.dy, tensors_.random_input("dy", p.type, p.rows, p.cols, 4, 0, 1));
    const Values dy = tensors_.rows_of_last(rows_), dy_columns = columns_of_last();
    const Values gamma = tile::uniform(p.cols, p.type, 2, -2, 2);
    place(buffers_.gamma, of_cols("gamma", gamma));
    // mean and rstd are any numbers like those of such rows: the gradients are functions of them.
    const Values rstd = tile::uniform(p.rows, tile::DType::fp32, 5, 0.9, 1.1);
    const Values mean = layer() ? tile::uniform(p.rows, tile::DType::fp32, 6, -0.1, 0.1) : Values{};
    place(buffers_.rstd, statistic("rstd", rstd));
    if (layer()) place(buffers_.mean, statistic("mean", mean));

    BackwardReference of_rows =
        reference(checked(), x, gamma, layer() ? some(mean, rows_) : mean, some(rstd, rows_), dy);
    // dgamma and dbeta do not depend on what lies in other columns.
    BackwardProblem some_columns = p;
    some_columns.cols = std::ssize(columns_);
    BackwardReference of_columns =
        reference(some_columns, x_columns, some(gamma, columns_), mean, rstd, dy_columns);
    auto sums = [&](const char* name, tile::Expected& wanted) {
      return tensors_.output(name, p.type, p.cols, 1, columns_, std::move(wanted));
    };
    place(buffers_.dx, tensors_.output("dx", p.type, p.rows, p.cols, rows_, std::move(of_rows.dx)));
    place(buffers_.dgamma, sums("dgamma", of_columns.dgamma));
    if (layer()) place(buffers_.dbeta, sums("dbeta", of_columns.dbeta));
    buffers_.workspace =
        tensors_.workspace(tile::workspace_bytes_of(kBackwardLadder.steps.back(), p));
  }
  std::string_view direction() const override { return "backward"; }
  // gamma, dgamma and dbeta.
  double bytes() const override { return bytes_of(3, layer() ? 3 : 2); }
  std::string checked_part() const override {
    const std::string rows = Normalization::checked_part();
    if (std::ssize(columns_) == p().cols) return rows;
    return rows + ", " + tile::checked_text(std::ssize(columns_), p().cols, "column");
  }

 private:
  void* statistic(const char* name, const Values& values) {
    return tensors_.input(name, tile::DType::fp32, 1, std::ssize(values), values);
  }
  static Values some(const Values& values, const Numbers& numbers) {
    Values part;
    for (const std::int64_t i : numbers) part.push_back(values[static_cast<std::size_t>(i)]);
    return part;
  }
  /// The checked columns of the tensor that was made last, all rows of them. They come in parts: a
  /// matrix may be larger than the host's memory.
  Values columns_of_last() const {
    Values columns;
    const std::int64_t rows_at_once = kElementsToCheckAll / std::max<std::int64_t>(1, p().cols) + 1;
    for (std::int64_t first = 0; first < p().rows; first += rows_at_once) {
      Numbers numbers;
      for (std::int64_t row = first; row < std::min(first + rows_at_once, p().rows); ++row) {
        numbers.push_back(row);
      }
      const Values part = tensors_.rows_of_last(numbers);
      for (std::size_t row = 0; row < numbers.size(); ++row) {
        for (const std::int64_t column : columns_) {
          columns.push_back(
              part[row * static_cast<std::size_t>(p().cols) + static_cast<std::size_t>(column)]);
        }
      }
    }
    return columns;
  }

  Numbers columns_;  // of dgamma and dbeta that are checked
};

template <class Workload, class Problem, Norm kNorm>
std::unique_ptr<tile::Workload> make(const std::vector<std::int64_t>& size, tile::DType type) {
  tile::require_countable("rows", size.at(0), "cols", size.at(1));
  return std::make_unique<Workload>(Problem{type, size.at(0), size.at(1), kNorm});
}

template <class Ladder>
tile::LadderInfo info_of(const Ladder& ladder, tile::MakeWorkload layer, tile::MakeWorkload rms) {
  return {.name = ladder.name,
          .kernels = ladder.kernels,
          .steps = tile::infos_of(ladder),
          .extents = {"rows", "cols"},
          .size_hint = "the rows and columns of x",
          .make = layer,
          .benchmark_sizes = {{32768, 1024},
                              {32768, 4096},
                              {16384, 8192},
                              {8192, 16384},
                              {8192, 50257},
                              {50000, 777},
                              {100000, 100},
                              {64, 1000001},
                              {1, 1 << 24}},
          .benchmark_types = {tile::DType::fp32, tile::DType::bf16, tile::DType::fp16},
          .make_for_benchmark = {rms},
          // Of a part of a warp, a warp or a block, a cluster of more than 32 warps, backward the
          // card, and forward some of its blocks.
          .whole_tiles = {{{128, 16}, {128, 16}},
                          {{8, 1024}, {8, 1024}},
                          {{2, 40'960}, {2, 4096}},
                          {{2, 12'289}, {1, 4096}},
                          {{1, 135'168}, {1, 4096}},
                          {{4, 32'785}, {2, 16}}}};
}

const tile::Chapter kChapter{
    .name = kName,
    .title = kTitle,
    .ladders = {info_of(kForwardLadder, make<Forward, ForwardProblem, Norm::layer>,
                        make<Forward, ForwardProblem, Norm::rms>),
                info_of(kBackwardLadder, make<Backward, BackwardProblem, Norm::layer>,
                        make<Backward, BackwardProblem, Norm::rms>)}};
const tile::RegisterChapter kRegistered{kChapter};

}  // namespace
}  // namespace layernorm
