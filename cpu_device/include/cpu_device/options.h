// How the CPU device runs kernels. Read once from the environment, changed by tests.
#pragma once

#include <cstdint>

#include "cpu_device/check.h"

namespace cpu_device {

/// Whether this is the build with AddressSanitizer (TILE_ASAN).
#ifdef CPU_DEVICE_ASAN
inline constexpr bool kAsan = true;
#else
inline constexpr bool kAsan = false;
#endif

/// The builds that look at memory run one block after the other, whatever Options::workers says.
inline constexpr bool kOneWorker = kChecking || kAsan;

/// The order in which the threads of a block start and go on after a barrier, and in which blocks
/// start. A correct kernel gives the same result in every order.
enum class Order { forward, reverse, random };

/// The compute capabilities of which there is a card to play, 80 for 8.0.
inline constexpr int kCapabilities[] = {75, 80, 86, 89, 90};

struct Options {
  Order order = Order::forward;  // CPU_DEVICE_ORDER = forward, reverse or random:SEED
  uint64_t seed = 0;
  int workers = 0;            // CPU_DEVICE_WORKERS, OS threads that run blocks; 0: one a core
  double hang_seconds = 10;   // CPU_DEVICE_HANG_SECONDS of processor time without a sign of life
  int capability = 90;        // CPU_DEVICE_CAPABILITY: which card it plays, see kCapabilities
  bool print_reports = true;  // CPU_DEVICE_REPORTS = on or off
  // CPU_DEVICE_CLOSED_MEMORY = on or off: the host's accesses to device memory end the program, and
  // in the check build those to managed memory before it waits. Not with AddressSanitizer.
  bool closed_memory = false;
  // CPU_DEVICE_SAME_STORES = on or off: in the check build threads may store one value to one
  // element, which is told and does not end the kernel.
  bool same_stores = false;
  // CPU_DEVICE_LAUNCHES = on or off: each launch is printed to stdout: the threads of a block, the
  // bytes of its dynamic shared memory, and the kernel.
  bool print_launches = false;
  // CPU_DEVICE_XRAY = on or off: the check build counts what warps ask of memory (xray.h). If the
  // variable says so, the program prints the counts when it ends; CPU_DEVICE_XRAY_SVG=FILE draws a
  // request of line CPU_DEVICE_XRAY_LINE, or of the line that has most to gain.
  bool xray = false;
};

/// The options in force. Change them only while no kernel runs. A malformed environment variable
/// ends the program with exit code 2 and a message that names it.
Options& options();

}  // namespace cpu_device
