#include "warp_kernels.hpp"

#include <cuda_runtime.h>

namespace device_test {
namespace {

__device__ unsigned thread_number() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

template <class T>
__global__ void shuffle_kernel(const T* in, T* out, unsigned mask) {
  const T value = in[threadIdx.x];
  for (int w = 0; w < kWidths; ++w) {
    for (int a = 0; a < kArguments; ++a) {
      const int width = 1 << w;
      const int argument = kFirstArgument + a;
      T* to = out + (w * kArguments + a) * kShuffles * blockDim.x + threadIdx.x;
      to[kIdx * blockDim.x] = __shfl_sync(mask, value, argument, width);
      to[kUp * blockDim.x] = __shfl_up_sync(mask, value, argument, width);
      to[kDown * blockDim.x] = __shfl_down_sync(mask, value, argument, width);
      to[kXor * blockDim.x] = __shfl_xor_sync(mask, value, argument, width);
    }
  }
}

// Cards before compute capability 8.0 lack them.
__device__ void add_reductions([[maybe_unused]] unsigned mask, [[maybe_unused]] int value,
                               [[maybe_unused]] WarpResults* r) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  const unsigned bits = static_cast<unsigned>(value);
  r->add_int = __reduce_add_sync(mask, value);
  r->min_int = __reduce_min_sync(mask, value);
  r->max_int = __reduce_max_sync(mask, value);
  r->add_unsigned = __reduce_add_sync(mask, bits);
  r->min_unsigned = __reduce_min_sync(mask, bits);
  r->max_unsigned = __reduce_max_sync(mask, bits);
  r->and_unsigned = __reduce_and_sync(mask, bits);
  r->or_unsigned = __reduce_or_sync(mask, bits);
  r->xor_unsigned = __reduce_xor_sync(mask, bits);
#endif
}

__device__ WarpResults collect(unsigned mask, const WarpValues& v, int* shared) {
  const unsigned bits = static_cast<unsigned>(v.integer);
  WarpResults r{};
  r.all = __all_sync(mask, v.predicate);
  r.any = __any_sync(mask, v.predicate);
  r.ballot = __ballot_sync(mask, v.predicate);
  r.match_any_int = __match_any_sync(mask, v.integer);
  r.match_any_unsigned = __match_any_sync(mask, bits);
  r.match_any_wide = __match_any_sync(mask, v.wide);
  r.match_any_float = __match_any_sync(mask, v.single);
  r.match_any_double = __match_any_sync(mask, v.full);
  r.match_all_int = __match_all_sync(mask, v.integer, &r.all_match_int);
  r.match_all_wide = __match_all_sync(mask, v.wide, &r.all_match_wide);
  r.match_all_float = __match_all_sync(mask, v.single, &r.all_match_float);
  r.match_all_double = __match_all_sync(mask, v.full, &r.all_match_double);
  add_reductions(mask, v.integer, &r);

  const unsigned thread = thread_number();
  shared[thread] = v.integer;
  __syncwarp(mask);
  r.through_shared = shared[thread / 32 * 32 + __ffs(mask) - 1];
  return r;
}

__global__ void collectives_kernel(const WarpValues* in, WarpResults* out, unsigned mask) {
  __shared__ int shared[1024];
  const unsigned thread = thread_number();
  if (mask >> thread % 32 & 1) {
    out[thread] = collect(mask, in[thread], shared);
  } else {
    out[thread] = collect(~mask, in[thread], shared);
  }
}

__global__ void groups_in_loops_kernel(const int* in, int* out) {
  const unsigned group = threadIdx.x % 32 / 8;
  const unsigned mask = 0xffu << 8 * group;
  int sum = in[threadIdx.x];
  for (unsigned round = 0; round <= group; ++round) {
    for (int step = 4; step > 0; step /= 2) sum += __shfl_xor_sync(mask, sum, step);
  }
  out[threadIdx.x] = sum;
}

__global__ void active_masks_kernel(ActiveMasks* out) {
  const unsigned lane = threadIdx.x % 32;
  ActiveMasks a{};
  a.converged = __activemask();
  if (lane % 3 == 0) {
    a.in_branch = __activemask();
  } else {
    a.in_branch = __activemask();
  }
  __syncwarp();
  for (unsigned round = 0; round <= lane % 4; ++round) a.in_loop[round] = __activemask();
  __syncwarp();
  a.after = __activemask();
  out[threadIdx.x] = a;
}

__global__ void aggregated_count_kernel(const int* in, int* counter, int* tickets) {
  int ticket = -1;
  if (in[threadIdx.x] % 2) {
    const unsigned active = __activemask();
    const int leader = __ffs(active) - 1;
    const unsigned lane = threadIdx.x % 32;
    int first = 0;
    if (lane == static_cast<unsigned>(leader)) first = atomicAdd(counter, __popc(active));
    first = __shfl_sync(active, first, leader);
    ticket = first + __popc(active & ((1u << lane) - 1));
  }
  tickets[threadIdx.x] = ticket;
}

}  // namespace

template <class T>
void shuffles(const T* in, T* out, unsigned mask, unsigned threads) {
  shuffle_kernel<<<1, threads>>>(in, out, mask);
}
template void shuffles(const int*, int*, unsigned, unsigned);
template void shuffles(const unsigned*, unsigned*, unsigned, unsigned);
template void shuffles(const long*, long*, unsigned, unsigned);
template void shuffles(const unsigned long*, unsigned long*, unsigned, unsigned);
template void shuffles(const long long*, long long*, unsigned, unsigned);
template void shuffles(const unsigned long long*, unsigned long long*, unsigned, unsigned);
template void shuffles(const float*, float*, unsigned, unsigned);
template void shuffles(const double*, double*, unsigned, unsigned);

void collectives(const WarpValues* in, WarpResults* out, unsigned mask, dim3 block) {
  collectives_kernel<<<1, block>>>(in, out, mask);
}

void groups_in_loops(const int* in, int* out, unsigned threads) {
  groups_in_loops_kernel<<<1, threads>>>(in, out);
}

void active_masks(ActiveMasks* out, unsigned threads) { active_masks_kernel<<<1, threads>>>(out); }

void aggregated_count(const int* in, int* counter, int* tickets, unsigned threads) {
  aggregated_count_kernel<<<1, threads>>>(in, counter, tickets);
}

}  // namespace device_test
