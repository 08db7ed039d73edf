// How many threads share a row that begins anywhere, and how many words of 4 bytes each has.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "tile/host/dtype.hpp"
#include "tile/host/row_plan.hpp"

namespace tile {

// snippet-begin plan
/// Calls `launch` with three constants: the threads of a row of `cols` columns, the words of each,
/// and `plain`. Few threads with many words are faster than many with few, so long rows have kWords
/// a thread, as many as registers hold; a row has kMostThreads at most. Problems with options have
/// only two plans: options are seldom used, and each plan is a kernel.
template <int kWords, int kMostThreads, class Launch>
Status with_word_plan(DType type, std::int64_t cols, bool plain, Launch launch) {
  const std::int64_t words = cols * static_cast<std::int64_t>(size_bytes(type)) / 4;
  const auto plan = [&]<int kThreads, int kOfThread>(auto is_plain) {
    return launch(std::integral_constant<int, kThreads>{}, std::integral_constant<int, kOfThread>{},
                  is_plain);
  };
  constexpr std::true_type yes{};
  constexpr std::false_type no{};
  constexpr int kLanes = 512 / kWords;  // a warp, or two
  if (words > kMostThreads * kWords) {
    return unsupported("cols", std::to_string(cols) + " are more than registers hold in words");
  }
  if (!plain) {
    return words <= 32 * 9 ? plan.template operator()<32, 9>(no)
                           : plan.template operator()<kMostThreads, kWords>(no);
  }
  if (words <= 16 * 4) return plan.template operator()<16, 4>(yes);
  if (words <= 16 * 9) return plan.template operator()<16, 9>(yes);
  if (words <= 32 * 9) return plan.template operator()<32, 9>(yes);
  if constexpr (kWords > 13) {
    if (words <= 32 * 13) return plan.template operator()<32, 13>(yes);
  }
  if constexpr (kLanes > 32) {
    if (words <= kLanes * kWords) return plan.template operator()<kLanes, kWords>(yes);
  }
  if (words <= 2 * kLanes * kWords) return plan.template operator()<2 * kLanes, kWords>(yes);
  if (words <= 4 * kLanes * kWords) return plan.template operator()<4 * kLanes, kWords>(yes);
  if constexpr (kMostThreads > 8 * kLanes) {
    if (words <= 8 * kLanes * kWords) return plan.template operator()<8 * kLanes, kWords>(yes);
  }
  return plan.template operator()<kMostThreads, kWords>(yes);
}
// snippet-end plan

/// Whether there is such a plan.
template <int kWords, int kMostThreads>
Status check_word_plan(DType type, std::int64_t cols) {
  return with_word_plan<kWords, kMostThreads>(type, cols, false, [](auto...) { return Status{}; });
}

/// Whether each row begins alike in two matrices: in both at a word, or in both an element before
/// one. If not, the Status names the argument of the second matrix that is in the way.
inline Status check_words_alike(DType type, const void* data, std::int64_t ld,
                                std::string_view name, const void* other, std::string_view ld_name,
                                std::int64_t other_ld) {
  if (size_bytes(type) == 4) return {};
  if ((ld - other_ld) % 2 != 0) {
    return unsupported(ld_name, std::to_string(other_ld) + " and " + std::to_string(ld) +
                                    " differ by half a word");
  }
  const auto bits =
      reinterpret_cast<std::uintptr_t>(data) ^ reinterpret_cast<std::uintptr_t>(other);
  if (bits % 4 != 0) return unsupported(name, "begins with another half of a word");
  return {};
}

}  // namespace tile
