#include "tma_kernels.hpp"

#include <cuda_runtime.h>

#include "cluster_launch.hpp"
#include "tile/ptx/async_proxy.cuh"
#include "tile/ptx/cluster.cuh"
#include "tile/ptx/semaphore.cuh"
#include "tile/ptx/tma.cuh"
#include "tile/ptx/warpgroup.cuh"

namespace device_test {
namespace {

using namespace tile::ptx;

constexpr unsigned kBytes = 64 * sizeof(float);

__global__ void look_kernel(const float* in, float* out) {
  __shared__ alignas(16) float run[64];
  __shared__ Mbarrier barrier;
  const unsigned t = threadIdx.x;
  run[t] = -1;
  if (t == 0) mbarrier_init(&barrier, 1);
  __syncthreads();
  if (t == 0) {
    mbarrier_arrive_expect(&barrier, kBytes);
    bulk_load(run, in, kBytes, &barrier);
  }
  __syncthreads();
  out[t] = run[t];
  __syncthreads();
  mbarrier_wait(&barrier, 0);
  out[64 + t] = run[t];
}

__global__ void overwrite_kernel(float* out, float* seen) {
  __shared__ alignas(16) float run[64];
  for (int i = 0; i < 64; ++i) run[i] = 1;
  fence_async_proxy();
  bulk_store(out, run, kBytes);
  bulk_commit();
  for (int i = 0; i < 64; ++i) run[i] = 2;
  bulk_wait_read<0>();
  for (int i = 0; i < 64; ++i) run[i] = 3;
  seen[0] = out[63];
  bulk_wait<0>();
  seen[1] = out[63];
}

__global__ void add_in_turn_kernel(bool waits_until_done, unsigned* counters, float* sums) {
  __shared__ alignas(16) float run[4];
  const unsigned number = atomicAdd(&counters[0], 1u);
  for (float& x : run) x = number == 0 ? 0x1p24f : number == 3 ? -0x1p24f : 1;
  fence_async_proxy();
  semaphore_wait(&counters[1], number);
  bulk_reduce_add(sums, run, sizeof run);
  bulk_commit();
  waits_until_done ? bulk_wait<0>() : bulk_wait_read<0>();
  semaphore_add(&counters[1]);
}

__global__ void misuse_kernel(TmaMisuse misuse, const __grid_constant__ tile::TensorMap map,
                              float* out) {
  __shared__ alignas(128) float box[1024];
  __shared__ Mbarrier barrier;
  const unsigned t = threadIdx.x;
  char* bytes = reinterpret_cast<char*>(box);
  if (t == 0) mbarrier_init(&barrier, 1);
  for (unsigned i = t; i < 1024; i += blockDim.x) box[i] = 0;
  fence_async_proxy();
  __syncthreads();
  const BoxAt at{0, 0};
  if (t == 3) {
    switch (misuse) {
      case TmaMisuse::misaligned_box: tma_load(bytes + 64, map, at, &barrier); break;   // [box]
      case TmaMisuse::misaligned_run: bulk_load(bytes + 8, out, 16, &barrier); break;   // [run]
      case TmaMisuse::misaligned_global: bulk_load(box, out + 1, 16, &barrier); break;  // [global]
      case TmaMisuse::odd_bytes: bulk_store(out, box, 24); break;                       // [odd]
      case TmaMisuse::not_in_shared: tma_load(out, map, at, &barrier); break;     // [not_in_shared]
      case TmaMisuse::past_shared: bulk_store(out, box + 1008, 16384); break;     // [past]
      case TmaMisuse::from_shared: bulk_load(box, box + 4, 16, &barrier); break;  // [from_shared]
      case TmaMisuse::no_map: prefetch_tensor_map(tile::TensorMap{}); break;      // [no_map]
      case TmaMisuse::three_coordinates:
        tma_load(box, map, BoxAt{0, 0, 0}, &barrier);  // [three]
        break;
      case TmaMisuse::odd_column: tma_load(box, map, BoxAt{-3, 0}, &barrier); break;   // [column]
      case TmaMisuse::store_in_front: tma_store(map, BoxAt{0, -1}, box); break;        // [in_front]
      case TmaMisuse::no_ranks: tma_load_multicast(box, map, at, &barrier, 0); break;  // [no_ranks]
      case TmaMisuse::rank_too_large:
        tma_load_multicast(box, map, at, &barrier, 0b10);  // [rank]
        break;
      case TmaMisuse::mbarrier_in_global:
        tma_load(box, map, at, reinterpret_cast<Mbarrier*>(out));  // [mbarrier]
        break;
      case TmaMisuse::load_under_way:
        mbarrier_arrive_expect(&barrier, kBytes);
        bulk_load(box, out, kBytes, &barrier);  // [load_under_way]
        break;
      case TmaMisuse::store_under_way:
        bulk_store(out, box, kBytes);  // [store_under_way]
        bulk_commit();
        break;
      case TmaMisuse::store_in_no_group:
        bulk_store(out, box, kBytes);  // [store_in_no_group]
        bulk_wait<0>();
        break;
      case TmaMisuse::too_few_bytes:
      case TmaMisuse::too_many_bytes:
        mbarrier_arrive_expect(&barrier, misuse == TmaMisuse::too_few_bytes ? 16 : 512);
        bulk_load(box, out, kBytes, &barrier);
        mbarrier_wait(&barrier, 0);  // [bytes]
        break;
      case TmaMisuse::barrier_0: barrier_sync(0, 32); break;       // [barrier_0]
      case TmaMisuse::odd_threads: barrier_arrive(1, 48); break;   // [odd_threads]
      case TmaMisuse::more_threads: barrier_sync(15, 352); break;  // [more_threads]
      case TmaMisuse::second_arrival:
        barrier_arrive(1, 64);
        barrier_arrive(1, 64);  // [second]
        break;
      default: break;
    }
  }
  if (misuse == TmaMisuse::other_threads) {
    if (t < 32) barrier_arrive(2, 64);  // [named]
    __syncthreads();                    // the first warp is the first in any order of threads
    if (t >= 32 && t < 64) barrier_arrive(2, 96);  // [other]
  }
  if (misuse == TmaMisuse::half_warp && t % 32 < 16 && t < 64) barrier_sync(4, 32);  // [half]
  if (misuse == TmaMisuse::waits_alone && t < 32) barrier_sync(5, 64);               // [alone]
  if (misuse == TmaMisuse::registers_of_half && t >= 256) setmaxnreg_dec<40>();      // [of_half]
  if (misuse == TmaMisuse::fewer_by_inc && t < 128) setmaxnreg_inc<40>();            // [fewer]
  if (misuse == TmaMisuse::more_by_dec && t < 128) {
    setmaxnreg_dec<40>();
    setmaxnreg_dec<48>();  // [more]
  }
  if (misuse == TmaMisuse::too_many_registers && t < 128) setmaxnreg_inc<256>();  // [too_many]
  if (misuse == TmaMisuse::too_many_registers && t >= 128 && t < 256) setmaxnreg_dec<192>();
  if (misuse == TmaMisuse::one_of_warpgroup && t < 32) setmaxnreg_dec<40>();  // [one]
}

__global__ void ended_kernel(bool loads, const __grid_constant__ tile::TensorMap map) {
  __shared__ alignas(128) float box[1024];
  __shared__ Mbarrier barrier;
  if (threadIdx.x == 0) mbarrier_init(&barrier, 1);
  cluster_sync();
  if (cluster_rank() == 0) return;
  for (int i = 0; i < 20; ++i) __nanosleep(100);
  if (threadIdx.x != 0) return;
  if (loads) tma_load_multicast(box, map, BoxAt{0, 0}, &barrier, 0b01);  // [load_for_ended]
  mbarrier_arrive(&barrier, 0);                                          // [arrive_at_ended]
}

}  // namespace

void look_at_load(const float* in, float* out) { look_kernel<<<1, 64>>>(in, out); }

void overwrite_source(float* out, float* seen) { overwrite_kernel<<<1, 1>>>(out, seen); }

void add_in_turn(bool waits_until_done, unsigned* counters, float* sums) {
  add_in_turn_kernel<<<4, 1>>>(waits_until_done, counters, sums);
}

void misuse_tma(TmaMisuse what, const tile::TensorMap& map, float* out) {
  misuse_kernel<<<1, 320>>>(what, map, out);
}

cudaError_t reach_the_ended(bool loads, const tile::TensorMap& map) {
  return launch_clusters("ended_kernel", __FILE__, __LINE__, {2, 32, 2}, ended_kernel, loads, map);
}

}  // namespace device_test
