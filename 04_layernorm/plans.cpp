// How the blocks of a step share their rows, for the steps that need to know it of one another.
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

}  // namespace

BlockPlan block_plan(const BackwardProblem& p, bool whole, const tile::Device& device) {
  constexpr int kWarp = 32, kMinThreads = 4;
  const auto element = static_cast<std::int64_t>(tile::size_bytes(p.type)), width = 16 / element;
  // A row that begins within a chunk has columns of zeros before its own.
  const std::int64_t cols = whole ? p.cols : p.cols + width - 1;
  auto queue_bytes = [&](std::int64_t threads, int max_threads, std::int64_t elements) {
    return 2 * (rows_ahead(max_threads) + 1) * threads * elements * element;
  };
  const std::int64_t limit = device.shared_bytes_of_block - BlockPlan::kStaticBytes;
  // A warp has a row, or a part of a warp one of up to 16 chunks. Afterwards there is room for the
  // sums, which take no more bytes.
  for (std::int64_t elements = width; elements <= kThreadElements; elements *= 2) {
    const std::int64_t bytes = queue_bytes(kKeeping, kKeeping, elements);
    if (cols > kWarp * elements || bytes > limit) continue;
    int threads = kWarp;
    while (elements == width && threads > kMinThreads && threads / 2 * width >= cols) threads /= 2;
    return {true, threads, kKeeping / threads, static_cast<int>(elements), kKeeping, bytes};
  }
  const std::int64_t threads =
      (cols + kThreadElements * kWarp - 1) / (kThreadElements * kWarp) * kWarp;
  for (const int most : {kKeeping, kRecomputing}) {
    if (threads > most || queue_bytes(threads, most, kThreadElements) > limit) continue;
    if (most == kRecomputing && element != 2) continue;
    const std::int64_t bytes = queue_bytes(threads, most, kThreadElements);
    return {true, static_cast<int>(threads), 1, kThreadElements, most, bytes};
  }
  return {};
}

bool is_read_once(const ForwardProblem& p, const ForwardBuffers& b) {
  return is_read_once(kForwardLadder, "registers", p, b);
}
bool is_read_once(const BackwardProblem& p, const BackwardBuffers& b) {
  return is_read_once(kBackwardLadder, "persistent", p, b);
}

// Count, mean and squares of each piece.
std::int64_t split_bytes(const ForwardProblem& p) {
  return tile::split_bytes(p.rows, p.cols, tile::size_bytes(p.type), 3 * sizeof(float));
}

}  // namespace layernorm
