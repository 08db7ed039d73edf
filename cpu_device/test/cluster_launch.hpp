// A launch of clusters by the runtime API alone. For .cu files.
#pragma once

#include <cuda_runtime.h>

#include "tile/host/device.hpp"

namespace device_test {

struct Shape {
  dim3 grid, block, cluster;
  size_t bytes = 0;
};

/// `name`, `file` and `line` are for reports.
template <class... Parameters>
cudaError_t launch_clusters(const char* name, const char* file, int line, const Shape& shape,
                            void (*kernel)(Parameters...), Parameters... parameters) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = shape.cluster.x;
  attribute.val.clusterDim.y = shape.cluster.y;
  attribute.val.clusterDim.z = shape.cluster.z;
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  tile::name_launch(name, file, line);
  return cudaLaunchKernelEx(&config, kernel, parameters...);
}

}  // namespace device_test
