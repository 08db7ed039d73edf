// How a kernel is launched in clusters of blocks (tile/ptx/cluster.cuh).
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <string>

#include "tile/host/cuda_check.hpp"
#include "tile/host/device.hpp"

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
class ClusterLaunch {
 public:
  ClusterLaunch(dim3 grid, int threads, unsigned cluster, std::size_t shared_bytes, void* stream) {
    attribute_.id = cudaLaunchAttributeClusterDimension;
    attribute_.val.clusterDim.x = cluster;
    attribute_.val.clusterDim.y = 1;
    attribute_.val.clusterDim.z = 1;
    config_.gridDim = grid;
    config_.blockDim = dim3(static_cast<unsigned>(threads));
    config_.dynamicSmemBytes = shared_bytes;
    config_.stream = static_cast<cudaStream_t>(stream);
    config_.attrs = &attribute_;
    config_.numAttrs = cluster > 1 ? 1 : 0;
  }
  ClusterLaunch(const ClusterLaunch&) = delete;
  ClusterLaunch& operator=(const ClusterLaunch&) = delete;

  const cudaLaunchConfig_t& config() const { return config_; }

  /// Checks the launch, and lets the kernel have what it needs. `call` begins the message.
  template <class... Parameters>
  Status prepare(void (*kernel)(Parameters...), const std::string& call) const {
    const unsigned cluster = attribute_.val.clusterDim.x;
    if (cluster == 0 || config_.gridDim.x % cluster != 0) {
      return invalid_argument(call, "a grid of " + std::to_string(config_.gridDim.x) +
                                        " blocks along x cannot be cut into clusters of " +
                                        std::to_string(cluster));
    }
    int card = 0, shared_limit = 0, has_clusters = 0;
    TILE_RETURN_IF_CUDA_ERROR(cudaGetDevice(&card));
    TILE_RETURN_IF_CUDA_ERROR(
        cudaDeviceGetAttribute(&shared_limit, cudaDevAttrMaxSharedMemoryPerBlock, card));
    TILE_RETURN_IF_CUDA_ERROR(
        cudaDeviceGetAttribute(&has_clusters, cudaDevAttrClusterLaunch, card));
    if (cluster > 1 && !has_clusters) {
      return unsupported(call, "clusters need compute capability 9.0");
    }
    if (config_.dynamicSmemBytes > static_cast<std::size_t>(shared_limit)) {
      TILE_RETURN_IF_CUDA_ERROR(cudaFuncSetAttribute(kernel,
                                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                     static_cast<int>(config_.dynamicSmemBytes)));
    }
    if (cluster > kPortableClusterSize) {
      TILE_RETURN_IF_CUDA_ERROR(
          cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    }
    return {};
  }

 private:
  cudaLaunchAttribute attribute_{};
  cudaLaunchConfig_t config_{};
};

/// How many such clusters the card holds at one time, for kernels whose clusters stay for many
/// rows; at least 1. A cluster lies within a GPC, part of the card, so that some multiprocessors
/// may be left over.
template <class... Parameters>
Status clusters_at_once(void (*kernel)(Parameters...), const char* name, int threads,
                        unsigned cluster, std::size_t shared_bytes, int* count) {
  const ClusterLaunch launch(cluster, threads, cluster, shared_bytes, nullptr);
  if (Status s = launch.prepare(kernel, std::string("launch of ") + name); !s.ok()) return s;
  TILE_RETURN_IF_CUDA_ERROR(cudaOccupancyMaxActiveClusters(count, kernel, &launch.config()));
  if (*count < 1) *count = 1;  // the launch itself reports why it is impossible
  return {};
}

/// Launches `kernel` as ClusterLaunch says. The status is that of the launch, as from
/// launch_status().
template <class... Parameters, class... Arguments>
Status launch_in_clusters(void (*kernel)(Parameters...), LaunchName name, dim3 grid, int threads,
                          unsigned cluster, std::size_t shared_bytes, void* stream,
                          Arguments... arguments) {
  const std::string call = std::string("launch of ") + name.text;
  const ClusterLaunch launch(grid, threads, cluster, shared_bytes, stream);
  if (Status s = launch.prepare(kernel, call); !s.ok()) return s;
  name_launch(name.text, name.file, name.line);
  if (const cudaError_t error = cudaLaunchKernelEx(&launch.config(), kernel, arguments...);
      error != cudaSuccess) {
    return cuda_status(error, call);
  }
  return launch_status(name.text);
}

}  // namespace tile
