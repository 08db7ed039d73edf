// The command line of ./tour's program.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "harness/chapter.hpp"

namespace tile {

/// The command line makes no sense. The message lists what would.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Request {
  std::string command = "tour";
  const Chapter* chapter = nullptr;    // null: all
  const LadderInfo* ladder = nullptr;  // null: all of the chapter
  std::optional<std::size_t> step;     // nothing: all
  std::vector<std::int64_t> size;      // empty: the chapter's own
  std::optional<DType> type;           // nothing: fp32, and for bench the chapter's own
  std::string json;                    // bench: a results file to merge into; empty for none
  std::string commit;                  // bench: what the rows say they were measured at
  bool why = false;                    // bench: say which limit each time is near
  bool compare = false;                // run: the chapter's side_by_side
  std::string folder;                  // the program's
};

/// Reads the command line. Throws UsageError.
Request parse_arguments(int count, char** arguments);

}  // namespace tile
