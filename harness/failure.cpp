#include "harness/failure.hpp"

#include <algorithm>

#include "tile/host/text.hpp"

namespace tile {
namespace {
constexpr std::string_view kCaptured = " := ";
}  // namespace

void Failure::add(std::string_view context) {
  const std::size_t captured = context.find(kCaptured);
  if (captured != context.npos && context.find('\n') == context.npos) {
    where.push_back(std::string(context.substr(0, captured)) + " = " +
                    std::string(context.substr(captured + kCaptured.size())));
  } else {
    said.append(said.empty() ? "" : "\n").append(context);
  }
}

std::string in_words(const Failure& failure) {
  const std::string_view said = failure.said;
  const std::size_t mistake = said.find(kMistake), first = std::min(said.find(kHint), mistake);
  const std::size_t last = mistake == said.npos ? said.rfind(kHint) : mistake;
  const auto same = [](const std::string& text) { return text; };
  std::string words(said.substr(0, first));
  if (!failure.where.empty()) words += "\n  where " + joined(failure.where, same);
  for (const std::string& input : failure.inputs) words += "\n  with " + input;
  return words.append(last == said.npos ? "" : said.substr(last));
}

}  // namespace tile
