// From addresses in the program's text to lines of source, by addr2line, which comes with every
// compiler. It is used for reports only, so its time does not matter.
#include <dlfcn.h>

#include <array>
#include <compare>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checker.hpp"

namespace cpu_device::check {
namespace {

struct Where {
  uintptr_t pc = 0;  // a return address
  Place call = 0;    // the call of the function in which pc is
  Place wait = 0;    // for a write by cp.async
  auto operator<=>(const Where&) const = default;
};
std::vector<Where> places(1);  // a place is its number here; each is there once

Place number_of(const Where& where) {
  static std::array<Place, 4096> recent{};
  Place& place = recent[(where.pc ^ where.call * 0x9e3779b1u) % recent.size()];
  if (places[place] == where) return place;
  static std::map<Where, Place> all;
  const auto [entry, is_new] = all.try_emplace(where, static_cast<Place>(places.size()));
  if (is_new) places.push_back(where);
  return place = entry->second;
}

std::string_view without_root(std::string_view file) {
  constexpr std::string_view kRoot = CPU_DEVICE_ROOT "/";
  if (file.starts_with(kRoot)) file.remove_prefix(kRoot.size());
  return file;
}

// Whether a line of addr2line lies in the headers of the CPU device, or in those of instructions:
// then the line that calls them is reported.
bool is_ours(std::string_view line) {
  return line.find("cpu_device/include/") != line.npos || line.find("tile/ptx/") != line.npos;
}

// A helper's line says little without the kernel's, and kernels stand in .cu files.
std::string look_up(Place place) {
  // Kernels and runtime are linked into one module.
  Dl_info module{};
  if (dladdr(reinterpret_cast<void*>(places[place].pc), &module) == 0 || !module.dli_fname) {
    return "?";
  }
  std::string command = std::string("addr2line -i -e '") + module.dli_fname + "'";
  for (; place != 0; place = places[place].call) {
    // The address given is that after the call.
    char address[32];
    std::snprintf(address, sizeof address, " 0x%zx",
                  places[place].pc - 1 - reinterpret_cast<uintptr_t>(module.dli_fbase));
    command += address;
  }
  std::FILE* pipe = popen((command + " 2>/dev/null").c_str(), "r");
  if (!pipe) return "?";
  // One line for each function that was inlined there, the innermost first.
  std::string found, caller;
  char buffer[4096];
  while (std::fgets(buffer, sizeof buffer, pipe)) {
    std::string_view line = buffer;
    line = line.substr(0, line.find_first_of(" \n"));  // "file:line (discriminator 2)"
    if (is_ours(line)) continue;
    if (found.empty()) {
      found = without_root(line);
    } else if (caller.empty() && line.find(".cu:") != line.npos) {
      caller = without_root(line);
    }
  }
  pclose(pipe);
  if (found.empty() || found.starts_with("?")) return "?";
  return caller.empty() ? found : found + ", called at " + caller;
}

}  // namespace

Place place_of(const void* caller) {
  return number_of({reinterpret_cast<uintptr_t>(caller), current_call(), 0});
}

Place with_wait(Place place, Place wait) {
  Where where = places[place];
  where.wait = wait;
  return number_of(where);
}

Place wait_of(Place place) { return places[place].wait; }

bool same_line(Place a, Place b) { return places[a].pc == places[b].pc; }

void function_entered(const void* caller) { current_call() = place_of(caller); }

void function_left() { current_call() = places[current_call()].call; }

const char* source_of(Place place) {
  static std::map<Place, std::string> known;
  const auto [entry, is_new] = known.try_emplace(place);
  if (is_new) entry->second = look_up(place);
  return entry->second.c_str();
}

}  // namespace cpu_device::check
