#include "closed_memory.hpp"

#include <execinfo.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <map>
#include <mutex>
#include <span>

#include "check/checker.hpp"
#include "cpu_device/options.h"
#include "source_lines.hpp"

namespace cpu_device::closed_memory {
namespace {

// Each has a mapping of its own, of which Linux gives a process 65,530, and is closed and opened
// for each launch. The memory of later ones stays open.
constexpr size_t kMostRegions = 16;
// Of each no more than its beginning: to close a page costs time, and almost all mistakes begin
// with the first element.
constexpr size_t kMostClosed = 65'536;

struct Region {
  size_t bytes;
  bool managed;
  bool closed;
  std::string kernel;                 // that has written there
  std::array<void*, 8> allocation{};  // calls
};

std::mutex mutex;
// Not destroyed: destructors of the program's global objects may free memory.
auto& regions = *new std::map<uintptr_t, Region>;
int open_count = 0;
struct sigaction previous;

// Whole pages, as mprotect() takes them.
size_t closed_bytes(const Region& region) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return std::min(kMostClosed, (region.bytes + page - 1) / page * page);
}

void protect(uintptr_t address, const Region& region, bool open) {
  mprotect(reinterpret_cast<void*>(address), closed_bytes(region),
           open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

void protect_all(bool open) {
  for (const auto& [address, region] : regions) {
    if (region.closed) protect(address, region, open);
  }
}

[[noreturn]] void end_with(const std::string& text) {
  std::fflush(stdout);
  std::fputs(text.c_str(), stderr);
  _exit(1);
}

[[noreturn]] void report(uintptr_t address, uintptr_t begin, const Region& region,
                         std::span<const void* const> calls) {
  const char* kind = region.managed ? "managed" : "device";
  std::string text = std::string("[CPU device] the host touches ") + kind + " memory";
  if (region.managed) text += " before it has waited for the kernel that writes there";
  text += ": " + source_of(calls) + "\n  it is byte " + std::to_string(address - begin) +
          " of the " + std::to_string(region.bytes) + " that " +
          (region.managed ? "cudaMallocManaged" : "cudaMalloc") + " gave at " +
          source_of(region.allocation) + "\n";
  text +=
      region.managed
          ? "  the kernel is " + region.kernel +
                "\n  missing: cudaDeviceSynchronize() between the launch and the access\n"
          : "  on a card the program ends here with a segmentation fault: its memory is not the "
            "host's\n  missing: a cudaMemcpy between the two, or cudaMallocManaged, whose memory "
            "both may touch\n";
  end_with(text);
}

// free() looks at what stands before the memory that it is given.
[[noreturn]] void report_before(const Region& region, std::span<const void* const> calls) {
  end_with("[CPU device] the host touches what lies before device memory: " + source_of(calls) +
           "\n  cudaMalloc gave the memory at " + source_of(region.allocation) +
           "\n  free() ends so, too: cudaFree() frees device memory\n");
}

void on_fault(int, siginfo_t* info, void*) {
  std::array<void*, 32> frames;
  const auto count = static_cast<size_t>(backtrace(frames.data(), static_cast<int>(frames.size())));
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (info->si_code == SEGV_ACCERR) {
    const std::lock_guard lock(mutex);
    // The first two are of this function and of the system; the third is, unlike those that follow,
    // no return address.
    frames[2] = static_cast<char*>(frames[2]) + 1;
    const auto calls = std::span(frames).subspan(2, count - 2);
    auto next = regions.upper_bound(address);
    if (next != regions.end() && next->first - address <= kGapBefore) {
      report_before(next->second, calls);
    }
    if (next != regions.begin() && (--next)->second.closed &&
        address - next->first < closed_bytes(next->second)) {
      report(address, next->first, next->second, calls);
    }
  }
  sigaction(SIGSEGV, &previous, nullptr);
  if (info->si_code <= 0) raise(SIGSEGV);  // sent, and not by an instruction that is tried again
}

// Before a launch has handlers of its own, which it takes away afterwards.
void handle_faults() {
  static const bool once = [] {
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO;
    return sigaction(SIGSEGV, &action, &previous) == 0;
  }();
  static_cast<void>(once);
}

}  // namespace

bool has_room() {
  const std::lock_guard lock(mutex);
  return regions.size() < kMostRegions;
}

void add(void* memory, size_t bytes, bool managed) {
  const std::lock_guard lock(mutex);
  Region region{bytes, managed, !managed, {}, {}};
  backtrace(region.allocation.data(), static_cast<int>(region.allocation.size()));
  handle_faults();
  const auto address = reinterpret_cast<uintptr_t>(memory);
  const Region& added = regions[address] = region;
  if (added.closed && open_count == 0) protect(address, added, false);
}

void remove(void* memory) {
  const std::lock_guard lock(mutex);
  const auto found = regions.find(reinterpret_cast<uintptr_t>(memory));
  if (found == regions.end()) return;
  protect(found->first, found->second, true);
  regions.erase(found);
}

void kernel_ended(const std::string& kernel) {
  if constexpr (kChecking) {
    const std::lock_guard lock(mutex);
    for (auto& [address, region] : regions) {
      if (!region.managed || !check::is_written_by_kernel(address)) continue;
      region.closed = true;
      region.kernel = kernel;
    }
  }
}

void host_has_waited() {
  const std::lock_guard lock(mutex);
  for (auto& [address, region] : regions) {
    if (!region.managed || !region.closed) continue;
    protect(address, region, true);
    region.closed = false;
  }
}

Open::Open() {
  if (options().closed_memory) handle_faults();
  const std::lock_guard lock(mutex);
  if (open_count++ == 0) protect_all(true);
}

Open::~Open() {
  const std::lock_guard lock(mutex);
  if (--open_count == 0) protect_all(false);
}

}  // namespace cpu_device::closed_memory
