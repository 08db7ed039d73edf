#include "harness/chapter.hpp"

#include <algorithm>

namespace tile {
namespace {

std::vector<const Chapter*>& registry() {
  static std::vector<const Chapter*> chapters;
  return chapters;
}

}  // namespace

const std::vector<const Chapter*>& chapters() { return registry(); }

RegisterChapter::RegisterChapter(const Chapter& chapter) {
  auto& all = registry();
  auto after = [](const Chapter* a, const Chapter* b) { return a->name < b->name; };
  all.insert(std::upper_bound(all.begin(), all.end(), &chapter, after), &chapter);
}

}  // namespace tile
