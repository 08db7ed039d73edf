#include "source_lines.hpp"

#include <dlfcn.h>
#include <execinfo.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string_view>

namespace cpu_device {
namespace {

std::string_view without(std::string_view file, const std::string& folder) {
  if (file.starts_with(folder)) file.remove_prefix(folder.size());
  return file;
}

// A word of the shell.
std::string quoted(std::string_view text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

// Whether a line of addr2line lies in the CPU device, in the headers of instructions or in those of
// the system: the caller is meant.
bool is_passed_over(std::string_view line) {
  return line.starts_with("?") || line.ends_with(":?") || line.starts_with("/usr/include/") ||
         line.starts_with("/usr/lib/") || line.find("/include/c++/") != line.npos ||
         line.find("cpu_device/include/") != line.npos ||
         line.find("cpu_device/src/") != line.npos || line.find("tile/ptx/") != line.npos;
}

}  // namespace

std::string project_folder() { return CPU_DEVICE_ROOT "/"; }

std::string shortened(std::string_view file) {
  std::error_code ignored;
  const std::string here = std::filesystem::current_path(ignored).string() + "/";
  return std::string(without(without(file, CPU_DEVICE_ROOT "/"), here));
}

namespace {

/// The lines of each address, the innermost inlined function first.
using Lines = std::map<const void*, std::vector<std::string>>;
Lines lines_of(std::span<const Calls> all) {
  // The program and this file are linked into one module.
  Dl_info module{};
  Lines lines;
  if (dladdr(reinterpret_cast<const void*>(&shortened), &module) == 0 || !module.dli_fname)
    return lines;
  for (const Calls& calls : all) {
    for (const void* call : calls) {
      Dl_info place{};
      if (dladdr(call, &place) != 0 && place.dli_fbase == module.dli_fbase) lines[call];
    }
  }
  // addr2line comes with every compiler. As many addresses at a time as a command may have.
  constexpr std::ptrdiff_t kMost = 2000;
  for (auto first = lines.begin(); first != lines.end();) {
    std::string command = "addr2line -a -i -e " + quoted(module.dli_fname);
    auto last = first;
    for (std::ptrdiff_t i = 0; i < kMost && last != lines.end(); ++i, ++last) {
      // The address given is after the call.
      char address[32];
      std::snprintf(address, sizeof address, " 0x%zx",
                    reinterpret_cast<uintptr_t>(last->first) - 1 -
                        reinterpret_cast<uintptr_t>(module.dli_fbase));
      command += address;
    }
    std::FILE* pipe = popen((command + " 2>/dev/null </dev/null").c_str(), "r");
    if (!pipe) return lines;
    // After each address one line for each function that was inlined there.
    char buffer[4096];
    auto next = first, current = first;
    while (std::fgets(buffer, sizeof buffer, pipe)) {
      std::string_view line = buffer;
      line = line.substr(0, line.find('\n'));
      line = line.substr(0, line.find(" (discriminator "));  // "file:line (discriminator 2)"
      if (line.starts_with("0x") && next != last) {
        current = next++;
      } else if (!is_passed_over(line)) {
        current->second.push_back(shortened(line));
      }
    }
    pclose(pipe);
    first = last;
  }
  return lines;
}

bool is_of_kernel(std::string_view line) { return line.find(".cu:") != line.npos; }

}  // namespace

// A helper's line says little without the kernel's, and kernels stand in .cu files.
std::string source_of(std::span<const void* const> calls) {
  const Lines lines = lines_of(std::array{Calls(calls.begin(), calls.end())});
  std::string found, caller;
  for (const void* call : calls) {
    const auto at = lines.find(call);
    if (at == lines.end()) continue;
    for (const std::string& line : at->second) {
      if (found.empty()) {
        found = line;
      } else if (caller.empty() && is_of_kernel(line)) {
        caller = line;
      }
    }
  }
  if (found.empty()) return "?";
  return caller.empty() ? found : found + ", called at " + caller;
}

std::vector<std::string> kernel_lines_of(std::span<const Calls> all) {
  const Lines lines = lines_of(all);
  std::vector<std::string> found;
  for (const Calls& calls : all) {
    std::string first, of_kernel;
    for (const void* call : calls) {
      const auto at = lines.find(call);
      if (at == lines.end()) continue;
      for (const std::string& line : at->second) {
        if (first.empty()) first = line;
        if (of_kernel.empty() && is_of_kernel(line)) of_kernel = line;
      }
    }
    found.push_back(!of_kernel.empty() ? of_kernel : !first.empty() ? first : "?");
  }
  return found;
}

std::string source_of_caller() {
  std::array<void*, 16> calls;
  const int count = backtrace(calls.data(), static_cast<int>(calls.size()));
  return source_of(std::span(calls).first(static_cast<size_t>(count)));
}

}  // namespace cpu_device
