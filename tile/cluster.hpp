// A launch of a kernel whose blocks work together in clusters (tile/ptx/cluster.cuh). For .cu
// files.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <string>

#include "harness/cuda_check.hpp"
#include "harness/device.hpp"

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

/// Launches `kernel` with clusters of `cluster` blocks along x, each with `shared_bytes` of dynamic
/// shared memory. An H100 takes up to 16; above 8 the kernel must ask for it, which is done here. A
/// cluster of 1 is an ordinary launch, on any card. The status is that of the launch, as from
/// launch_status().
template <class... Parameters, class... Arguments>
Status launch_in_clusters(void (*kernel)(Parameters...), LaunchName name, dim3 grid, int threads,
                          unsigned cluster, std::size_t shared_bytes, void* stream,
                          Arguments... arguments) {
  const std::string call = std::string("launch of ") + name.text;
  if (cluster == 0 || grid.x % cluster != 0) {
    return invalid_argument(call, "a grid of " + std::to_string(grid.x) +
                                      " blocks along x cannot be cut into clusters of " +
                                      std::to_string(cluster));
  }
  int card = 0, shared_limit = 0, has_clusters = 0;
  TILE_RETURN_IF_CUDA_ERROR(cudaGetDevice(&card));
  TILE_RETURN_IF_CUDA_ERROR(
      cudaDeviceGetAttribute(&shared_limit, cudaDevAttrMaxSharedMemoryPerBlock, card));
  TILE_RETURN_IF_CUDA_ERROR(cudaDeviceGetAttribute(&has_clusters, cudaDevAttrClusterLaunch, card));
  if (cluster > 1 && !has_clusters) {
    return unsupported(call, "clusters need compute capability 9.0");
  }
  if (shared_bytes > static_cast<std::size_t>(shared_limit)) {
    TILE_RETURN_IF_CUDA_ERROR(cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)));
  }
  if (cluster > kPortableClusterSize) {
    TILE_RETURN_IF_CUDA_ERROR(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  }

  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = cluster;
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &attribute;
  config.numAttrs = cluster > 1 ? 1 : 0;
  name_launch(name.text, name.file, name.line);
  if (const cudaError_t error = cudaLaunchKernelEx(&config, kernel, arguments...);
      error != cudaSuccess) {
    return cuda_status(error, call);
  }
  return launch_status(name.text);
}

}  // namespace tile
