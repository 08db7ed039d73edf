// Faults inside kernels become CUDA errors: a bad address, a division by zero, an endless loop.
#pragma once

namespace cpu_device {

/// While one lives, signals that are raised inside a kernel on any thread end that kernel's block.
/// Others go to the handlers that were there before.
class FaultHandlers {
 public:
  FaultHandlers();
  ~FaultHandlers();
};

/// While one lives on a thread that runs blocks: a stack for its signals and a watchdog, which
/// ends a block that has used Options::hang_seconds of processor time without a sign of life.
/// Processor time, so that neither a debugger nor a busy machine sets it off.
class ThreadWatch {
 public:
  ThreadWatch();
  ~ThreadWatch();
};

}  // namespace cpu_device
