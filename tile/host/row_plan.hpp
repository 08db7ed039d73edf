// How many threads share a row, and how many elements each of them holds in registers.
#pragma once

#include <cstdint>
#include <type_traits>

#include "tile/host/status.hpp"

namespace tile {

inline constexpr int kMaxThreadsPerBlock = 1024;   // on every card
inline constexpr int kThreadsOfSeveralRows = 128;  // of a block that has several rows

/// The threads of a row and the elements of each.
struct RowPlan {
  bool fits;          // whether so many threads hold so many elements
  bool vectors;       // 16 bytes with an instruction; otherwise element by element
  bool plain;         // by a kernel without options: vectors only
  bool several_rows;  // in a block: a row has part of a warp
  int threads;        // of a row: a power of two up to 32, or whole warps
  int elements;       // of each thread

  /// Rows of a block.
  int rows() const { return several_rows ? kThreadsOfSeveralRows / threads : 1; }
};

// snippet-begin plan
/// The plan for rows of `cols` elements. A thread of a plain kernel holds up to 32 of them, or
/// `max_elements` in rows longer than a warp's. Any other kernel's thread holds 8, or 16 where a
/// warp holds the row, so that there are registers for the options, 1,024 threads having 64 each.
inline RowPlan plan_row(std::int64_t cols, bool vectors, bool plain, int max_elements) {
  plain = plain && vectors;
  for (const int elements : {8, 16, 32}) {
    if (cols > 32 * elements || (elements == 32 && !plain)) continue;
    int threads = 1;
    while (threads * elements < cols) threads *= 2;
    return {true, vectors, plain, true, threads, elements};
  }
  const int elements = plain ? max_elements : 8;
  const std::int64_t threads = (cols + elements * 32 - 1) / (elements * 32) * 32;
  return {threads <= kMaxThreadsPerBlock, vectors, plain, false,
          static_cast<int>(threads),      elements};
}
// snippet-end plan

/// Calls `launch` with the plan as constants: the elements of a chunk, those of a thread, whether a
/// block has several rows, and whether the kernel is plain.
template <class T, int kMaxElements, class Launch>
Status with_plan(const RowPlan& plan, Launch launch) {
  constexpr std::true_type yes{};
  constexpr std::false_type no{};
  constexpr std::integral_constant<int, 1> single{};
  constexpr std::integral_constant<int, 16 / sizeof(T)> vector{};
  constexpr std::integral_constant<int, 8> few{};
  constexpr std::integral_constant<int, 16> half{};
  auto with_options = [&](auto width) {
    if (!plan.several_rows) return launch(width, few, no, no);
    return plan.elements == 8 ? launch(width, few, yes, no) : launch(width, half, yes, no);
  };
  if (!plan.vectors) return with_options(single);
  if (!plan.plain) return with_options(vector);
  if (!plan.several_rows) {
    return launch(vector, std::integral_constant<int, kMaxElements>{}, no, yes);
  }
  switch (plan.elements) {
    case 8: return launch(vector, few, yes, yes);
    case 16: return launch(vector, half, yes, yes);
    default: return launch(vector, std::integral_constant<int, 32>{}, yes, yes);
  }
}

}  // namespace tile
