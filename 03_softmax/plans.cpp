// How a block shares a row, for the steps that need to know it of one another.
#include "softmax.hpp"
#include "team_plan.hpp"

namespace softmax {
namespace {

template <class Problem>
BlockPlan block_plan(const Problem& p, int matrices, bool whole) {
  const std::int64_t all = chunks_of(p, whole);
  const int chunks = all > 4 * BlockPlan::kMaxThreads || !is_plain(p) || !whole ? 8 : 4;
  const std::int64_t threads = (all + chunks * 32 - 1) / (chunks * 32) * 32;
  return {threads, matrices * threads * chunks * 16, chunks};
}

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

BlockPlan block_plan(const ForwardProblem& p, bool whole) { return block_plan(p, 1, whole); }

BlockPlan block_plan(const BackwardProblem& p, bool whole) { return block_plan(p, 2, whole); }

bool is_faster_read_once(const ForwardProblem& p, const ForwardBuffers& b) {
  return p.cols * tile::size_bytes(p.type) <= 1024 * 1024 &&
         is_read_once(kForwardLadder, "registers", p, b);
}
bool is_faster_read_once(const BackwardProblem& p, const BackwardBuffers& b) {
  return is_read_once(kBackwardLadder, "registers", p, b);
}

// A row's maximum and sum, as each block has them; backward a sum.
std::int64_t split_bytes(const ForwardProblem& p) {
  return is_empty(p) ? 0 : team_workspace_bytes(2 * sizeof(float));
}
std::int64_t split_bytes(const BackwardProblem& p) {
  return is_empty(p) ? 0 : team_workspace_bytes(sizeof(float));
}

}  // namespace softmax
