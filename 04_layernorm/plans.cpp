// How the blocks of a step share their rows, for the steps that need to know it of one another.
#include <climits>
#include <iterator>
#include <numeric>

#include "layernorm.hpp"
#include "tile/host/split_plan.hpp"

namespace layernorm {
namespace {

template <class Ladder>
bool is_read_once(const Ladder& ladder, std::string_view first,
                  const typename Ladder::Problem& problem,
                  const typename Ladder::Buffers& buffers) {
  tile::Choice choice;
  const std::size_t before = find_step(ladder, "split") - 1;
  return choose_step(ladder, before, problem, buffers, &choice).ok() &&
         choice.step >= find_step(ladder, first);
}

SharedRowsPlan shared_rows_plan(const SharedRowsShape& shape, std::int64_t rows, std::int64_t cols,
                                std::size_t element, std::int64_t most_groups,
                                const tile::Device& device) {
  const std::int64_t fit =
      (device.shared_bytes_of_block - shape.static_bytes) / (shape.stages * shape.tensors * 16);
  // A row that begins anywhere may have one chunk less.
  const std::int64_t all = cols / static_cast<std::int64_t>(16 / element);
  SharedRowsPlan best{};
  if (rows < 1 || rows > INT32_MAX) return best;
  std::int64_t least = INT64_MAX;
  for (int blocks = 1; blocks <= std::min(device.multiprocessors, shape.blocks); ++blocks) {
    const std::int64_t room = (all + blocks - 1) / blocks;
    const std::int64_t groups =
        std::min<std::int64_t>({device.multiprocessors / blocks, rows, most_groups});
    const std::int64_t of_thread = (room + shape.threads - 1) / shape.threads;
    if (of_thread < shape.least || of_thread > shape.most) continue;
    if (room > fit || (all - 1) / blocks < (of_thread - 1) * shape.threads) continue;
    // A part of a row took as long as 400 chunks more would on an H200.
    const std::int64_t time = (rows + groups - 1) / groups * (room + 400);
    if (time >= least) continue;
    least = time;
    best = {blocks, static_cast<int>(groups), static_cast<int>(room), static_cast<int>(of_thread)};
  }
  return best;
}

}  // namespace

RowStarts row_starts(const BackwardProblem& p) {
  const auto width = static_cast<std::int64_t>(16 / tile::size_bytes(p.type));
  const std::int64_t common = std::gcd(p.ldx, width);
  return {width / common, width - common};
}

std::int64_t persistent_count(const BackwardProblem& p, std::int64_t most, std::int64_t rows) {
  // Periods are powers of two, and so are the rows of a block.
  const std::int64_t alike = std::max<std::int64_t>(row_starts(p).period / rows, 1);
  const std::int64_t needed = (p.rows + rows * alike - 1) / (rows * alike);
  return std::min(needed, std::max<std::int64_t>(most / alike, 1)) * alike;
}

BlockPlan block_plan(const BackwardProblem& p, const tile::Device& device) {
  constexpr int kWarp = 32;
  const auto element = static_cast<std::int64_t>(tile::size_bytes(p.type));
  // A row that begins within a chunk has columns of zeros before its own.
  const std::int64_t cols = p.cols + row_starts(p).lead;
  BlockPlan best{-1, 0, 0, 0};
  std::int64_t least = INT64_MAX;
  for (int i = 0; i < std::ssize(kRowShapes); ++i) {
    const RowShape& shape = kRowShapes[i];
    if (element == 4 && !shape.fp32) continue;
    std::int64_t threads = shape.lanes;
    if (threads == 0) {
      threads = (cols + shape.elements * kWarp - 1) / (shape.elements * kWarp) * kWarp;
    }
    const std::int64_t rows = shape.lanes > 0 ? shape.threads / threads : 1;
    // Afterwards there is room for the sums, which take no more bytes.
    const std::int64_t bytes = 2 * (shape.ahead + 1) * rows * threads * shape.elements * element;
    if (cols > threads * shape.elements || rows * threads > shape.threads ||
        bytes > device.shared_bytes_of_block - BlockPlan::kStaticBytes) {
      continue;
    }
    const BlockPlan plan{i, static_cast<int>(threads), static_cast<int>(rows), bytes};
    if (shape.lanes > 0) return plan;
    // Empty places of a block's row take as long as others. With fewer than 13 warps on a
    // multiprocessor all take longer in proportion, as measured on an H200.
    const std::int64_t warps = shape.threads / threads * threads / kWarp;
    const std::int64_t time = threads * shape.elements * std::max<std::int64_t>(13, warps) / warps;
    const bool is_last = i + 1 == std::ssize(kRowShapes);  // for what no other holds
    if (time >= least || (is_last && best.shape >= 0)) continue;
    least = time;
    best = plan;
  }
  return best;
}

bool fits_block(const BackwardProblem& p, const BackwardBuffers& b, const tile::Device& device) {
  const int shape = block_plan(p, device).shape;
  return shape >= 0 && (shape + 1 < std::ssize(kRowShapes) || check_chunks(p, b).ok());
}

// snippet-begin ends
EndsPlan ends_plan(const ForwardProblem& p) {
  const auto width = static_cast<std::int64_t>(16 / tile::size_bytes(p.type));
  const std::int64_t chunks = p.cols / width - 1;
  struct Lanes {
    int count, chunks;  // of a row; of a lane
    std::int64_t most;  // chunks of a row
  };
  // Measured on an H200. 60 and 20 are fewer than the lanes could hold.
  for (const Lanes& lanes :
       {Lanes{8, 3, 20}, {16, 2, 32}, {16, 4, 60}, {32, 2, 64}, {32, 3, 96}, {32, 4, 128}}) {
    if (chunks <= lanes.most) return {lanes.count, lanes.chunks, true};
  }
  // As in step `registers`: as floats, or in long rows of 2 bytes each as they came. But where that
  // leaves a tenth fewer places empty, a thread has 24 floats and not 32. (On an H200, of 7,630
  // columns, where it is a sixteenth, 32 have 0.91 of a copy, and 24 have 0.78.)
  const auto threads_with = [&](std::int64_t elements) {
    const std::int64_t of_warp = 32 * elements / width;
    return (chunks + of_warp - 1) / of_warp * 32;
  };
  const bool packed = width == 8 && p.cols > 8 * 1024;
  const bool is_tight = !packed && threads_with(24) * 24 * 10 <= threads_with(32) * 32 * 9;
  const std::int64_t elements = packed ? 64 : is_tight ? 24 : 32;
  const std::int64_t threads = threads_with(elements), most = packed ? 512 : 1024;
  return {static_cast<int>(threads), threads <= most ? static_cast<int>(elements / width) : 0,
          false};
}
// snippet-end ends

SharedRowsPlan persistent_plan(const ForwardProblem& p, const tile::Device& device) {
  return shared_rows_plan(kForwardParts, p.rows, p.cols, tile::size_bytes(p.type), INT64_MAX,
                          device);
}
SharedRowsPlan exchange_plan(const BackwardProblem& p, const tile::Device& device) {
  // Each group writes partial sums, and once more each time when rows begin otherwise.
  const std::int64_t most = max_partial_sums(p.cols) - row_starts(p).period + 1;
  return shared_rows_plan(kBackwardParts, p.rows, p.cols, tile::size_bytes(p.type), most, device);
}

bool is_read_once(const ForwardProblem& p, const ForwardBuffers& b) {
  return is_read_once(kForwardLadder, "registers", p, b);
}
bool is_read_once(const BackwardProblem& p, const BackwardBuffers& b) {
  return is_read_once(kBackwardLadder, "persistent", p, b);
}

// Count, mean and squares of each piece.
std::int64_t split_bytes(const ForwardProblem& p) {
  return tile::split_bytes(p.rows, p.cols, tile::size_bytes(p.type), sizeof(Moments));
}

}  // namespace layernorm
