// Results of likely mistakes: what an exercise's check holds a wrong answer against.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "harness/compare.hpp"

namespace tile {

struct Mistake {
  std::string_view explanation;  ///< "this is x + y: alpha is not used"
  Expected result;               ///< the result of a kernel with this mistake
};

/// The explanation of the first mistake that gives exactly what was got, on a line of its own;
/// empty if none does. A mistake that makes no difference on these inputs explains nothing: hold
/// only wrong results against it.
inline std::string explain_mistake(std::span<const double> got, std::span<const Mistake> mistakes) {
  for (const Mistake& mistake : mistakes) {
    if (!got.empty() && compare("", got, mistake.result).ok()) {
      return "\nHint: " + std::string(mistake.explanation);
    }
  }
  return {};
}

}  // namespace tile
