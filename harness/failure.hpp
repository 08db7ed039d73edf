// The report of one failed check.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tile {

/// What an explanation begins with. A hint is a guess, and gives way to what the check build finds.
/// A mistake is what a check knows from the result itself: it is told alone.
inline constexpr std::string_view kHint = "\nHint: ", kMistake = "\nMistake: ";

struct Failure {
  std::vector<std::string> inputs;  ///< "x = 1 2 3": those small enough to be shown
  std::vector<std::string> where;   ///< "n = 97": what was captured around the check
  std::string said;                 ///< what the check said, hints included

  /// Adds what stands around a failed check: a captured value ("n := 97") or a message.
  void add(std::string_view context);
};

/// The words for it: what the check said, where, and with which inputs, and one explanation: the
/// mistake, or the last hint. An exercise's check knows more than the comparison that spoke before.
std::string in_words(const Failure& failure);

}  // namespace tile
