#include "wgmma_kernels.hpp"

#include <cuda_runtime.h>

#include <utility>

#include "tile/host/cuda_check.hpp"
#include "tile/ptx/async_proxy.cuh"
#include "tile/ptx/swizzle.hpp"
#include "tile/ptx/wgmma.cuh"

namespace ptx_test {
namespace {

using tile::ptx::Major;
using tile::ptx::WgmmaDescriptor;

constexpr int kThreads = 128 * kWgmmaWarpgroups;
constexpr int kSteps = kWgmmaRowBytes / 32;  // instructions
constexpr int kChunks = kWgmmaRowBytes / 16;

// As wgmma is to read it.
__device__ void store_tile(uint4* shared, const std::uint32_t* tile, int rows) {
  const auto* chunks = reinterpret_cast<const uint4*>(tile);
  for (int i = static_cast<int>(threadIdx.x); i < rows * kChunks; i += kThreads) {
    shared[i / kChunks * kChunks + tile::swizzle_128B(i / kChunks, i % kChunks)] = chunks[i];
  }
}

__device__ void publish_tiles() {
  tile::ptx::fence_async_proxy();
  __syncthreads();
}

template <Major kMajor>
__device__ WgmmaDescriptor describe(const uint4* shared, int depth) {
  if constexpr (kMajor == Major::k) return WgmmaDescriptor::along_k(shared);
  return WgmmaDescriptor::along_mn(shared, depth * kWgmmaRowBytes);
}

// From one instruction's part of a tile to the next one's.
template <Major kMajor>
constexpr int kStepBytes = kMajor == Major::k ? 32 : 16 * kWgmmaRowBytes;

// Calls visit(i, index in D) for all of the thread's sums.
template <int kN, class Visit>
__device__ void for_each_sum(Visit visit) {
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) {
    const tile::ptx::Element e = tile::ptx::element_of_wgmma(thread % 128, i);
    visit(i, (thread / 128 * kWgmmaRows + e.row) * kN + e.col);
  }
}

// What element_of_a says of 16 rows, for the four warps of a warpgroup.
template <class T>
__device__ void load_a(std::uint32_t (&registers)[4], const std::uint32_t* tile, int step) {
  const int thread = static_cast<int>(threadIdx.x % 128);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    constexpr int kTogether = 4 / static_cast<int>(sizeof(T));  // elements of a register
    const tile::ptx::Element e =
        tile::ptx::element_of_a<8 * static_cast<int>(sizeof(T))>(thread % 32, kTogether * i);
    registers[i] = tile[(thread / 32 * 16 + e.row) * 32 + step * 8 + e.col / kTogether];
  }
}

template <class T, int kN, Major kMajorA, Major kMajorB, bool kRegisters>
__global__ void __launch_bounds__(kThreads)
    wgmma_kernel(bool accumulate, const std::uint32_t* a, const std::uint32_t* b, float* d) {
  constexpr int kDepth = kWgmmaRowBytes / static_cast<int>(sizeof(T));
  constexpr int kBRows = kMajorB == Major::k ? kN : (kN + 63) / 64 * kDepth;
  __shared__ alignas(1024) uint4 a_shared[kWgmmaRows * kChunks];
  __shared__ alignas(1024) uint4 b_shared[kBRows * kChunks];
  store_tile(a_shared, a, kWgmmaRows);
  store_tile(b_shared, b, kBRows);
  publish_tiles();

  float sums[kN / 2];
  for_each_sum<kN>([&](int i, int at) { sums[i] = accumulate ? d[at] : 1e30f; });
  const WgmmaDescriptor a_tile = describe<kMajorA>(a_shared, kDepth);
  const WgmmaDescriptor b_tile = describe<kMajorB>(b_shared, kDepth);
  std::uint32_t a_registers[kSteps][4];
  if constexpr (kRegisters) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) load_a<T>(a_registers[step], a, step);
  }
  tile::ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const WgmmaDescriptor b_step = b_tile + step * kStepBytes<kMajorB>;
    const bool add = accumulate || step > 0;
    if constexpr (kRegisters) {
      tile::ptx::wgmma<T, kN, kMajorB>(sums, a_registers[step], b_step, add);
    } else {
      tile::ptx::wgmma<T, kN, kMajorA, kMajorB>(sums, a_tile + step * kStepBytes<kMajorA>, b_step,
                                                add);
    }
  }
  tile::ptx::wgmma_commit();
  tile::ptx::wgmma_wait<0>(sums);
  for_each_sum<kN>([&](int i, int at) { d[at] = sums[i]; });
}

__global__ void __launch_bounds__(kThreads)
    two_groups_kernel(const std::uint32_t* a, const std::uint32_t* b, float* d, float* d_second) {
  constexpr int kN = 64;
  __shared__ alignas(1024) uint4 a_shared[kWgmmaRows * kChunks];
  __shared__ alignas(1024) uint4 b_shared[kN * kChunks];
  store_tile(a_shared, a, kWgmmaRows);
  store_tile(b_shared, b, kN);
  publish_tiles();

  float first[kN / 2], second[kN / 2];
  const WgmmaDescriptor a_tile = WgmmaDescriptor::along_k(a_shared);
  const WgmmaDescriptor b_tile = WgmmaDescriptor::along_k(b_shared);
  tile::ptx::wgmma_fence();
  tile::ptx::wgmma<__nv_bfloat16, kN>(first, a_tile, b_tile, false);
  tile::ptx::wgmma<__nv_bfloat16, kN>(first, a_tile + 32, b_tile + 32, true);
  tile::ptx::wgmma_commit();
  tile::ptx::wgmma<__nv_bfloat16, kN>(second, a_tile + 64, b_tile + 64, false);
  tile::ptx::wgmma<__nv_bfloat16, kN>(second, a_tile + 96, b_tile + 96, true);
  tile::ptx::wgmma_commit();
  tile::ptx::wgmma_wait<1>(first);
  for_each_sum<kN>([&](int i, int at) { d[at] = first[i]; });
  tile::ptx::wgmma_wait<0>(second);
  for_each_sum<kN>([&](int i, int at) { d_second[at] = second[i]; });
}

__global__ void __launch_bounds__(128)
    in_eights_kernel(const std::uint32_t* a, const std::uint32_t* b, float* d) {
  constexpr int kN = 64, kEights = kN / 8, kEightBytes = 8 * 16;
  __shared__ alignas(128) uint4 b_shared[kChunks][kN];  // [16 bytes of k][n]
  for (int i = static_cast<int>(threadIdx.x); i < kN * kChunks; i += 128) {
    b_shared[i % kChunks][i / kChunks] = reinterpret_cast<const uint4*>(b)[i];
  }
  publish_tiles();
  float sums[kN / 2];
  std::uint32_t a_registers[kSteps][4];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) load_a<__nv_bfloat16>(a_registers[step], a, step);
  tile::ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const auto b_step =
        WgmmaDescriptor::along_k_in_eights(b_shared[2 * step], kEights * kEightBytes, kEightBytes);
    tile::ptx::wgmma<__nv_bfloat16, kN>(sums, a_registers[step], b_step, step > 0);
  }
  tile::ptx::wgmma_commit();
  tile::ptx::wgmma_wait<0>(sums);
  for_each_sum<kN>([&](int i, int at) { d[at] = sums[i]; });
}

template <class T, int kN>
tile::Status launch(const WgmmaForm& form, bool accumulate, const std::uint32_t* a,
                    const std::uint32_t* b, float* d) {
  constexpr Major k = Major::k, mn = Major::mn;
  if constexpr (sizeof(T) == 1) {
    auto* const kernel =
        form.a_in_registers ? wgmma_kernel<T, kN, k, k, true> : wgmma_kernel<T, kN, k, k, false>;
    kernel<<<1, kThreads>>>(accumulate, a, b, d);
  } else if (form.a_in_registers) {
    if (form.b_along_n) {
      wgmma_kernel<T, kN, k, mn, true><<<1, kThreads>>>(accumulate, a, b, d);
    } else {
      wgmma_kernel<T, kN, k, k, true><<<1, kThreads>>>(accumulate, a, b, d);
    }
  } else if (form.a_along_m) {
    if (form.b_along_n) {
      wgmma_kernel<T, kN, mn, mn, false><<<1, kThreads>>>(accumulate, a, b, d);
    } else {
      wgmma_kernel<T, kN, mn, k, false><<<1, kThreads>>>(accumulate, a, b, d);
    }
  } else if (form.b_along_n) {
    wgmma_kernel<T, kN, k, mn, false><<<1, kThreads>>>(accumulate, a, b, d);
  } else {
    wgmma_kernel<T, kN, k, k, false><<<1, kThreads>>>(accumulate, a, b, d);
  }
  return tile::launch_status("wgmma_kernel");
}

template <class T>
tile::Status launch(const WgmmaForm& form, bool accumulate, const std::uint32_t* a,
                    const std::uint32_t* b, float* d) {
  return form.columns == 64 ? launch<T, 64>(form, accumulate, a, b, d)
                            : launch<T, 256>(form, accumulate, a, b, d);
}

/// The columns that are not for every form.
template <int... kSixteens>
tile::Status launch_some(const WgmmaForm& form, bool accumulate, const std::uint32_t* a,
                         const std::uint32_t* b, float* d,
                         std::integer_sequence<int, kSixteens...>) {
  const auto launch_if = [&](auto columns) {
    constexpr int kN = columns.value;
    if (form.columns != kN) return false;
    if (form.a_in_registers) {
      wgmma_kernel<__nv_bfloat16, kN, Major::k, Major::mn, true>
          <<<1, kThreads>>>(accumulate, a, b, d);
    } else {
      wgmma_kernel<__nv_bfloat16, kN, Major::k, Major::mn, false>
          <<<1, kThreads>>>(accumulate, a, b, d);
    }
    return true;
  };
  static_cast<void>((launch_if(std::integral_constant<int, (kSixteens + 1) * 16>{}) || ...));
  return tile::launch_status("wgmma_kernel");
}

}  // namespace

tile::Status multiply_by_wgmma(const WgmmaForm& form, bool accumulate, const std::uint32_t* a,
                               const std::uint32_t* b, float* d) {
  if (form.columns != 64 && form.columns != 256) {
    return launch_some(form, accumulate, a, b, d, std::make_integer_sequence<int, 16>{});
  }
  switch (form.operands) {
    case Number::fp16: return launch<__half>(form, accumulate, a, b, d);
    case Number::bf16: return launch<__nv_bfloat16>(form, accumulate, a, b, d);
    default: return launch<__nv_fp8_e4m3>(form, accumulate, a, b, d);
  }
}

tile::Status multiply_in_two_groups(const std::uint32_t* a, const std::uint32_t* b, float* d,
                                    float* d_second) {
  two_groups_kernel<<<1, kThreads>>>(a, b, d, d_second);
  return tile::launch_status("two_groups_kernel");
}

tile::Status multiply_in_eights(const std::uint32_t* a, const std::uint32_t* b, float* d) {
  in_eights_kernel<<<1, 128>>>(a, b, d);
  return tile::launch_status("in_eights_kernel");
}

}  // namespace ptx_test
