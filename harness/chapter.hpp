// A chapter as ./tour sees it: its steps, and problems to run them on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "harness/compare.hpp"
#include "harness/dtype.hpp"
#include "harness/status.hpp"

namespace tile {

/// One problem of a chapter with its inputs and outputs on the device.
class Workload {
 public:
  virtual ~Workload() = default;

  /// Type and sizes: "fp32 n1048576".
  virtual std::string name() const = 0;
  /// Bytes that any correct kernel must move, each input read and each output written once.
  virtual double bytes() const = 0;
  /// Starts step `step` of the chapter's table in a stream, a cudaStream_t.
  virtual Status launch(std::size_t step, void* stream) = 0;
  /// Compares what the last launch wrote with the reference. Waits for the device.
  virtual Comparison check() = 0;
};

struct StepInfo {
  std::string_view name;
  std::string_view idea;
};

struct Chapter {
  std::string_view name;  ///< the folder's
  std::string_view title;
  std::string_view next;  ///< what to read and try after it
  std::vector<StepInfo> steps;
  std::vector<std::string_view> extents;  ///< what --size gives: {"m", "n", "k"}
  std::vector<std::int64_t> size_on_cpu;  ///< what ./tour runs on the CPU device
  std::vector<std::int64_t> size_on_gpu;
  std::vector<std::vector<std::int64_t>> benchmark_sizes;
  std::vector<DType> benchmark_types;
  /// Throws std::invalid_argument, naming the extent, for a size that no step can take.
  std::unique_ptr<Workload> (*make)(const std::vector<std::int64_t>& size, DType type);
};

/// The chapters linked into this program, by name.
const std::vector<const Chapter*>& chapters();

/// Adds a chapter when the program starts: `const RegisterChapter registered{chapter};`
struct RegisterChapter {
  explicit RegisterChapter(const Chapter& chapter);
};

}  // namespace tile
