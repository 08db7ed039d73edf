// How a kernel is launched and the launch is checked: in clusters of blocks (tile/ptx/cluster.cuh)
// and without, or with all of its blocks on the card at one time.
#pragma once

#include <cuda_runtime.h>

#include <concepts>
#include <cstddef>
#include <string>
#include <utility>

#include "tile/host/cuda_check.hpp"
#include "tile/host/device.hpp"
#include "tile/host/grid.hpp"

namespace tile {

inline constexpr unsigned kPortableClusterSize = 8;  // blocks that every card with clusters takes

/// A kernel's name for messages, and where it is launched.
struct LaunchName {
  const char* text;
  const char* file;
  int line;
  LaunchName(const char* name, const char* f = __builtin_FILE(), int l = __builtin_LINE())
      : text(name), file(f), line(l) {}
};

/// A launch with clusters of `cluster` blocks along x, each with `shared_bytes` of dynamic shared
/// memory. An H100 takes up to 16; above 8 the kernel must ask for it. A cluster of 1 is an
/// ordinary launch, on any card. It cannot be copied or moved: the configuration points to the
/// attribute.
class LaunchConfig {
 public:
  LaunchConfig(dim3 grid, dim3 block, unsigned cluster, std::size_t shared_bytes, void* stream)
      : cluster_(cluster) {
    attribute_.id = cudaLaunchAttributeClusterDimension;
    attribute_.val.clusterDim.x = cluster;
    attribute_.val.clusterDim.y = 1;
    attribute_.val.clusterDim.z = 1;
    config_.gridDim = grid;
    config_.blockDim = block;
    config_.dynamicSmemBytes = shared_bytes;
    config_.stream = static_cast<cudaStream_t>(stream);
    config_.attrs = &attribute_;
    config_.numAttrs = cluster > 1 ? 1 : 0;
  }
  LaunchConfig(const LaunchConfig&) = delete;
  LaunchConfig& operator=(const LaunchConfig&) = delete;

  /// Makes a launch without clusters a cooperative one: all blocks are on the card at one time, or
  /// none is launched.
  void put_together() {
    attribute_.id = cudaLaunchAttributeCooperative;
    attribute_.val.cooperative = 1;
    config_.numAttrs = 1;
  }

  const cudaLaunchConfig_t& config() const { return config_; }

  /// Checks the cluster, and lets the kernel have what it needs. `call` begins the message.
  template <class... Parameters>
  Status prepare(void (*kernel)(Parameters...), const std::string& call) const {
    if (cluster_ != 1) TILE_TRY(check_cluster(call));
    if (cluster_ > kPortableClusterSize) {
      TILE_RETURN_IF_CUDA_ERROR(
          cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    }
    return allow_shared_bytes(kernel, config_.dynamicSmemBytes);
  }

 private:
  Status check_cluster(const std::string& call) const {
    if (cluster_ == 0 || config_.gridDim.x % cluster_ != 0) {
      return invalid_argument(call, "a grid of " + std::to_string(config_.gridDim.x) +
                                        " blocks along x cannot be cut into clusters of " +
                                        std::to_string(cluster_));
    }
    int card = 0, has_clusters = 0;
    TILE_RETURN_IF_CUDA_ERROR(cudaGetDevice(&card));
    TILE_RETURN_IF_CUDA_ERROR(
        cudaDeviceGetAttribute(&has_clusters, cudaDevAttrClusterLaunch, card));
    if (!has_clusters) return unsupported(call, "clusters need compute capability 9.0");
    return {};
  }

  unsigned cluster_;  // blocks
  cudaLaunchAttribute attribute_{};
  cudaLaunchConfig_t config_{};
};

/// How many such clusters the card holds at one time, for kernels whose clusters stay for many
/// rows; at least 1. A cluster lies within a GPC, part of the card, so that some multiprocessors
/// may be left over.
template <class... Parameters>
Status clusters_at_once(void (*kernel)(Parameters...), const char* name, int threads,
                        unsigned cluster, std::size_t shared_bytes, int* count) {
  const LaunchConfig launch(cluster, static_cast<unsigned>(threads), cluster, shared_bytes,
                            nullptr);
  TILE_TRY(launch.prepare(kernel, std::string("launch of ") + name));
  TILE_RETURN_IF_CUDA_ERROR(cudaOccupancyMaxActiveClusters(count, kernel, &launch.config()));
  if (*count < 1) *count = 1;  // the launch itself reports why it is impossible
  return {};
}

/// How many blocks the card holds at one time, for kernels whose blocks wait for one another; at
/// least 1.
template <class... Parameters>
Status blocks_at_once(void (*kernel)(Parameters...), int threads, std::size_t shared_bytes,
                      int* count) {
  TILE_TRY(allow_shared_bytes(kernel, shared_bytes));
  TILE_RETURN_IF_CUDA_ERROR(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      count, reinterpret_cast<const void*>(kernel), threads, shared_bytes));
  *count *= device().multiprocessors;
  if (*count < 1) *count = 1;  // the launch itself reports why it is impossible
  return {};
}

/// Whether a number among a kernel's arguments fits its parameter.
template <class Parameter, class Argument>
Status check_fits(const Argument& argument, const std::string& call) {
  if constexpr (std::integral<Parameter> && std::integral<Argument> &&
                !std::same_as<Parameter, bool> && !std::same_as<Argument, bool>) {
    if (!std::in_range<Parameter>(argument)) {
      return unsupported(call, "the argument " + std::to_string(argument) + " is too large");
    }
  }
  return {};
}

/// Launches `kernel` as the configuration says. The status is that of the launch, as from
/// launch_status(); without blocks there is nothing to launch. `name` is a literal.
template <class... Parameters, class... Arguments>
Status launch_as(const LaunchConfig& launch, void (*kernel)(Parameters...), LaunchName name,
                 const Arguments&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments), "an argument for each parameter");
  if (launch.config().gridDim.x == 0) return {};
  // By append(): with operator+ g++ 12 warns in the check build that a copy leaves the string.
  const std::string call = std::string("launch of ").append(name.text);
  TILE_TRY(launch.prepare(kernel, call));
  Status fits;
  static_cast<void>(((fits = check_fits<Parameters>(arguments, call)).ok() && ...));
  TILE_TRY(fits);
  name_launch(name.text, name.file, name.line);
  if (const cudaError_t error =
          cudaLaunchKernelEx(&launch.config(), kernel, static_cast<Parameters>(arguments)...);
      error != cudaSuccess) {
    return cuda_status(error, call);
  }
  return launch_status(name.text);
}

/// Launches `kernel` in clusters of `cluster` blocks along x, each of `block` threads with
/// `shared_bytes` of dynamic shared memory, in `stream`, a cudaStream_t.
template <class... Parameters, class... Arguments>
Status launch_in_clusters(void (*kernel)(Parameters...), LaunchName name, dim3 grid, dim3 block,
                          unsigned cluster, std::size_t shared_bytes, void* stream,
                          const Arguments&... arguments) {
  return launch_as(LaunchConfig(grid, block, cluster, shared_bytes, stream), kernel, name,
                   arguments...);
}

/// The same with all blocks on the card at one time, so that they may wait for one another: no more
/// than blocks_at_once().
template <class... Parameters, class... Arguments>
Status launch_together(void (*kernel)(Parameters...), LaunchName name, dim3 grid, dim3 block,
                       std::size_t shared_bytes, void* stream, const Arguments&... arguments) {
  LaunchConfig launch(grid, block, 1, shared_bytes, stream);
  launch.put_together();
  return launch_as(launch, kernel, name, arguments...);
}

/// The same without clusters: what `kernel<<<grid, block, shared_bytes, stream>>>(arguments...)`
/// does, checked.
///
///     TILE_TRY(tile::launch(scale_rows<float>, "scale_rows", blocks, kThreads, 0, stream, x, n));
template <class... Parameters, class... Arguments>
Status launch(void (*kernel)(Parameters...), LaunchName name, dim3 grid, dim3 block,
              std::size_t shared_bytes, void* stream, const Arguments&... arguments) {
  return launch_in_clusters(kernel, name, grid, block, 1, shared_bytes, stream, arguments...);
}

}  // namespace tile
