// Times of a chapter's steps, beside their ceiling and their peers.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "harness/chapter.hpp"
#include "harness/measure.hpp"
#include "harness/results.hpp"

namespace tile {

/// Times steps of a chapter and `peers` of the workload on one problem, beside the ceiling: two
/// copies of as many bytes, which then are the peer, or independent multiply-adds, if the problem
/// has operations(). Prints a line for each: time, TB/s or TFLOP/s, a bar, the share of the
/// ceiling, the ratio to each peer. Bursts only, or sustained load as well. Adds rows to `results`.
///
/// The last step and the peers alternate, execution by execution; plan() says which other steps are
/// timed apart, right after them.
Status time_steps(const Chapter& chapter, const LadderInfo& ladder, Workload& workload,
                  const std::vector<std::size_t>& steps, const std::vector<Peer>& peers,
                  bool sustained_too, std::vector<Result>* results);

/// Which limit of the card a time is near, given how long memory and arithmetic alone would take;
/// arithmetic is 0 for a problem whose operations are not counted. `next` are commands that look
/// further, for a time that is near none.
std::string nearest_limit(double milliseconds, double memory, double arithmetic,
                          const std::string& next);

/// Prints for each step of `rows`, those of short bursts on this problem, which limit its time is
/// near: the roofline, with the copy and the multiply-adds that this card reaches now.
Status explain_times(const Chapter& chapter, const LadderInfo& ladder, const Workload& workload,
                     std::span<const Result> rows);

/// Times a step in turn with the one that runs instead of `before` on the same problem, both as
/// short bursts, or once if one of them takes 20 ms. In words: "0.131 ms 4.10 TB/s 1.9 x step 4";
/// or why it could not be timed.
std::string time_beside(Workload& workload, std::size_t step, std::size_t before);

/// A peer and what it took.
struct TimedPeer {
  std::string name;
  Timing timing;
};

/// The rows of a step that took `timing`: one for each peer, or one without. `ceiling` is in the
/// unit of the rows, TB/s or TFLOP/s.
std::vector<Result> rows(const Chapter& chapter, const StepInfo& step, const Workload& workload,
                         Duty duty, const Timing& timing, double ceiling,
                         const std::vector<TimedPeer>& peers);

/// This machine, for the rows.
Origin origin(const std::string& commit);

}  // namespace tile
