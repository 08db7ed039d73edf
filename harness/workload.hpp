// The parts of the chapters' Workloads: tensors in guarded memory, and a ladder that runs.
#pragma once

#include <deque>
#include <functional>
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
  /// Memory that a step uses and that is not compared.
  void* workspace(std::int64_t bytes);

  /// How many there are.
  std::size_t count() const { return all_.size(); }
  /// Rows of a tensor by its number, for a reference; and of the one that was made last.
  std::vector<double> rows(std::size_t tensor, std::span<const std::int64_t> numbers) const;
  std::vector<double> rows_of_last(std::span<const std::int64_t> numbers) const {
    return rows(count() - 1, numbers);
  }

  /// The names of the inputs and outputs, in the order in which they were made.
  std::vector<std::string> names() const;
  /// Moves one of these to where it begins `bytes` after a multiple of 256, and gives that place.
  /// An output is poison afterwards.
  void* move(std::size_t tensor, std::int64_t bytes);

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
  std::vector<std::size_t> movable_;  // of these, inputs and outputs
  std::vector<Output> outputs_;
};

/// "all 37 rows", or "87 rows" of more.
std::string checked_text(std::int64_t checked, std::int64_t all, const char* noun);

/// Throws std::invalid_argument, naming the larger extent, if a matrix of doubles of this size
/// cannot be counted in bytes.
void require_countable(std::string_view rows_name, std::int64_t rows, std::string_view cols_name,
                       std::int64_t cols);

/// Tensors, and the pointers of a call that lead to them.
class TensorWorkload : public Workload {
 public:
  Comparison check() override { return tensors_.check(); }
  std::vector<std::string> tensors() const override { return tensors_.names(); }
  void move_tensor(std::size_t tensor, std::int64_t bytes) override {
    slots_.at(tensor)(tensors_.move(tensor, bytes));
  }

 protected:
  /// Puts the address of the input or output that was made last into the call, and remembers where:
  /// place(buffers_.x, tensors_.input(…)).
  template <class T>
  void place(T*& slot, void* data) {
    slot = static_cast<T*>(data);
    slots_.push_back([&slot](void* moved) { slot = static_cast<T*>(moved); });
  }

  Tensors tensors_;

 private:
  std::vector<std::function<void(void*)>> slots_;  // as tensors()
};

template <class Ladder>
class LadderWorkload;

/// A call of a ladder, one struct. Derived classes place() tensors of tensors_ in it.
template <class Call>
class LadderWorkload<Ladder<Call>> : public TensorWorkload {
 public:
  LadderWorkload(const Ladder<Call>& ladder, const Call& call) : ladder_(ladder), call_(call) {}

  Status choose(std::size_t step, Choice* choice) const override {
    *choice = {step, {}};
    TILE_TRY(ladder_.validate(call_));
    if (ladder_.is_empty(call_)) return {};
    return choose_step(ladder_, step, call_, choice);
  }
  Status launch(std::size_t step, void* stream) override {
    if (ladder_.is_empty(call_)) return {};
    return ladder_.steps[step].launch(call_, stream);
  }

 protected:
  const Ladder<Call>& ladder_;
  Call call_;
};

/// A problem of a ladder and its buffers. Derived classes place() tensors of tensors_ in buffers_.
template <class Ladder>
class LadderWorkload : public TensorWorkload {
 public:
  using Problem = typename Ladder::Problem;
  using Buffers = typename Ladder::Buffers;

  LadderWorkload(const Ladder& ladder, const Problem& problem)
      : ladder_(ladder), problem_(problem) {}

  Status choose(std::size_t step, Choice* choice) const override {
    *choice = {step, {}};
    TILE_TRY(ladder_.validate(problem_, buffers_));
    if (ladder_.is_empty(problem_)) return {};
    return choose_step(ladder_, step, problem_, buffers_, choice);
  }
  Status launch(std::size_t step, void* stream) override {
    if (ladder_.is_empty(problem_)) return {};
    return ladder_.steps[step].launch(problem_, buffers_, stream);
  }

 protected:
  const Ladder& ladder_;
  Problem problem_;
  Buffers buffers_{};
};

}  // namespace tile
