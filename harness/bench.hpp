// Times of a chapter's steps, beside the copies that are their ceiling.
#pragma once

#include <string>
#include <vector>

#include "harness/chapter.hpp"
#include "harness/results.hpp"

namespace tile {

/// Times steps of a chapter on one problem, in turn with two copies of as many bytes, and prints a
/// line for each: time, TB/s, a bar, the share of the faster copy. Bursts only, or sustained load
/// as well. Adds a row for each to `results`.
Status time_steps(const Chapter& chapter, Workload& workload, const std::vector<std::size_t>& steps,
                  bool sustained_too, std::vector<Result>* results);

/// This machine, for the rows.
Origin origin(const std::string& commit);

}  // namespace tile
