// Memory that the host must not touch is closed to it, where Options::closed_memory says so: a
// program that would not work on a card does not work here either. Device memory is closed while
// no function of CUDA runs; in the check build managed memory is closed from the end of a kernel
// that has written there until the host waits. The host's access ends the program with a report.
#pragma once

#include <cstddef>
#include <string>

namespace cpu_device::closed_memory {

/// Memory that is added begins a page, after so many bytes that no access may touch.
inline constexpr size_t kGapBefore = 4096;

/// Whether one more can be added.
bool has_room();
/// Pages that hold nothing else; `bytes` are in use. Their first 64 KiB are closed when no Open
/// lives.
void add(void* memory, size_t bytes, bool managed);
/// Open from now on.
void remove(void* memory);

/// A kernel has ended, with this name and line for the report.
void kernel_ended(const std::string& kernel);
/// For all kernels.
void host_has_waited();

/// While one lives, all is open.
class Open {
 public:
  Open();
  ~Open();
};

}  // namespace cpu_device::closed_memory
