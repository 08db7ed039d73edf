// Shared by the C interfaces of the chapters: the checks of a caller's arguments, the thread's last
// error, and the choice of a step.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "harness/c/tile.h"
#include "tile/host/step.hpp"
#include "tile/host/text.hpp"

namespace tile::c {

// ---- Status and errors ----

/// Keeps the status for tile_last_error() and gives its code.
tile_status finish(const Status& status) noexcept;

/// The exception being handled, as a Status. To be called in a catch block only.
Status current_exception_status();

/// Runs `body`, which returns a Status, and lets no exception out.
template <class Body>
tile_status guarded(Body body) noexcept {
  try {
    return finish(body());
  } catch (...) {
    return finish(current_exception_status());
  }
}

// ---- Arguments ----

/// Copies the caller's struct if it has the size that this library knows.
template <class Args>
Status read_arguments(const Args* given, Args* known) {
  *known = {};
  if (!given) return invalid_argument("args", "is null");
  if (given->struct_size != sizeof *given) {
    return invalid_argument("struct_size", std::to_string(given->struct_size) + " is not " +
                                               std::to_string(sizeof *given) +
                                               ", the size that this library has");
  }
  *known = *given;
  return {};
}

/// Leading dimension 0 means rows of `cols` elements without gaps.
std::int64_t leading_dimension(std::int64_t given, std::int64_t cols);

/// Copies a matrix of doubles on the host without its padding, and back into the padded matrix.
std::vector<double> packed(const void* data, std::int64_t rows, std::int64_t cols, std::int64_t ld);
void unpack(const std::vector<double>& packed, std::int64_t rows, std::int64_t cols,
            std::int64_t ld, void* data);

/// References compute in double.
Status check_reference_type(DType type);

Status read_type(tile_type given, DType* type);
Status read_flag(const char* argument, std::int32_t given, bool* flag);

// ---- Steps ----

/// Registers a ladder of a chapter when the library is loaded; `name` is the chapter's folder. A
/// chapter's list of steps has each name once, from its first ladder that has it.
struct RegisterLadder {
  RegisterLadder(std::string_view name, std::string_view title, std::vector<StepInfo> steps);
};

/// For tile_last_step().
void set_last_step(std::string_view name) noexcept;

/// The body of an operation: guarded, and without a step until launch_step() succeeds.
template <class Body>
tile_status operation(Body body) noexcept {
  set_last_step("");
  return guarded(body);
}

/// Finds the step of this name; for NULL the last one, from which choose() looks for the best.
template <class Ladder>
Status find_step(const Ladder& ladder, const char* name, std::size_t* found) {
  *found = name ? find_step(ladder, name) : ladder.steps.size() - 1;
  if (*found < ladder.steps.size()) return {};
  return invalid_argument("step", "'" + std::string(name) + "' is not one of " +
                                      joined(ladder.steps, [](const auto& s) { return s.name; }));
}

/// Finds the step that runs a valid problem that is not empty: `wanted` or an earlier one if
/// `name`d, else the best.
template <class Ladder, class... Arguments>
Status choose(const Ladder& ladder, const char* name, std::size_t wanted, const Arguments&... of,
              Choice* choice) {
  return name ? choose_step(ladder, wanted, of..., choice) : choose_last(ladder, of..., choice);
}

/// Shared by all operations: validates the problem, finds the step and the one that runs instead if
/// necessary, and launches it unless there is nothing to compute. `of` is the problem with its
/// buffers.
template <class Ladder, class... Arguments>
Status launch_step(const Ladder& ladder, const char* name, void* stream, const Arguments&... of) {
  TILE_TRY(ladder.validate(of...));
  Choice choice;
  TILE_TRY(find_step(ladder, name, &choice.step));
  if (!ladder.is_empty(first(of...))) {
    TILE_TRY((choose<Ladder, Arguments...>(ladder, name, choice.step, of..., &choice)));
    TILE_TRY(ladder.steps[choice.step].launch(of..., stream));
  }
  set_last_step(ladder.steps[choice.step].name);
  return {};
}

/// Reports the workspace of the step that runs the call if it gets one: of the one that is named or
/// of an earlier one, or of the best. Null pointers count as aligned.
template <class Ladder, class... Arguments>
Status tell_workspace_bytes(const Ladder& ladder, const char* name, const Arguments&... of,
                            std::int64_t* bytes) {
  Choice choice;
  TILE_TRY(find_step(ladder, name, &choice.step));
  if (ladder.is_empty(first(of...))) return {};
  TILE_TRY((choose<Ladder, Arguments...>(ladder, name, choice.step, of..., &choice)));
  *bytes = workspace_bytes_of(ladder.steps[choice.step], first(of...));
  return {};
}

}  // namespace tile::c
