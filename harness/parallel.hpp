// Loops over elements on all cores of the host.
#pragma once

#include <algorithm>
#include <cstddef>
#include <future>
#include <thread>
#include <vector>

namespace tile {

/// Calls work(begin, end) for parts that together are [0, count), at the same time, and waits for
/// all. A part has at least `smallest` indices, so few of them stay on this thread. Rethrows what
/// `work` threw.
template <class Work>
void in_parts(std::size_t count, std::size_t smallest, const Work& work) {
  // Asked once: the C library reads a file for it.
  static const std::size_t cores = std::max(1u, std::thread::hardware_concurrency());
  const std::size_t parts = std::clamp<std::size_t>(count / smallest, 1, cores);
  auto border = [=](std::size_t part) {
    return count / parts * part + std::min(part, count % parts);
  };
  std::vector<std::future<void>> others;  // their destructors wait, if an exception ends this early
  for (std::size_t part = 1; part < parts; ++part) {
    others.push_back(
        std::async(std::launch::async,
                   [&work, begin = border(part), end = border(part + 1)] { work(begin, end); }));
  }
  work(std::size_t{0}, border(1));
  for (auto& other : others) other.get();
}

/// Of elements so many that starting a thread is worth it.
inline constexpr std::size_t kElementsForAThread = 1 << 16;

}  // namespace tile
