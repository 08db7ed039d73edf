#include "cpu_device/options.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string_view>

namespace cpu_device {
namespace {

[[noreturn]] void refuse(const char* variable, std::string_view value, const char* expected) {
  std::fprintf(stderr, "%s: '%.*s' is not %s\n", variable, static_cast<int>(value.size()),
               value.data(), expected);
  std::exit(2);
}

template <class T>
bool parse(std::string_view text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

void read_switch(const char* variable, bool* value) {
  const char* text = std::getenv(variable);
  if (!text) return;
  const std::string_view word = text;
  if (word != "on" && word != "off") refuse(variable, word, "on or off");
  *value = word == "on";
}

Options from_environment() {
  Options options;
  if (const char* text = std::getenv("CPU_DEVICE_ORDER")) {
    const std::string_view order = text;
    constexpr std::string_view kRandom = "random:";
    if (order == "reverse") {
      options.order = Order::reverse;
    } else if (order.substr(0, kRandom.size()) == kRandom &&
               parse(order.substr(kRandom.size()), &options.seed)) {
      options.order = Order::random;
    } else if (order != "forward") {
      refuse("CPU_DEVICE_ORDER", order, "forward, reverse or random:SEED");
    }
  }
  if (const char* text = std::getenv("CPU_DEVICE_WORKERS")) {
    if (!parse(text, &options.workers) || options.workers < 1) {
      refuse("CPU_DEVICE_WORKERS", text, "a number of threads, 1 or more");
    }
  }
  if (const char* text = std::getenv("CPU_DEVICE_HANG_SECONDS")) {
    if (!parse(text, &options.hang_seconds) || !(options.hang_seconds > 0)) {
      refuse("CPU_DEVICE_HANG_SECONDS", text, "a number of seconds above 0");
    }
  }
  if (const char* text = std::getenv("CPU_DEVICE_CAPABILITY")) {
    if (!parse(text, &options.capability) ||
        std::ranges::find(kCapabilities, options.capability) == std::end(kCapabilities)) {
      refuse("CPU_DEVICE_CAPABILITY", text, "75, 80, 86, 89 or 90");
    }
  }
  read_switch("CPU_DEVICE_REPORTS", &options.print_reports);
  read_switch("CPU_DEVICE_CLOSED_MEMORY", &options.closed_memory);
  read_switch("CPU_DEVICE_SAME_STORES", &options.same_stores);
  read_switch("CPU_DEVICE_LAUNCHES", &options.print_launches);
  read_switch("CPU_DEVICE_XRAY", &options.xray);
  return options;
}

}  // namespace

Options& options() {
  static Options options = from_environment();
  return options;
}

}  // namespace cpu_device
