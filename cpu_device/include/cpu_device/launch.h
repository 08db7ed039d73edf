// kernel<<<grid, block, shared, stream>>>(arguments): the translator writes it as a call of
// `launch` (CUDA C++ Programming Guide, "Execution Configuration").
#pragma once

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

#include "cpu_device/runtime_api.h"
#include "cpu_device/vector_types.h"

namespace cpu_device {

/// A kernel as the source names it, and where it is launched.
struct KernelName {
  const char* text;
  const char* file;
  int line;
};

/// What stands between <<< and >>>.
struct Config {
  dim3 grid;
  dim3 block;
  size_t shared_bytes;
  cudaStream_t stream;

  Config(dim3 g, dim3 b, size_t bytes = 0, cudaStream_t s = nullptr)
      : grid(g), block(b), shared_bytes(bytes), stream(s) {}
};

/// Runs `body(frame)` once for every thread of the grid and returns when all are done. Errors are
/// kept for cudaGetLastError and the next synchronisation, as CUDA keeps them. `function` is the
/// kernel's address, which finds the limits set by cudaFuncSetAttribute; it may be null.
void run_grid(const KernelName& name, const Config& config, const void* function,
              void (*body)(const void* frame), const void* frame, size_t frame_bytes);

/// The address of a kernel that needs no template deduction. The unused parameters make the call
/// depend on the launch's arguments, so that a failed deduction is not an error.
template <class... Parameters, class... Args>
const void* kernel_address(void (*kernel)(Parameters...), const Args&...) {
  return reinterpret_cast<const void*>(kernel);
}

/// `call(arguments...)` calls the kernel; `address(arguments...)` is its address or null. The
/// arguments are evaluated once, here, and copied into every thread's call.
template <class Call, class Address, class... Args>
void launch(const KernelName& name, const Config& config, Call call, Address address,
            Args&&... args) {
  struct Frame {
    Call call;
    const std::tuple<std::decay_t<Args>...> values;
  };
  const Frame frame{call, std::tuple<std::decay_t<Args>...>(std::forward<Args>(args)...)};
  run_grid(
      name, config, std::apply(address, frame.values),
      [](const void* any) {
        const auto* thread = static_cast<const Frame*>(any);
        std::apply(thread->call, thread->values);
      },
      &frame, sizeof frame);
}

}  // namespace cpu_device
