#include "source_lines.hpp"

#include <dlfcn.h>
#include <execinfo.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
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

std::string shortened(std::string_view file) {
  std::error_code ignored;
  const std::string here = std::filesystem::current_path(ignored).string() + "/";
  return std::string(without(without(file, CPU_DEVICE_ROOT "/"), here));
}

// A helper's line says little without the kernel's, and kernels stand in .cu files.
std::string source_of(std::span<const void* const> calls) {
  // The program and this file are linked into one module.
  Dl_info module{};
  if (dladdr(reinterpret_cast<const void*>(&source_of), &module) == 0 || !module.dli_fname)
    return "?";
  // addr2line comes with every compiler.
  std::string command = "addr2line -i -e " + quoted(module.dli_fname);
  for (const void* call : calls) {
    Dl_info place{};
    if (dladdr(call, &place) == 0 || place.dli_fbase != module.dli_fbase) continue;
    // The address given is after the call.
    char address[32];
    std::snprintf(
        address, sizeof address, " 0x%zx",
        reinterpret_cast<uintptr_t>(call) - 1 - reinterpret_cast<uintptr_t>(module.dli_fbase));
    command += address;
  }
  std::FILE* pipe = popen((command + " 2>/dev/null </dev/null").c_str(), "r");
  if (!pipe) return "?";
  // One line for each function that was inlined there, the innermost first.
  std::string found, caller;
  char buffer[4096];
  while (std::fgets(buffer, sizeof buffer, pipe)) {
    std::string_view line = buffer;
    line = line.substr(0, line.find('\n'));
    line = line.substr(0, line.find(" (discriminator "));  // "file:line (discriminator 2)"
    if (is_passed_over(line)) continue;
    if (found.empty()) {
      found = shortened(line);
    } else if (caller.empty() && line.find(".cu:") != line.npos) {
      caller = shortened(line);
    }
  }
  pclose(pipe);
  if (found.empty()) return "?";
  return caller.empty() ? found : found + ", called at " + caller;
}

std::string source_of_caller() {
  std::array<void*, 16> calls;
  const int count = backtrace(calls.data(), static_cast<int>(calls.size()));
  return source_of(std::span(calls).first(static_cast<size_t>(count)));
}

}  // namespace cpu_device
