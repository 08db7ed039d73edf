// Calls of all operations with hostile sizes, lengths, strides and pointers. A call is
// drawn from a seed and its number, and a line says what it is:
//
//     tile_c_fuzz [--seed=N] [--first=N] [--calls=N] [--operation=NAME] [--show]
//
// The seed is that of the environment's TILE_FUZZ_SEED, or 1. `--seed=7 --first=1234 --calls=1` is
// the call 7:1234 again; --show prints each call, and how long each operation took.
//
// Every eighth call has a twin, which another thread makes at the same time: the same call in other
// memory, or of another size where a kernel must ask for shared memory.
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <thread>

#include "harness/c/fuzz_operations.hpp"

namespace fuzz {
namespace {

constexpr std::int64_t kTwins = 8;  // one call of so many has one

// The calls under way, for a signal that ends the process.
char current[8192];
void tell_call(int signal) {
  static_cast<void>(!write(STDERR_FILENO, current, std::strlen(current)));
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

// Makes both calls, and begins them at the same time.
void call_together(Call* one, Call* other) {
  std::atomic<int> ready = 0;
  const auto call = [&ready](Call* of) {
    ++ready;
    while (ready < 2) continue;
    of->call();
  };
  std::thread thread(call, other);
  call(one);
  thread.join();
}

struct Options {
  std::int64_t seed = 1, first = 0, calls = 1000, show = 0;
  std::string operation = "";
};

int run(const Options& options) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  std::vector<Operator> all = matrices();
  for (const std::vector<Operator>& more : {positions(), attentions()}) {
    all.insert(all.end(), more.begin(), more.end());
  }
  std::int64_t faults = 0, made = 0;
  std::map<std::string, std::pair<std::int64_t, double>> seconds;
  for (std::int64_t number = options.first; number < options.first + options.calls; ++number) {
    const bool has_twin = number % kTwins == kTwins - 1;
    Draw draws[] = {{options.seed, number, has_twin, 0}, {options.seed, number, has_twin, 1}};
    const Operator& operation = all[static_cast<std::size_t>(draws[0].below(std::ssize(all)))];
    if (!options.operation.empty() && options.operation != operation.name) continue;
    draws[1].below(1);

    const std::string begin = std::to_string(options.seed) + ":" + std::to_string(number) + " ";
    std::string lines;
    alarm(120);
    const auto before = Clock::now();
    std::vector<Made> calls;
    for (Draw& draw : std::span(draws, has_twin ? 2 : 1)) {
      const auto tell = [&](const std::string& text) {
        std::snprintf(current, sizeof current, "%s%s%s\nthe process ended there\n", lines.c_str(),
                      begin.c_str(), text.c_str());
      };
      tell(operation.name);
      calls.push_back(operation.make(draw));
      lines += begin + calls.back()->prepare(tell) + "\n";
    }
    if (has_twin)
      call_together(calls[0].get(), calls[1].get());
    else
      calls[0]->call();
    Names wrong;
    for (const Made& call : calls) {
      for (const std::string& each : call->judge()) wrong.push_back(each);
    }
    auto& [count, time] = seconds[operation.name];
    ++count, time += std::chrono::duration<double>(Clock::now() - before).count();
    ++made;
    if (options.show || !wrong.empty()) std::printf("%s", lines.c_str());
    for (const std::string& each : wrong) std::printf("    %s\n", each.c_str());
    faults += wrong.empty() ? 0 : 1;
  }
  if (options.show) {
    for (const auto& [name, of] : seconds) {
      std::printf("%8.3f ms x %6lld  %s\n", 1e3 * of.second / static_cast<double>(of.first),
                  static_cast<long long>(of.first), name.c_str());
    }
  }
  std::printf("seed %lld: %lld calls, %lld with a fault, %.1f s\n",
              static_cast<long long>(options.seed), static_cast<long long>(made),
              static_cast<long long>(faults),
              std::chrono::duration<double>(Clock::now() - start).count());
  return faults == 0 && made > 0 ? 0 : 1;
}

}  // namespace
}  // namespace fuzz

int main(int count, char** arguments) {
  fuzz::Options options;
  const auto read = [](std::string_view text, std::int64_t* number) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
    return error == std::errc{} && end == text.data() + text.size() && *number >= 0;
  };
  if (const char* seed = std::getenv("TILE_FUZZ_SEED"); seed && !read(seed, &options.seed)) {
    std::fprintf(stderr, "TILE_FUZZ_SEED: '%s' is no number\n", seed);
    return 2;
  }
  for (int i = 1; i < count; ++i) {
    const std::string_view text = arguments[i];
    const std::size_t equals = text.find('=');
    const std::string_view name = text.substr(0, equals);
    const std::string_view value = equals == text.npos ? "1" : text.substr(equals + 1);
    bool is_known = true;
    if (name == "--operation")
      options.operation = value;
    else if (name == "--seed")
      is_known = read(value, &options.seed);
    else if (name == "--first")
      is_known = read(value, &options.first);
    else if (name == "--calls")
      is_known = read(value, &options.calls);
    else if (name == "--show")
      is_known = read(value, &options.show);
    else
      is_known = false;
    if (is_known) continue;
    std::fprintf(stderr, "%s [--seed=N] [--first=N] [--calls=N] [--operation=NAME] [--show]\n",
                 arguments[0]);
    return 2;
  }
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM}) {
    std::signal(signal, fuzz::tell_call);
  }
  return fuzz::run(options);
}
