// A chapter for ./tour: its ladders, and problems to run their steps on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "harness/compare.hpp"
#include "harness/measure.hpp"
#include "tile/host/dtype.hpp"
#include "tile/host/status.hpp"
#include "tile/host/step.hpp"

namespace tile {

/// Other software that solves the problem of a Workload, with the same inputs into the same output.
struct Peer {
  std::string name;  ///< as in the results: "cuBLAS"
  /// Code::unsupported, with the reason, if it is not there or must not be used.
  Work launch;
};

/// One problem of a ladder with its inputs and outputs on the device.
class Workload {
 public:
  virtual ~Workload() = default;

  /// Type and sizes: "fp32 n1048576".
  virtual std::string name() const = 0;
  /// forward, backward or forward+backward.
  virtual std::string_view direction() const { return "forward"; }
  /// Bytes that any correct kernel must move, each input read and each output written once.
  virtual double bytes() const = 0;
  /// Additions and multiplications of the problem, if they and not the bytes limit its speed: it is
  /// then measured in TFLOP/s. Otherwise 0.
  virtual double operations() const { return 0; }
  /// The type of the factors, if there are operations(): which rate is their ceiling.
  virtual DType multiplied_type() const { return DType::fp32; }
  /// Validates the problem and finds the step that runs it when step `step` is asked for.
  virtual Status choose(std::size_t step, Choice* choice) const = 0;
  /// Starts the own kernel of step `step`, which choose() has given, in a stream, a
  /// cudaStream_t.
  virtual Status launch(std::size_t step, void* stream) = 0;
  /// The peers to be timed beside the steps. They live no longer than the Workload.
  virtual std::vector<Peer> peers() { return {}; }
  /// Compares what the last launch, a step's or a peer's, wrote with the reference, looks at the
  /// guard bands around every buffer, and makes the output poison again: the next must write its
  /// own. Waits for the device.
  virtual Comparison check() = 0;
  /// What check() compares: "all 37 rows", "87 rows".
  virtual std::string checked_part() const = 0;

  /// For tests: the names of the problem's tensors. A workspace is none of them.
  virtual std::vector<std::string> tensors() const { return {}; }
  /// Moves one of them, by its number among those, so that it begins `bytes` after a multiple of
  /// 256.
  virtual void move_tensor(std::size_t, std::int64_t) {}
};

/// Throws std::invalid_argument, naming the extent, for a size that no step can take.
using MakeWorkload = std::unique_ptr<Workload> (*)(const std::vector<std::int64_t>& size,
                                                   DType type);

/// For tests: a problem of whole tiles. `size` are the extents, multiples of those of the largest
/// tile, which is what a block takes, or what each of its parts is a divisor of. It is for all
/// steps, or for the one of this name.
struct WholeTiles {
  std::vector<std::int64_t> size, tile;
  std::string_view step = {};
};

/// A ladder without the types of its problem.
struct LadderInfo {
  std::string_view name, kernels;  ///< as in Ladder
  std::vector<StepInfo> steps;
  std::vector<std::string_view> extents;  ///< what --size gives: {"m", "n", "k"}
  std::string_view size_hint;             ///< what it is in words: "rows and columns of x"
  MakeWorkload make;
  std::vector<std::vector<std::int64_t>> benchmark_sizes;
  std::vector<DType> benchmark_types;
  /// What bench measures beside `make`, of the same sizes and types. These may give null for a type
  /// that they leave out.
  std::vector<MakeWorkload> make_for_benchmark = {};
  /// Small ones, but enough of them that the own kernel of each step runs one.
  std::vector<WholeTiles> whole_tiles = {};
};

/// What `./tour run CHAPTER --compare` shows.
struct SideBySide {
  std::string_view ladder;  ///< whose sizes it takes
  /// Prints a table, and writes a drawing into `folder`. Without a size it takes one of its own.
  /// Returns whether all results were right.
  bool (*show)(const std::vector<std::int64_t>& size, DType type, const std::string& folder);
};

struct Chapter {
  std::string_view name;  ///< the folder's
  std::string_view title;
  std::vector<LadderInfo> ladders;
  SideBySide side_by_side = {"", nullptr};  ///< null: there is nothing to compare
};

/// The chapters linked into this program, by name.
const std::vector<const Chapter*>& chapters();

/// Adds a chapter when the program starts: `const RegisterChapter registered{chapter};`
struct RegisterChapter {
  explicit RegisterChapter(const Chapter& chapter);
};

}  // namespace tile
