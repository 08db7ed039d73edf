// From an address in the program's text to a line of source, by addr2line, which comes with every
// compiler. Only a report asks, so that its time does not matter.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checker.hpp"

namespace cpu_device::check {
namespace {

// Kernels and runtime are linked into one module, of less than 2 GiB: 32 bits are enough for the
// distance from any place in it.
void base() {}

std::string_view without_root(std::string_view file) {
  constexpr std::string_view kRoot = CPU_DEVICE_ROOT "/";
  if (file.starts_with(kRoot)) file.remove_prefix(kRoot.size());
  return file;
}

// Whether a line of addr2line lies in the headers of the CPU device, or in those of instructions:
// whoever calls them is meant.
bool is_ours(std::string_view line) {
  return line.find("cpu_device/include/") != line.npos || line.find("tile/ptx/") != line.npos;
}

std::string look_up(uintptr_t pc) {
  Dl_info module{};
  if (dladdr(reinterpret_cast<void*>(pc), &module) == 0 || !module.dli_fname) return "?";
  // The address given is behind the call.
  const uintptr_t offset = pc - 1 - reinterpret_cast<uintptr_t>(module.dli_fbase);
  char command[4096];
  if (std::snprintf(command, sizeof command, "addr2line -i -e '%s' 0x%zx 2>/dev/null",
                    module.dli_fname, static_cast<size_t>(offset)) >= int{sizeof command}) {
    return "?";
  }
  std::FILE* pipe = popen(command, "r");
  if (!pipe) return "?";
  // One line for each function that was inlined there, the innermost first.
  std::string place, caller;
  char buffer[4096];
  while (std::fgets(buffer, sizeof buffer, pipe)) {
    std::string_view line = buffer;
    line = line.substr(0, line.find_first_of(" \n"));  // "file:line (discriminator 2)"
    if (is_ours(line)) continue;
    line = without_root(line);
    std::string& target = place.empty() ? place : caller;
    if (target.empty()) target = line;
  }
  pclose(pipe);
  if (place.empty() || place.starts_with("?")) return "?";
  // A helper's line says little without the kernel's.
  if (!caller.empty()) place += ", called at " + caller;
  return place;
}

// Of accesses by cp.async: each line of a kernel with each of its waits, so that there are few.
std::vector<Places> places_of_copies;

}  // namespace

int32_t to_place(uintptr_t pc) {
  return static_cast<int32_t>(pc - reinterpret_cast<uintptr_t>(&base));
}
uintptr_t from_place(int32_t place) {
  return reinterpret_cast<uintptr_t>(&base) + static_cast<uintptr_t>(intptr_t{place});
}

int32_t to_place(const Access& access) {
  if (!access.copies) return to_place(access.pc);
  static size_t latest = 0;  // most often it is this one
  const auto is_it = [&](const Places& places) {
    return places.access == access.pc && places.wait == access.wait;
  };
  if (latest >= places_of_copies.size() || !is_it(places_of_copies[latest])) {
    const auto found = std::ranges::find_if(places_of_copies, is_it);
    latest = static_cast<size_t>(found - places_of_copies.begin());
    if (found == places_of_copies.end()) places_of_copies.push_back({access.pc, access.wait});
  }
  return static_cast<int32_t>(latest);
}

Places places_of(const Stamp& stamp) {
  if (stamp.copied) return places_of_copies[static_cast<size_t>(stamp.place)];
  return {from_place(stamp.place), 0};
}

const char* source_of(uintptr_t pc) {
  static std::map<uintptr_t, std::string> known;
  const auto [entry, is_new] = known.try_emplace(pc);
  if (is_new) entry->second = look_up(pc);
  return entry->second.c_str();
}

}  // namespace cpu_device::check
