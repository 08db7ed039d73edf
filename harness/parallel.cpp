#include "harness/parallel.hpp"

#include <algorithm>
#include <future>
#include <thread>
#include <vector>

namespace tile {

void in_parts(std::size_t count, std::size_t smallest,
              const std::function<void(std::size_t begin, std::size_t end)>& work) {
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

}  // namespace tile
