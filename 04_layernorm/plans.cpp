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

BlockPlan block_plan(const BackwardProblem& p, const tile::Device& device) {
  constexpr std::int64_t kWarp = 32;
  const auto element = static_cast<std::int64_t>(tile::size_bytes(p.type));
  auto queue_bytes = [&](std::int64_t threads, int max_threads) {
    return 2 * (rows_ahead(max_threads) + 1) * threads * kThreadElements * element;
  };
  const std::int64_t limit = device.shared_bytes_of_block - BlockPlan::kStaticBytes;
  // For a warp's row there is room for its sums afterwards: of no more bytes.
  if (p.cols <= kWarp * kThreadElements && queue_bytes(kKeeping, kKeeping) <= limit) {
    return {true, kKeeping, kKeeping, true, queue_bytes(kKeeping, kKeeping)};
  }
  const std::int64_t threads =
      (p.cols + kThreadElements * kWarp - 1) / (kThreadElements * kWarp) * kWarp;
  for (const int most : {kKeeping, kRecomputing}) {
    if (threads > most || queue_bytes(threads, most) > limit) continue;
    if (most == kRecomputing && element != 2) continue;
    return {true, static_cast<int>(threads), most, false, queue_bytes(threads, most)};
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
