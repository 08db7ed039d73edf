// How many threads share a row, and how many elements each of them holds in registers.
#pragma once

#include <cstdint>
#include <type_traits>

#include "tile/host/dtype.hpp"
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
  int end_lanes = 0;  // that have the row's ends (tile::RowEnds); 0 if it has none

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

// snippet-begin ends
/// The plan for rows that begin anywhere, in chunks and ends (tile::RowEnds). A thread of a
/// plain kernel has as many elements in chunks as in plan_row(), but 24 where eight lanes share a
/// row. Then the row has the fewest threads that hold it, and each of them no more than it needs.
/// `fewest_lanes` is 8 or 16. With options there are two plans only, since each is a kernel.
inline RowPlan plan_ends(DType type, std::int64_t cols, bool plain, int fewest_lanes,
                         int max_elements) {
  const auto width = static_cast<std::int64_t>(16 / size_bytes(type));
  cols = (cols / width - 1) * width;  // those in whole chunks
  for (int lanes = plain ? fewest_lanes : 32; lanes <= 32; lanes *= 2) {
    const int most = !plain ? 16 : lanes == 8 ? 24 : 32;
    const auto needed = static_cast<int>((cols + 8 * lanes - 1) / (8 * lanes) * 8);
    if (needed <= most) return {true, true, plain, true, lanes, plain ? needed : most, lanes};
  }
  const std::int64_t most = plain ? max_elements : 8;
  const std::int64_t threads = (cols + most * 32 - 1) / (most * 32) * 32;
  const auto needed = static_cast<int>((cols + 8 * threads - 1) / (8 * threads) * 8);
  return {threads <= kMaxThreadsPerBlock, true,   plain, false,
          static_cast<int>(threads),      needed, 32};
}
// snippet-end ends

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

/// Calls `launch` with that one of the numbers, as a constant, which `value` is: the last of them,
/// if it is no other.
template <int kFirst, int... kOthers, class Launch>
Status with_one_of(int value, Launch launch) {
  if constexpr (sizeof...(kOthers) > 0) {
    if (value != kFirst) return with_one_of<kOthers...>(value, launch);
  }
  return launch(std::integral_constant<int, kFirst>{});
}

/// with_plan() for rows that may begin anywhere, with a fifth constant: the lanes that have ends.
template <class T, int kFewestLanes, int kMaxElements, class Launch>
Status with_any_plan(const RowPlan& plan, Launch launch) {
  constexpr std::true_type yes{};
  constexpr std::false_type no{};
  constexpr std::integral_constant<int, 16 / sizeof(T)> vector{};
  constexpr std::integral_constant<int, 8> eight{};
  constexpr std::integral_constant<int, 16> sixteen{};
  constexpr std::integral_constant<int, 32> warp{};
  if (plan.end_lanes == 0) {
    return with_plan<T, kMaxElements>(plan, [&](auto... constants) {
      return launch(constants..., std::integral_constant<int, 0>{});
    });
  }
  if (!plan.plain) {
    return plan.several_rows ? launch(vector, sixteen, yes, no, warp)
                             : launch(vector, eight, no, no, warp);
  }
  const auto plain = [&](auto several_rows, auto lanes) {
    return [=](auto elements) { return launch(vector, elements, several_rows, yes, lanes); };
  };
  constexpr int kFewer = kMaxElements == 32 ? 24 : kMaxElements;
  if (!plan.several_rows) {
    return with_one_of<kFewer, kMaxElements>(plan.elements, plain(no, warp));
  }
  if (plan.threads == 32) return with_one_of<24, 32>(plan.elements, plain(yes, warp));
  if constexpr (kFewestLanes == 8) {
    if (plan.threads == 8) return with_one_of<8, 16, 24>(plan.elements, plain(yes, eight));
  }
  constexpr int kFirst = kFewestLanes == 8 ? 16 : 8;  // 8 lanes have what 16 would have 8 of
  return with_one_of<kFirst, 16, 24, 32>(plan.elements, plain(yes, sixteen));
}

}  // namespace tile
