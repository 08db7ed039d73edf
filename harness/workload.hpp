// What the Workloads of chapters are made of: tensors in guarded memory, and a ladder that runs.
#pragma once

#include <deque>
#include <span>
#include <string>
#include <vector>

#include "harness/buffer.hpp"
#include "harness/chapter.hpp"
#include "harness/compare.hpp"

namespace tile {

/// The tensors of a workload. Each gives its device pointer, to the first element.
class Tensors {
 public:
  void* input(std::string name, DType type, std::int64_t rows, std::int64_t cols,
              std::span<const double> values);
  /// Filled on the device, see fill_random().
  void* random_input(std::string name, DType type, std::int64_t rows, std::int64_t cols,
                     std::uint64_t seed, double mean, double deviation);
  /// `expected` is that of the rows `checked`. Of a vector each element is a row.
  void* output(std::string name, DType type, std::int64_t rows, std::int64_t cols,
               std::vector<std::int64_t> checked, Expected expected);
  /// Memory that a step uses and nobody looks at.
  void* workspace(std::int64_t bytes);

  /// How many there are.
  std::size_t count() const { return all_.size(); }
  /// Rows of a tensor by its number, for a reference; and of the one that was made last.
  std::vector<double> rows(std::size_t tensor, std::span<const std::int64_t> numbers) const;
  std::vector<double> rows_of_last(std::span<const std::int64_t> numbers) const {
    return rows(count() - 1, numbers);
  }

  /// What Workload::check() does.
  Comparison check();

 private:
  struct Output {
    std::size_t memory;
    std::vector<std::int64_t> checked;
    Expected expected;
  };
  void* add(std::string name, DType type, std::int64_t rows, std::int64_t cols);

  std::deque<GuardedMemory> all_;
  std::vector<Output> outputs_;
};

/// "all 37 rows", or "87 rows" of more.
std::string checked_text(std::int64_t checked, std::int64_t all, const char* noun);

/// Throws std::invalid_argument, naming the larger extent, if a matrix of doubles of this size
/// cannot be counted in bytes.
void require_countable(std::string_view rows_name, std::int64_t rows, std::string_view cols_name,
                       std::int64_t cols);

/// A problem of a ladder. Derived classes fill buffers_ with tensors of tensors_.
template <class Ladder>
class LadderWorkload : public Workload {
 public:
  using Problem = typename Ladder::Problem;
  using Buffers = typename Ladder::Buffers;

  LadderWorkload(const Ladder& ladder, const Problem& problem)
      : ladder_(ladder), problem_(problem) {}

  Status choose(std::size_t step, Choice* choice) const override {
    *choice = {step, {}};
    if (Status s = ladder_.validate(problem_, buffers_); !s.ok()) return s;
    if (ladder_.is_empty(problem_)) return {};
    return tile::choose(ladder_, step, problem_, buffers_, choice);
  }
  Status launch(std::size_t step, void* stream) override {
    if (ladder_.is_empty(problem_)) return {};
    return ladder_.steps[step].launch(problem_, buffers_, stream);
  }
  Comparison check() override { return tensors_.check(); }

 protected:
  const Ladder& ladder_;
  Problem problem_;
  Buffers buffers_{};
  Tensors tensors_;
};

}  // namespace tile
