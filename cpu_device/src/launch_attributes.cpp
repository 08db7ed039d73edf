// What cudaLaunchKernelEx adds to <<<…>>>: clusters.
#include <algorithm>
#include <string>
#include <utility>

#include "cluster.hpp"
#include "cpu_device/launch.h"
#include "state.hpp"

namespace cpu_device {
namespace {

thread_local KernelName next_name{};

}  // namespace

void name_next_launch(const KernelName& name) { next_name = name; }

KernelName name_of_launch(Site site) {
  const KernelName name = std::exchange(next_name, {});
  return name.text ? name : KernelName{"(of cudaLaunchKernelEx)", site.file, site.line};
}

cudaError_t read_config(const cudaLaunchConfig_t* config, Config* result) {
  if (!config || (config->numAttrs > 0 && !config->attrs)) return note(cudaErrorInvalidValue);
  *result = {config->gridDim, config->blockDim, config->dynamicSmemBytes, config->stream};
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config->attrs[i];
    switch (attribute.id) {
      case cudaLaunchAttributeIgnore: break;
      case cudaLaunchAttributeCooperative:
        result->cooperative = attribute.val.cooperative != 0;
        break;
      case cudaLaunchAttributeClusterDimension: {
        const auto& dim = attribute.val.clusterDim;
        result->cluster = {dim.x, dim.y, dim.z};
        result->in_clusters = true;
        break;
      }
      default: return note(cudaErrorInvalidValue);
    }
  }
  return cudaSuccess;
}

cudaError_t check_cluster(const Config& config, const void* function, std::string* why) {
  const dim3 grid = config.grid, cluster = config.cluster;
  if (cluster.x == 1 && cluster.y == 1 && cluster.z == 1) return cudaSuccess;
  const std::string name = "cluster " + to_string(cluster) + ": ";
  const uint64_t blocks = uint64_t{cluster.x} * cluster.y * cluster.z;
  if (!properties().clusterLaunch) {
    *why = name + "the card has no clusters; they need compute capability 9.0";
  } else if (blocks == 0 || grid.x % cluster.x != 0 || grid.y % cluster.y != 0 ||
             grid.z % cluster.z != 0) {
    *why = name + "grid " + to_string(grid) + " is no multiple of it";
  } else if (blocks > kLargestCluster) {
    *why = name + std::to_string(blocks) + " blocks, and " + std::to_string(kLargestCluster) +
           " is the limit";
  } else if (blocks > kPortableCluster && !may_have_large_clusters(function)) {
    *why = name + std::to_string(blocks) + " blocks, and " + std::to_string(kPortableCluster) +
           " is the limit; cudaFuncSetAttribute(kernel, "
           "cudaFuncAttributeNonPortableClusterSizeAllowed, 1) raises it to " +
           std::to_string(kLargestCluster);
  } else {
    return cudaSuccess;
  }
  return cudaErrorInvalidClusterSize;
}

namespace {

size_t blocks_of_multiprocessor(const Config& config) {
  const cudaDeviceProp& card = properties();
  const size_t threads = size_t{config.block.x} * config.block.y * config.block.z;
  const size_t shared_bytes = config.shared_bytes + card.reservedSharedMemPerBlock;
  size_t blocks = static_cast<size_t>(card.maxBlocksPerMultiProcessor);
  blocks = std::min(blocks, static_cast<size_t>(card.maxThreadsPerMultiProcessor) / threads);
  if (shared_bytes > 0) blocks = std::min(blocks, card.sharedMemPerMultiprocessor / shared_bytes);
  return blocks;
}

}  // namespace
}  // namespace cpu_device

using namespace cpu_device;

// As many as the multiprocessors hold, were the grid only clusters of this kind. All clusters that
// can be launched fit, so there is at least one.
cudaError_t cudaOccupancyMaxActiveClusters(int* count, const void* function,
                                           const cudaLaunchConfig_t* config) {
  if (!count) return note(cudaErrorInvalidValue);
  if (!function) return note(cudaErrorInvalidDeviceFunction);
  Config read{1, 1};
  if (const cudaError_t error = read_config(config, &read); error != cudaSuccess) return error;
  std::string why;
  read.grid = read.cluster;
  if (const cudaError_t error = check_config(read, function, &why); error != cudaSuccess) {
    return note(error);
  }
  const size_t blocks = blocks_of_multiprocessor(read);
  const size_t all = blocks * static_cast<size_t>(properties().multiProcessorCount);
  const size_t size = size_t{read.cluster.x} * read.cluster.y * read.cluster.z;
  *count = static_cast<int>(std::max<size_t>(all / size, 1));
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function,
                                                          int threads, size_t dynamic_bytes) {
  if (!blocks || threads <= 0) return note(cudaErrorInvalidValue);
  if (!function) return note(cudaErrorInvalidDeviceFunction);
  *blocks = 0;
  if (threads > properties().maxThreadsPerBlock || dynamic_bytes > dynamic_shared_limit(function)) {
    return cudaSuccess;  // such a block cannot run
  }
  const size_t most = kLargestCluster / static_cast<size_t>(properties().multiProcessorCount);
  const Config config{1, static_cast<unsigned>(threads), dynamic_bytes};
  *blocks = static_cast<int>(std::min(blocks_of_multiprocessor(config), most));
  return cudaSuccess;
}
