#include "wgmma_kernels.hpp"

#include <cuda_runtime.h>

#include "cpu_device/mbarrier.h"
#include "tile/ptx/async_proxy.cuh"
#include "tile/ptx/wgmma.cuh"

namespace device_test {
namespace {

using Misuse = WgmmaMisuse;
using namespace tile::ptx;

constexpr unsigned kOnes = 0x3f803f80, kTwos = 0x40004000;  // two of bf16
constexpr unsigned kChunks = 512;                           // of a tile of 64 rows

__device__ void multiply(float (&d)[32], WgmmaDescriptor a, WgmmaDescriptor b) {
  wgmma_fence();
  wgmma<__nv_bfloat16, 64>(d, a, b, false);  // [multiply]
}

// At one place for both warpgroups.
__device__ void meet() { __syncthreads(); }

__global__ void ones_kernel(Misuse misuse, float* out) {
  __shared__ alignas(1024) uint4 a[kChunks];
  __shared__ alignas(1024) uint4 b[kChunks];
  __shared__ cpu_device::Mbarrier empty;
  const unsigned t = threadIdx.x;
  if (t == 0 && blockDim.x == 256) cpu_device::mbarrier_init(&empty, 1);
  for (unsigned i = t; i < kChunks; i += blockDim.x) {
    a[i] = make_uint4(kOnes, kOnes, kOnes, kOnes);
    if (misuse == Misuse::unwritten_tile && i >= kChunks / 2) continue;
    b[i] = make_uint4(kOnes, kOnes, kOnes, kOnes);  // [write]
  }
  if (misuse != Misuse::lesser_card) fence_async_proxy();
  if (misuse != Misuse::no_barrier) __syncthreads();
  if (t >= 128) {
    if (misuse == Misuse::overwritten_by_others) {
      meet();
    } else {
      cpu_device::mbarrier_wait(&empty, 0);
    }
    a[t % 128] = make_uint4(kTwos, kTwos, kTwos, kTwos);  // [overwritten_by_others]
    return;
  }
  if (misuse == Misuse::half_of_the_warpgroup && t >= 64) return;

  float d[32] = {}, other[32] = {};
  unsigned a_registers[4] = {kOnes, kOnes, kOnes, kOnes};
  const WgmmaDescriptor a_tile = WgmmaDescriptor::along_k(
      misuse == Misuse::tile_in_global_memory ? static_cast<const void*>(out)
                                              : a + (misuse == Misuse::misaligned_tile ? 8 : 0));
  const WgmmaDescriptor b_tile =
      WgmmaDescriptor::along_k(b + (misuse == Misuse::past_shared_memory ? 64 : 0));
  if (misuse == Misuse::no_fence) {
    wgmma<__nv_bfloat16, 64>(d, a_tile, b_tile, false);  // [no_fence]
  } else if (misuse == Misuse::different_places && t < 32) {
    wgmma_fence();  // [one_place]
  } else if (misuse == Misuse::different_descriptors) {
    wgmma<__nv_bfloat16, 64>(d, a_tile, b_tile + (t == 100 ? 32 : 0), false);  // [descriptors]
  } else if (misuse == Misuse::touch_after_fence) {
    multiply(d, a_tile, b_tile);
    wgmma_commit();
    wgmma_wait<0>(d);
    wgmma_fence();
    d[1] = 1;                                           // [touch]
    wgmma<__nv_bfloat16, 64>(d, a_tile, b_tile, true);  // [touched]
  } else if (misuse == Misuse::change_of_a) {
    wgmma_fence();
    wgmma<__nv_bfloat16, 64>(d, a_registers, b_tile, false);  // [registers]
    a_registers[2] = t;                                       // [change_of_a]
  } else {
    multiply(d, a_tile, b_tile);
  }
  if (misuse == Misuse::no_wait) return;
  if (misuse != Misuse::no_commit) wgmma_commit();
  if (misuse == Misuse::overwritten_too_early) {
    a[t] = make_uint4(kTwos, kTwos, kTwos, kTwos);  // [overwritten]
  }
  if (misuse == Misuse::overwritten_by_others) meet();
  if (misuse == Misuse::write_before_wait) d[3] = 1;       // [write_before_wait]
  if (misuse == Misuse::read_before_wait) out[t] = d[31];  // [read_before_wait]
  if (misuse == Misuse::wait_for_less) {
    wgmma_wait<1>(d);  // [wait_for_less]
    out[t] = d[31];    // [read_less]
  }
  if (misuse == Misuse::wait_for_other_sums) {
    wgmma_wait<0>(other);
    out[t] = d[31];  // [read_other]
  }
  if (misuse == Misuse::told_before_wait && t == 0) cpu_device::mbarrier_arrive_expect(&empty, 0);
  wgmma_wait<0>(d);  // [wait]
  if (misuse == Misuse::overwritten_when_told && t == 0) {
    cpu_device::mbarrier_arrive_expect(&empty, 0);
  }
  if (misuse == Misuse::no_commit) out[t] = d[31];  // [read_uncommitted]
  if (misuse == Misuse::read_before_wait || misuse == Misuse::wait_for_less ||
      misuse == Misuse::wait_for_other_sums) {
    return;
  }
  out[t] = d[31] + static_cast<float>(a_registers[2] - kOnes) + other[0];
}

}  // namespace

void multiply_ones(Misuse misuse, float* out) {
  const bool two = misuse == Misuse::overwritten_when_told ||
                   misuse == Misuse::overwritten_by_others || misuse == Misuse::told_before_wait;
  const unsigned threads = misuse == Misuse::short_warpgroup ? 96 : two ? 256 : 128;
  ones_kernel<<<1, threads>>>(misuse, out);
}

}  // namespace device_test
