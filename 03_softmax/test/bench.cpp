// Chapter 03 for ./tour and the benchmark.
#include <algorithm>

#include "harness/sample.hpp"
#include "harness/workload.hpp"
#include "reference.hpp"

namespace softmax {
namespace {

// This number of elements is checked in a fraction of a second. Of larger problems only some rows
// are.
std::vector<std::int64_t> checked_rows(std::int64_t rows, std::int64_t cols) {
  constexpr std::int64_t kElementsToCheckAll = 1 << 20;
  return rows * cols > kElementsToCheckAll ? tile::sample_rows(rows) : tile::all_rows(rows);
}

template <class Ladder>
class Softmax : public tile::LadderWorkload<Ladder> {
 public:
  using Problem = typename Ladder::Problem;

  Softmax(const Ladder& ladder, const Problem& p)
      : tile::LadderWorkload<Ladder>(ladder, p), rows_(checked_rows(p.rows, p.cols)) {}

  std::string name() const override {
    return std::string(tile::name(p().type))
        .append(" rows")
        .append(std::to_string(p().rows))
        .append(" cols")
        .append(std::to_string(p().cols));
  }
  std::string checked_part() const override {
    return tile::checked_text(std::ssize(rows_), p().rows, "row");
  }

 protected:
  const Problem& p() const { return this->problem_; }
  /// The problem of the rows that are checked.
  Problem checked() const {
    Problem checked = p();
    checked.rows = std::ssize(rows_);
    return checked;
  }
  double bytes_of_a_matrix() const {
    return static_cast<double>(p().rows) * static_cast<double>(p().cols) *
           static_cast<double>(tile::size_bytes(p().type));
  }
  /// That of the last step, the only one that has one.
  void make_workspace() {
    this->buffers_.workspace_bytes = split_bytes(p());
    this->buffers_.workspace = this->tensors_.workspace(this->buffers_.workspace_bytes);
  }
  std::vector<std::int64_t> rows_;  // that are checked
};

class Forward : public Softmax<ForwardLadder> {
 public:
  explicit Forward(const ForwardProblem& p) : Softmax(kForwardLadder, p) {
    place(buffers_.x, tensors_.random_input("x", p.type, p.rows, p.cols, 1, 0, 1));
    const std::vector<double> x = tensors_.rows_of_last(rows_);
    place(buffers_.y, tensors_.output("y", p.type, p.rows, p.cols, rows_, reference(checked(), x)));
    make_workspace();
  }
  double bytes() const override { return 2 * bytes_of_a_matrix(); }
};

class Backward : public Softmax<BackwardLadder> {
 public:
  explicit Backward(const BackwardProblem& p) : Softmax(kBackwardLadder, p) {
    // Like probabilities: positive, and together about 1.
    const double mean = 1 / static_cast<double>(std::max<std::int64_t>(1, p.cols));
    place(buffers_.y, tensors_.random_input("y", p.type, p.rows, p.cols, 1, mean, mean / 4));
    const std::vector<double> y = tensors_.rows_of_last(rows_);
    place(buffers_.dy, tensors_.random_input("dy", p.type, p.rows, p.cols, 2, 0, 1));
    const std::vector<double> dy = tensors_.rows_of_last(rows_);
    place(buffers_.dx,
          tensors_.output("dx", p.type, p.rows, p.cols, rows_, reference(checked(), y, dy)));
    make_workspace();
  }
  std::string_view direction() const override { return "backward"; }
  double bytes() const override { return 3 * bytes_of_a_matrix(); }
};

template <class Workload, class Problem>
std::unique_ptr<tile::Workload> make(const std::vector<std::int64_t>& size, tile::DType type) {
  tile::require_countable("rows", size.at(0), "cols", size.at(1));
  return std::make_unique<Workload>(Problem{type, size.at(0), size.at(1)});
}

template <class Ladder>
tile::LadderInfo info_of(const Ladder& ladder, tile::MakeWorkload make) {
  return {.name = ladder.name,
          .kernels = ladder.kernels,
          .steps = tile::infos_of(ladder),
          .extents = {"rows", "cols"},
          .size_hint = "the rows and columns of x",
          .make = make,
          .benchmark_sizes = {{32768, 1024},
                              {32768, 4096},
                              {16384, 8192},
                              {8192, 32768},
                              {4096, 131072},
                              {8192, 262144},
                              {8192, 50257},
                              {50000, 777},
                              {100000, 100},
                              {64, 1000001},
                              {1, 1 << 24}},
          .benchmark_types = {tile::DType::fp32, tile::DType::bf16},
          // Of a part of a warp, a block, clusters of fewer and of more than 32 warps, no cluster.
          .whole_tiles = {{{128, 8}, {128, 8}},
                          {{8, 1024}, {8, 1024}},
                          {{2, 20'480}, {2, 4096}},
                          {{1, 131'072}, {1, 4096}},
                          {{2, 12'289}, {1, 4096}},
                          {{1, 257 * 4096}, {0, 0}, "split"}}};
}

const tile::Chapter kChapter{
    .name = kName,
    .title = kTitle,
    .ladders = {info_of(kForwardLadder, make<Forward, ForwardProblem>),
                info_of(kBackwardLadder, make<Backward, BackwardProblem>)}};
const tile::RegisterChapter kRegistered{kChapter};

}  // namespace
}  // namespace softmax
