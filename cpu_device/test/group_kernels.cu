#include "group_kernels.hpp"

#include <cassert>

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>

namespace device_test {
namespace {

namespace cg = cooperative_groups;

__device__ unsigned size_of(const cg::thread_group& group) { return group.size(); }

__global__ void groups_kernel(Groups* out) {
  const cg::thread_block block = cg::this_thread_block();
  const cg::thread_block_tile<16> tile = cg::tiled_partition<16>(block);
  const auto warp = cg::tiled_partition<32>(block);
  const int me = static_cast<int>(threadIdx.x);
  Groups g{};
  g.block_rank = block.thread_rank();
  g.block_size = block.size();
  g.tile_rank = tile.thread_rank();
  g.tile_size = tile.size();
  g.tile_number = tile.meta_group_rank();
  g.tiles = tile.meta_group_size();
  g.tile_sum = cg::reduce(tile, me, cg::plus<int>());
  g.from_next = tile.shfl_down(me, 1);
  g.from_third = tile.shfl(me + 0.5, 3);
  g.tile_scan = cg::inclusive_scan(tile, 1);
  g.before = cg::exclusive_scan(tile, 1);
  const cg::coalesced_group odd = cg::binary_partition(warp, me % 2 != 0);
  g.odd_rank = odd.thread_rank();
  g.odd_size = odd.size();
  g.odd_largest = cg::reduce(odd, me, cg::greater<int>());
  g.odd_ballot = odd.ballot(me % 4 == 0);
  const cg::thread_block_tile<4> nested = cg::tiled_partition<4>(warp);
  g.nested_rank = nested.meta_group_rank();
  g.nested_groups = nested.meta_group_size();
  g.odd_number = odd.meta_group_rank();
  g.odd_groups = odd.meta_group_size();
  const cg::coalesced_group fours = cg::tiled_partition(odd, 4);
  g.fours_rank = fours.meta_group_rank();
  g.fours_groups = fours.meta_group_size();
  g.fours_size = fours.size();
  g.generic_size = size_of(cg::tiled_partition(block, 8));
  cg::sync(block);
  out[threadIdx.x] = g;
}

__global__ void meet_kernel(unsigned long long* total) {
  const cg::grid_group grid = cg::this_grid();
  atomicAdd(&total[0], 1ull);
  grid.sync();
  atomicAdd(&total[1], *const_cast<volatile unsigned long long*>(&total[0]));
}

__global__ void pointers_kernel(float* out, float scale, double offset) {
  out[threadIdx.x] = static_cast<float>(scale * static_cast<float>(threadIdx.x) + offset);
}

__global__ void assert_kernel() { assert(threadIdx.x != 5); }

__global__ void odd_lanes_kernel(int* out) {
  const unsigned lane = threadIdx.x;
  int sum = 0;
  // The even lanes have more to do, so that odd ones wait below for the whole warp.
  if (lane % 2 == 0) {
    sum = static_cast<int>(lane);
    for (int step = 2; step < 32; step *= 2) sum += __shfl_xor_sync(0x55555555, sum, step);
  }
  out[lane] = __shfl_sync(0xffffffff, sum, 0);
}

__global__ void scopes_kernel(int* counters) {
  atomicAdd_block(&counters[0], 2);
  atomicAdd_system(&counters[1], 3);
  atomicMax_system(&counters[2], static_cast<int>(threadIdx.x));
}

}  // namespace

void ask_groups(Groups* out) { groups_kernel<<<1, 64>>>(out); }

cudaError_t meet_in_grid(int blocks, int threads, unsigned long long* total) {
  void* arguments[] = {&total};
  return cudaLaunchCooperativeKernel(meet_kernel, dim3(static_cast<unsigned>(blocks)),
                                     dim3(static_cast<unsigned>(threads)), arguments, 0, nullptr);
}

cudaError_t blocks_that_fit(int* blocks, int threads) {
  int each = 0, multiprocessors = 0;
  cudaError_t error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, meet_kernel, threads, 0);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0);
  *blocks = each * multiprocessors;
  return error;
}

cudaError_t launch_by_pointers(float* out, int threads, float scale, double offset) {
  void* arguments[] = {&out, &scale, &offset};
  return cudaLaunchKernel(pointers_kernel, dim3(1), dim3(static_cast<unsigned>(threads)), arguments,
                          0, nullptr);
}

void fail_an_assert() { assert_kernel<<<1, 32>>>(); }

void odd_lanes_first(int* out) { odd_lanes_kernel<<<1, 32>>>(out); }

void scopes(int* counters) { scopes_kernel<<<1, 100>>>(counters); }

}  // namespace device_test
