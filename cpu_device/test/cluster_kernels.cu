#include "cluster_kernels.hpp"

#include <cuda_runtime.h>

#include "cluster_launch.hpp"
#include "tile/ptx/cluster.cuh"

namespace device_test {
namespace {

using namespace tile::ptx;

__global__ void number_kernel(int* out) {
  if (threadIdx.x != 0 || threadIdx.y != 0) return;
  const unsigned b = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  out[2 * b] = static_cast<int>(cluster_rank());
  out[2 * b + 1] = static_cast<int>(cluster_size());
}

__global__ void seven_kernel(int* out) { out[0] = 7; }

__device__ int lines[2];

__global__ void meeting_kernel(Meeting meeting, int* out) {
  __shared__ int value;
  const unsigned t = threadIdx.x, rank = cluster_rank();
  volatile int* own_value = &value;
  if (t == 0) value = 0;
  switch (meeting) {
    case Meeting::block_returned:
      if (rank == 1) return;
      cluster_sync();
      break;
    case Meeting::arrived_and_returned:
      cluster_sync();
      if (t / 32 % 2 == 1) {
        cluster_arrive();
        return;
      }
      // The others must wait for these, which are late.
      if (rank == 0 && t >= 64) {
        for (int i = 0; i < 20; ++i) __nanosleep(100);
        if (t == 64) *in_block_of_cluster(&value, 3) = 1;
      }
      cluster_sync();
      if (rank == 3 && blockDim.x > 64 && value != 1) return;
      cluster_sync();
      break;
    case Meeting::poll:
      cluster_sync();
      if (rank == 3) {
        for (int i = 0; i < 20; ++i) __nanosleep(100);
        if (t == 0) atomicExch(in_block_of_cluster(&value, 0), 1);
      }
      if (rank == 0 && t == 7) {
        while (*own_value == 0) __nanosleep(100);
        if (threadIdx.x != 7) *own_value = 2;  // no other thread's
      }
      cluster_sync();
      if (rank == 0 && value != 1) return;
      break;
    case Meeting::poll_by_votes:
      cluster_sync();
      if (rank == 3) atomicExch(in_block_of_cluster(&value, 0), 1);
      if (rank == 0) {
        while (!__any_sync(0xffffffff, atomicAdd(&value, 0) != 0)) continue;
      }
      cluster_sync();
      break;
    case Meeting::alone: cluster_sync(); break;
    case Meeting::barrier_of_block:
      if (rank == 1 && t == 0) {
        lines[1] = __LINE__ + 1;
        __syncthreads();
      }
      lines[0] = __LINE__ + 1;
      cluster_sync();
      break;
    case Meeting::second_arrival:
      cluster_arrive();
      if (rank == 2 && t == 3) {
        lines[0] = __LINE__ + 1;
        cluster_arrive();
      }
      cluster_wait();
      break;
    case Meeting::no_arrival:
      if (rank == 2 && t == 3) {
        lines[0] = __LINE__ + 1;
        cluster_wait();
      }
      cluster_sync();
      break;
    case Meeting::two_arrivals:
      if (t % 2 == 0) {
        lines[0] = __LINE__ + 1;
        cluster_arrive();
      } else {
        lines[1] = __LINE__ + 1;
        cluster_arrive();
      }
      cluster_wait();
      break;
    case Meeting::two_waits:
      cluster_arrive();
      if (t % 2 == 0) {
        lines[0] = __LINE__ + 1;
        cluster_wait();
      } else {
        lines[1] = __LINE__ + 1;
        cluster_wait();
      }
      break;
    case Meeting::rank:
      lines[0] = __LINE__ + 1;
      out[0] = in_block_of_cluster(&value, 4) == nullptr;
      break;
    case Meeting::global_address:
      lines[0] = __LINE__ + 1;
      out[0] = in_block_of_cluster(out, 1) == nullptr;
      break;
    case Meeting::trap:
      if (rank == 2 && t == 5) __trap();
      cluster_sync();
      break;
    case Meeting::endless_poll:
      __syncthreads();
      while (*own_value == 0) __nanosleep(100);
      break;
    case Meeting::read_after_the_end:
      cluster_sync();
      if (rank == 0 && t == 0) out[gridDim.x * blockDim.x] = *in_block_of_cluster(&value, 1);
      break;
  }
  out[blockIdx.x * blockDim.x + t] = 1;
}

int launch_line = 0;

}  // namespace

cudaError_t number_blocks(int* out, dim3 grid, dim3 block, dim3 cluster, size_t bytes, bool large) {
  if (const cudaError_t error = allow_large_clusters(large); error != cudaSuccess) return error;
  return launch_clusters("number_kernel", __FILE__, __LINE__, {grid, block, cluster, bytes},
                         number_kernel, out);
}

cudaError_t launch_without_clusters(int* out, bool with_attributes) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeIgnore;
  cudaLaunchConfig_t config{};
  config.gridDim = config.blockDim = dim3(1);
  config.attrs = with_attributes ? &attribute : nullptr;
  config.numAttrs = with_attributes;
  return cudaLaunchKernelEx(&config, seven_kernel, out);
}

cudaError_t launch_by_nothing() {
  return cudaLaunchKernelEx(static_cast<const cudaLaunchConfig_t*>(nullptr), seven_kernel,
                            static_cast<int*>(nullptr));
}

cudaError_t launch_by_lost_attributes() {
  cudaLaunchConfig_t config{};
  config.gridDim = config.blockDim = dim3(1);
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, seven_kernel, static_cast<int*>(nullptr));
}

cudaError_t allow_large_clusters(int value) {
  return cudaFuncSetAttribute(number_kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, value);
}

cudaError_t clusters_at_a_time(int* count, dim3 block, dim3 cluster, size_t bytes) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = cluster.x;
  attribute.val.clusterDim.y = cluster.y;
  attribute.val.clusterDim.z = cluster.z;
  cudaLaunchConfig_t config{};
  config.gridDim = cluster;
  config.blockDim = block;
  config.dynamicSmemBytes = bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaOccupancyMaxActiveClusters(count, number_kernel, &config);
}

void meet(Meeting meeting, unsigned threads, int* out) {
  const unsigned blocks = meeting == Meeting::alone ? 1 : 4;
  launch_line = __LINE__ + 1;
  launch_clusters("meeting_kernel", __FILE__, __LINE__, {blocks, threads, blocks}, meeting_kernel,
                  meeting, out);
}

MeetingLines lines_of_meeting() {
  int both[2] = {};
  cudaMemcpyFromSymbol(both, lines, sizeof both);
  return {both[0], both[1], launch_line};
}

}  // namespace device_test
