// What the C interfaces of the chapters share: arguments across the border, the thread's last
// error, and the choice of a step.
#pragma once

#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "harness/c/tile.h"
#include "harness/step.hpp"
#include "harness/text.hpp"

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

/// Copies `given_bytes` of a caller's struct over `known`, `known_bytes` of zeros. The caller's may
/// be shorter, down to `first_bytes`, its size in the first version; or longer, if zeros follow.
/// Fields that are added have 8 bytes: there must be no padding among them, which nobody sets to 0.
Status copy_struct(const void* given, std::size_t given_bytes, std::size_t first_bytes, void* known,
                   std::size_t known_bytes);

/// The caller's struct in the form that this library knows.
template <class Args>
Status read_arguments(const Args* given, std::size_t first_bytes, Args* known) {
  *known = {};
  if (!given) return invalid_argument("args", "is null");
  return copy_struct(given, given->struct_size, first_bytes, known, sizeof *known);
}

/// Leading dimension 0 says that rows of `cols` elements follow one another.
std::int64_t leading_dimension(std::int64_t given, std::int64_t cols);

/// A matrix of doubles on the host without its padding, and such a matrix back to where it belongs.
std::vector<double> packed(const void* data, std::int64_t rows, std::int64_t cols, std::int64_t ld);
void unpack(const std::vector<double>& packed, std::int64_t rows, std::int64_t cols,
            std::int64_t ld, void* data);

/// References compute in double.
Status check_reference_type(DType type);

Status read_type(tile_type given, DType* type);
Status read_flag(const char* argument, std::int32_t given, bool* flag);

// ---- Steps ----

/// Makes a chapter known when the library is loaded; `name` is its folder.
struct RegisterChapter {
  RegisterChapter(std::string_view name, std::string_view title, std::vector<StepInfo> steps);
};

/// For tile_last_step().
void set_last_step(std::string_view name) noexcept;

/// The body of an operation: guarded, and without a step until launch_step() succeeds.
template <class Body>
tile_status operation(Body body) noexcept {
  set_last_step("");
  return guarded(body);
}

/// Whether the step takes the problem on this device.
template <class Step, class Problem>
Status check_step(const Step& step, const Problem& problem) {
  if (Status s = check_requirements(step.types, step.needs, problem.type); !s.ok()) return s;
  return step.supports(problem);
}

/// Finds the step of this name, or for NULL the last that takes the problem on this device.
template <class Table, class Problem, class Step>
Status find_step(const Table& table, const char* name, const Problem& problem, const Step** found) {
  if (!name) {
    Status why;
    for (auto step = std::rbegin(table); step != std::rend(table); ++step) {
      Status here = check_step(*step, problem);
      if (here.ok()) {
        *found = &*step;
        return {};
      }
      if (why.ok()) why = std::move(here);  // of the best that there could be
    }
    return why;
  }
  for (const Step& step : table) {
    if (step.name != name) continue;
    *found = &step;
    return check_step(step, problem);
  }
  return invalid_argument("step", "'" + std::string(name) + "' is not one of " +
                                      joined(table, [](const Step& step) { return step.name; }));
}

/// What every operation does once it has its problem.
template <class Table, class Problem, class Buffers>
Status launch_step(const Table& table, const char* name, const Problem& problem,
                   const Buffers& buffers, void* stream) {
  const auto* step = std::data(table);
  if (Status s = find_step(table, name, problem, &step); !s.ok()) return s;
  Status launched = step->launch(problem, buffers, stream);
  if (launched.ok()) set_last_step(step->name);
  return launched;
}

}  // namespace tile::c
