// kernel<<<grid, block, shared, stream>>>(arguments): the translator writes it as a call of
// `launch` (CUDA C++ Programming Guide, "Execution Configuration").
#pragma once

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

#include "cpu_device/runtime_api.h"
#include "cpu_device/site.h"
#include "cpu_device/vector_types.h"

namespace cpu_device {

/// A kernel as the source names it, and where it is launched.
struct KernelName {
  const char* text;
  const char* file;
  int line;
};

/// What stands between <<< and >>>, and what cudaLaunchKernelEx adds.
struct Config {
  dim3 grid;
  dim3 block;
  size_t shared_bytes;
  cudaStream_t stream;
  dim3 cluster{1, 1, 1};     // in blocks
  bool in_clusters = false;  // also of one block
  bool cooperative = false;  // all blocks run together, and can wait for one another

  Config(dim3 g, dim3 b, size_t bytes = 0, cudaStream_t s = nullptr)
      : grid(g), block(b), shared_bytes(bytes), stream(s) {}
};

/// Runs `body(frame)` once for every thread of the grid and returns when all are done. Errors are
/// kept for cudaGetLastError and the next synchronisation, as CUDA keeps them. `function` is the
/// kernel's address, which finds the limits set by cudaFuncSetAttribute; it may be null. Returns
/// why the kernel was not launched, or success.
cudaError_t run_grid(const KernelName& name, const Config& config, const void* function,
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
cudaError_t launch(const KernelName& name, Call call, Address address, const Config& config,
                   Args&&... args) {
  struct Frame {
    Call call;
    const std::tuple<std::decay_t<Args>...> values;
  };
  const Frame frame{call, std::tuple<std::decay_t<Args>...>(std::forward<Args>(args)...)};
  return run_grid(
      name, config, std::apply(address, frame.values),
      [](const void* any) {
        const auto* thread = static_cast<const Frame*>(any);
        std::apply(thread->call, thread->values);
      },
      &frame, sizeof frame);
}

/// The first parameter of cudaLaunchKernelEx, and where it is called.
struct LaunchConfig {
  const cudaLaunchConfig_t* config;
  Site site;
  LaunchConfig(const cudaLaunchConfig_t* c, Site s = Site::here()) : config(c), site(s) {}
};

/// What reports call the kernel that this OS thread launches next by cudaLaunchKernelEx, which is
/// given a function without a name. `text` and `file` are literals.
void name_next_launch(const KernelName& name);
/// That name, once, or one for a kernel launched at `site`.
KernelName name_of_launch(Site site);

/// Reads CUDA's structure. Returns what is wrong with it.
cudaError_t read_config(const cudaLaunchConfig_t* config, Config* result);

}  // namespace cpu_device

template <class... Parameters, class... Args>
cudaError_t cudaLaunchKernelEx(cpu_device::LaunchConfig config, void (*kernel)(Parameters...),
                               Args&&... args) {
  const cpu_device::KernelName name = cpu_device::name_of_launch(config.site);
  cpu_device::Config read{1, 1};
  if (const cudaError_t error = cpu_device::read_config(config.config, &read); error != cudaSuccess)
    return error;
  return cpu_device::launch(
      name, kernel, [kernel](const auto&...) { return reinterpret_cast<const void*>(kernel); },
      read, static_cast<Parameters>(std::forward<Args>(args))...);
}

namespace cpu_device {
template <class... Parameters, size_t... i>
cudaError_t launch_with_pointers(void (*kernel)(Parameters...), const Config& config,
                                 void** arguments, Site site, std::index_sequence<i...>) {
  return launch(
      name_of_launch(site), kernel,
      [kernel](const auto&...) { return reinterpret_cast<const void*>(kernel); }, config,
      *static_cast<std::remove_cvref_t<Parameters>*>(arguments[i])...);
}
}  // namespace cpu_device

/// `arguments` point to the kernel's. A kernel that was made a void* has lost the types of its
/// parameters, which are needed here.
template <class... Parameters>
cudaError_t cudaLaunchKernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, void** arguments,
                             size_t shared_bytes = 0, cudaStream_t stream = nullptr,
                             cpu_device::Site site = cpu_device::Site::here()) {
  return cpu_device::launch_with_pointers(kernel, {grid, block, shared_bytes, stream}, arguments,
                                          site, std::index_sequence_for<Parameters...>());
}
template <class... Parameters>
cudaError_t cudaLaunchCooperativeKernel(void (*kernel)(Parameters...), dim3 grid, dim3 block,
                                        void** arguments, size_t shared_bytes = 0,
                                        cudaStream_t stream = nullptr,
                                        cpu_device::Site site = cpu_device::Site::here()) {
  cpu_device::Config config{grid, block, shared_bytes, stream};
  config.cooperative = true;
  return cpu_device::launch_with_pointers(kernel, config, arguments, site,
                                          std::index_sequence_for<Parameters...>());
}
