// Loops over elements on all cores of the host.
#pragma once

#include <cstddef>
#include <functional>

namespace tile {

/// Calls work(begin, end) for parts that together are [0, count), at the same time, and waits for
/// all. A part has at least `smallest` indices, so few of them stay on this thread. Rethrows what
/// `work` threw.
void in_parts(std::size_t count, std::size_t smallest,
              const std::function<void(std::size_t begin, std::size_t end)>& work);

/// The number of elements from which on starting a thread is worth it.
inline constexpr std::size_t kElementsForAThread = 1 << 16;

}  // namespace tile
