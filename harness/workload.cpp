#include "harness/workload.hpp"

#include <algorithm>
#include <stdexcept>

#include "harness/fill.hpp"
#include "harness/sample.hpp"
#include "tile/host/cuda_check.hpp"
#include "tile/host/text.hpp"

namespace tile {

void* Tensors::add(std::string name, DType type, std::int64_t rows, std::int64_t cols) {
  all_.emplace_back(std::move(name), matrix_layout(type, rows, cols, cols));
  return all_.back().raw();
}

void* Tensors::input(std::string name, DType type, std::int64_t rows, std::int64_t cols,
                     std::span<const double> values) {
  void* data = add(std::move(name), type, rows, cols);
  movable_.push_back(all_.size() - 1);
  all_.back().upload(values);
  return data;
}

void* Tensors::random_input(std::string name, DType type, std::int64_t rows, std::int64_t cols,
                            std::uint64_t seed, double mean, double deviation) {
  void* data = add(std::move(name), type, rows, cols);
  movable_.push_back(all_.size() - 1);
  Status status = fill_random(&all_.back(), seed, mean, deviation);
  if (status.ok()) status = synchronize_status(nullptr);
  if (!status.ok()) throw std::runtime_error(status.message);
  return data;
}

void* Tensors::output(std::string name, DType type, std::int64_t rows, std::int64_t cols,
                      std::vector<std::int64_t> checked, Expected expected) {
  void* data = add(std::move(name), type, rows, cols);
  expected.shape = {std::ssize(checked), cols};
  if (rows == 1) expected.shape = {cols};
  if (cols == 1 && std::ssize(checked) == rows) expected.shape = {rows};
  movable_.push_back(all_.size() - 1);
  outputs_.push_back({all_.size() - 1, std::move(checked), std::move(expected)});
  return data;
}

void* Tensors::workspace(std::int64_t bytes) {
  return add("workspace", DType::fp32, 1, (bytes + 3) / 4);
}

std::vector<double> Tensors::rows(std::size_t tensor, std::span<const std::int64_t> numbers) const {
  return all_[tensor].rows(numbers);
}

std::vector<std::string> Tensors::names() const {
  std::vector<std::string> names;
  for (const std::size_t tensor : movable_) names.push_back(all_[tensor].name());
  return names;
}

void* Tensors::move(std::size_t tensor, std::int64_t bytes) {
  const std::size_t at = movable_.at(tensor);
  Layout layout = all_[at].layout();
  layout.offset = bytes / static_cast<std::int64_t>(size_bytes(layout.dtype));
  GuardedMemory moved(all_[at].name(), layout);
  if (std::ranges::count(outputs_, at, &Output::memory) == 0) moved.copy(all_[at]);
  all_[at] = std::move(moved);
  return all_[at].raw();
}

Comparison Tensors::check() {
  Comparison all;
  auto tell = [&all](const std::string& message) {
    all.message.append(all.message.empty() ? "" : "\n").append(message);
  };
  if (const Status done = synchronize_status(nullptr); !done.ok()) {
    tell(done.message);
    return all;
  }
  for (const Output& output : outputs_) {
    GuardedMemory& memory = all_[output.memory];
    const std::vector<double> got = memory.rows(output.checked);
    memory.poison();
    const bool whole = std::ssize(output.checked) == memory.layout().rows;
    const Comparison one = whole
                               ? compare(memory.name(), got, output.expected)
                               : compare_rows(memory.name(), output.checked, got, output.expected);
    all.count += one.count;
    all.mismatches += one.mismatches;
    all.worst_ratio = std::max(all.worst_ratio, one.worst_ratio);
    if (!one.ok()) tell(one.message);
  }
  for (GuardedMemory& memory : all_) {
    const Status intact = memory.check_guards();
    if (!intact.ok()) {
      tell(intact.message);
      memory.restore_guards();
    }
  }
  return all;
}

std::string checked_text(std::int64_t checked, std::int64_t all, const char* noun) {
  return (checked == all ? "all " : "") + counted(checked, noun);
}

void require_countable(std::string_view rows_name, std::int64_t rows, std::string_view cols_name,
                       std::int64_t cols) {
  std::int64_t bytes = 0;
  if (!__builtin_mul_overflow(rows, cols, &bytes) &&
      !__builtin_mul_overflow(bytes, sizeof(double), &bytes)) {
    return;
  }
  throw std::invalid_argument(
      invalid_argument(rows < cols ? cols_name : rows_name,
                       std::to_string(std::max(rows, cols)) + " makes a matrix too large")
          .message);
}

}  // namespace tile
