// kernel<<<grid, block, shared, stream>>>(arguments): the translator writes it as a call of
// `launcher` (CUDA C++ Programming Guide, "Execution Configuration").
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

#include "cpu_device/qualifiers.h"
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
  /// The same for a kernel with __cluster_dims__.
  Config&& with_cluster(unsigned x, unsigned y = 1, unsigned z = 1) && {
    cluster = {x, y, z};
    in_clusters = true;
    return static_cast<Config&&>(*this);
  }
};

/// Runs `body(frame)` once for every thread of the grid and returns when all are done. Errors are
/// kept for cudaGetLastError and the next synchronisation, as CUDA keeps them. `function` is the
/// kernel's address, which finds the limits set by cudaFuncSetAttribute; it may be null. Returns
/// why the kernel was not launched, or success.
cudaError_t run_grid(const KernelName& name, const Config& config, const void* function,
                     void (*body)(const void* frame), const void* frame, size_t frame_bytes);

// ---- Parameters ----
// As on a GPU a parameter is made once, on the host, where its destructor runs after the launch.
// Each thread has a copy of its bytes, and runs neither constructor nor destructor of it.

/// Whether the ABI passes a T as its bytes. Other classes are passed by the address of a copy,
/// which the caller makes and destroys (Itanium C++ ABI, "non-trivial for the purposes of calls").
template <class T>
inline constexpr bool kPassedAsBytes =
    std::is_trivially_destructible_v<T> &&
    (std::is_copy_constructible_v<T> || std::is_move_constructible_v<T>)&&(
        !std::is_copy_constructible_v<T> ||
        std::is_trivially_copy_constructible_v<T>)&&(!std::is_move_constructible_v<T> ||
                                                     std::is_trivially_move_constructible_v<T>);

/// The bytes of a parameter. It has a number, so that parameters of one type can be told apart.
template <size_t kNumber, class T>
struct Parameter {
  alignas(T) unsigned char bytes[sizeof(T)];
  explicit Parameter(const T& value) {
    if constexpr (!std::is_empty_v<T>) {
      std::memcpy(bytes, static_cast<const void*>(std::addressof(value)), sizeof(T));
    }
  }
  __forceinline__ const T& value() const { return *reinterpret_cast<const T*>(bytes); }
  __forceinline__ T& value() { return *reinterpret_cast<T*>(bytes); }
};
template <class Numbers, class... Ts>
struct Parameters;
template <size_t... i, class... Ts>
struct Parameters<std::index_sequence<i...>, Ts...> : Parameter<i, Ts>... {
  explicit Parameters(const Ts&... values) : Parameter<i, Ts>(values)... {}
  template <class Call>
  __forceinline__ void pass_to(const Call& call) const {
    call(static_cast<const Parameter<i, Ts>&>(*this).value()...);
  }
  /// Where the kernel expects the address of a copy, it is given that of the thread's bytes.
  template <class... Declared>
  void pass_bytes_to(void (*kernel)(Declared...)) const {
    using Kernel = void (*)(std::conditional_t<kPassedAsBytes<Declared>, Declared, Declared&>...);
    Parameters own = *this;
    reinterpret_cast<Kernel>(reinterpret_cast<void (*)()>(kernel))(
        static_cast<Parameter<i, Ts>&>(own).value()...);
  }
};

/// Launches `call(values...)`; `kernel` is its address with the parameters' types, or null.
template <class Call, class Kernel, class... Ts>
cudaError_t launch(const KernelName& name, const Call& call, Kernel kernel, const void* address,
                   const Config& config, const Ts&... values) {
  struct Frame {
    Call call;
    Kernel kernel;
    Parameters<std::index_sequence_for<Ts...>, Ts...> parameters;
  };
  const Frame frame{call, kernel, Parameters<std::index_sequence_for<Ts...>, Ts...>(values...)};
  return run_grid(
      name, config, address,
      [](const void* any) {
        const auto* thread = static_cast<const Frame*>(any);
        // Without the address every thread makes copies by their constructors.
        if constexpr ((kPassedAsBytes<Ts> && ...) || std::is_null_pointer_v<Kernel>) {
          thread->parameters.pass_to(thread->call);
        } else {
          thread->parameters.pass_bytes_to(thread->kernel);
        }
      },
      &frame, sizeof frame);
}

// ---- The kernel that stands in front of <<< ----

/// kernel_pointer(kernel, Declared()) is the address of a kernel that needs no template deduction;
/// with a function type, that of the kernel or template of this type.
struct Declared {};
template <class... Ts>
auto kernel_pointer(void (*kernel)(Ts...), Declared) -> void (*)(Ts...) {
  return kernel;
}
template <class Type>
Type* kernel_pointer(Type* kernel, std::type_identity<Type>) {
  return kernel;
}

/// A launch that waits for its arguments. `call(arguments...)` calls the kernel, `find(type)` is
/// its kernel_pointer or null.
template <class Call, class Find>
struct DeducedLaunch {
  KernelName name;
  Call call;
  Find find;
  Config config;

  template <class... Args>
  cudaError_t operator()(Args&&... args) const {
    const void* address = nullptr;
    if constexpr (!std::is_null_pointer_v<decltype(find(Declared()))>) {
      address = reinterpret_cast<const void*>(find(Declared()));
    }
    if constexpr ((kPassedAsBytes<std::decay_t<Args>> && ...)) {
      return launch(name, call, nullptr, address, config, static_cast<Made<Args>>(args)...);
    } else {
      return launch(name, call, find(std::type_identity<void(std::decay_t<Args>...)>()), address,
                    config, static_cast<Made<Args>>(args)...);
    }
  }

 private:
  // What exists for the launch only is the parameter itself.
  template <class Arg>
  using Made = std::conditional_t<std::is_reference_v<Arg>, std::decay_t<Arg>, Arg&&>;
};

/// The same of a kernel whose parameters are known: arguments may be what no type can be deduced
/// from, such as {1, 2}.
template <class Call, class Find, class... Ts>
class DeclaredLaunch {
  // An int may be the 0 of a null pointer.
  template <class Arg, class T>
  static constexpr bool kFits = std::is_convertible_v<Arg, T> ||
                                (std::is_same_v<Arg, int> && std::is_pointer_v<T>);
  template <class... Args>
  static constexpr bool fit() {
    if constexpr (sizeof...(Args) == sizeof...(Ts)) return (kFits<Args, Ts> && ...);
    return false;
  }

 public:
  DeducedLaunch<Call, Find> launch;
  void (*kernel)(Ts...);

  cudaError_t operator()(Ts... values) const {
    return cpu_device::launch<Call, void (*)(Ts...), std::remove_cvref_t<Ts>...>(
        launch.name, launch.call, kernel, reinterpret_cast<const void*>(kernel), launch.config,
        values...);
  }
  /// The rest have default values; or the compiler is to say what is wrong in the kernel's terms.
  template <class... Args>
  requires(!fit<Args...>()) cudaError_t operator()(Args&&... args) const {
    return launch(std::forward<Args>(args)...);
  }
};

template <class Call, class Find, class... Ts>
auto declared_launch(const DeducedLaunch<Call, Find>& launch, void (*kernel)(Ts...)) {
  return DeclaredLaunch<Call, Find, Ts...>{launch, kernel};
}
template <class Call, class Find>
auto launcher(const KernelName& name, const Call& call, const Find& find, const Config& config) {
  const DeducedLaunch<Call, Find> launch{name, call, find, config};
  if constexpr (std::is_null_pointer_v<decltype(find(Declared()))>) {
    return launch;
  } else {
    return declared_launch(launch, find(Declared()));
  }
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
  return [&](Parameters... values) {
    return cpu_device::launch(name, kernel, kernel, reinterpret_cast<const void*>(kernel), read,
                              values...);
  }(std::forward<Args>(args)...);
}

namespace cpu_device {
template <class... Parameters, size_t... i>
cudaError_t launch_with_pointers(void (*kernel)(Parameters...), const Config& config,
                                 void** arguments, Site site, std::index_sequence<i...>) {
  return launch(name_of_launch(site), kernel, kernel, reinterpret_cast<const void*>(kernel), config,
                *static_cast<const std::remove_cvref_t<Parameters>*>(arguments[i])...);
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
template <class... Parameters>
cudaError_t cudaLaunchKernelExC(cpu_device::LaunchConfig config, void (*kernel)(Parameters...),
                                void** arguments) {
  cpu_device::Config read{1, 1};
  if (const cudaError_t error = cpu_device::read_config(config.config, &read); error != cudaSuccess)
    return error;
  return cpu_device::launch_with_pointers(kernel, read, arguments, config.site,
                                          std::index_sequence_for<Parameters...>());
}
