// A whole program for Hopper: C = A B^T in bf16, where TMA brings the tiles and wgmma multiplies
// them. From the project's folder, on an H100 or H200, and on the CPU device:
//     ./tour play docs/hopper_program/product.cu
//     nvcc -std=c++20 -arch=sm_90a -I . docs/hopper_program/product.cu && ./a.out
#include <cudaTypedefs.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tile/ptx/fragments.hpp"
#include "tile/ptx/tma.cuh"
#include "tile/ptx/wgmma.cuh"

using bf16 = __nv_bfloat16;

constexpr int kTileM = 64;     // rows of one wgmma
constexpr int kTileN = 128;    // columns of one wgmma
constexpr int kTileK = 64;     // 128 bytes: a row of the swizzle's pattern
constexpr int kWgmmaK = 16;    // what one wgmma takes of k, 32 bytes
constexpr int kThreads = 128;  // a warpgroup
constexpr int kABytes = kTileM * kTileK * int{sizeof(bf16)};
constexpr int kBBytes = kTileN * kTileK * int{sizeof(bf16)};

// snippet-begin kernel
/// A block computes 64 x 128 of C.
__global__ void __launch_bounds__(kThreads)
    multiply(const __grid_constant__ CUtensorMap a_map,  // A [m][k], boxes of 64 x 64
             const __grid_constant__ CUtensorMap b_map,  // B [n][k], boxes of 128 x 64
             float* c,                                   // [m][n]
             int m, int n, int k) {
  using namespace tile::ptx;
  // 1,024 bytes: where the pattern of the swizzle begins.
  __shared__ __align__(1024) unsigned char a_tile[kABytes];
  __shared__ __align__(1024) unsigned char b_tile[kBBytes];
  __shared__ Mbarrier full;
  const int first_row = blockIdx.y * kTileM, first_col = blockIdx.x * kTileN;
  if (threadIdx.x == 0) mbarrier_init(&full, 1);  // one thread arrives in each phase
  __syncthreads();

  float sums[kTileN / 2];  // this thread's of 64 x 128
  unsigned parity = 0;
  for (int k0 = 0; k0 < k; k0 += kTileK, parity ^= 1) {
    // One thread asks for both tiles. What lies outside of A and B arrives as zeros.
    if (threadIdx.x == 0) {
      mbarrier_arrive_expect(&full, kABytes + kBBytes);
      tma_load(a_tile, a_map, BoxAt{k0, first_row}, &full);
      tma_load(b_tile, b_map, BoxAt{k0, first_col}, &full);
    }
    mbarrier_wait(&full, parity);  // all threads: the bytes have landed

    // C += A B^T, 16 of k at a time. The first product of all replaces the sums.
    const WgmmaDescriptor a = WgmmaDescriptor::along_k(a_tile),
                          b = WgmmaDescriptor::along_k(b_tile);
    wgmma_fence();
#pragma unroll
    for (int part = 0; part < kTileK / kWgmmaK; ++part) {
      const int bytes = part * kWgmmaK * int{sizeof(bf16)};
      wgmma<bf16, kTileN>(sums, a + bytes, b + bytes, k0 != 0 || part != 0);
    }
    wgmma_commit();
    wgmma_wait<0>(sums);
    __syncthreads();  // all four warps have read the tiles before the next ones come
  }

#pragma unroll
  for (int i = 0; i < kTileN / 2; ++i) {
    const Element e = element_of_wgmma(threadIdx.x, i);
    const int row = first_row + e.row, col = first_col + e.col;
    if (row < m && col < n) c[row * n + col] = sums[i];
  }
}
// snippet-end kernel

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::printf("%s\n", cudaGetErrorString(error));
  std::exit(1);
}

// snippet-begin map
/// What TMA has to know of a matrix [rows][cols] to copy boxes of box_rows x 64 from it.
CUtensorMap make_map(bf16* matrix, int rows, int cols, unsigned box_rows) {
  // The function belongs to the driver. Fetched this way, it needs no library beside the runtime.
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                         cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess) std::printf("this driver has no TMA\n"), std::exit(1);

  CUtensorMap map;
  const cuuint64_t extents[] = {cuuint64_t(cols), cuuint64_t(rows)};  // neighbours in memory first
  const cuuint64_t row_bytes[] = {cols * sizeof(bf16)};               // a multiple of 16
  const cuuint32_t box[] = {kTileK, box_rows}, steps[] = {1, 1};
  const CUresult result = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function)(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, matrix, extents, row_bytes, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) std::printf("no tensor map: error %d\n", result), std::exit(1);
  return map;
}
// snippet-end map

bf16* on_device(const std::vector<bf16>& host) {
  bf16* device = nullptr;
  check(cudaMalloc(&device, host.size() * sizeof(bf16)));
  check(cudaMemcpy(device, host.data(), host.size() * sizeof(bf16), cudaMemcpyHostToDevice));
  return device;
}

int main() {
  const int m = 100, n = 200, k = 136;  // no multiples of the tiles
  std::vector<bf16> a(m * k), b(n * k);
  for (int i = 0; i < m * k; ++i) a[i] = __float2bfloat16(i * 7 % 11 - 5);
  for (int i = 0; i < n * k; ++i) b[i] = __float2bfloat16(i * 5 % 13 - 6);

  bf16 *device_a = on_device(a), *device_b = on_device(b);
  float* device_c = nullptr;
  check(cudaMalloc(&device_c, m * n * sizeof(float)));
  const dim3 blocks((n + kTileN - 1) / kTileN, (m + kTileM - 1) / kTileM);
  multiply<<<blocks, kThreads>>>(make_map(device_a, m, k, kTileM), make_map(device_b, n, k, kTileN),
                                 device_c, m, n, k);
  check(cudaGetLastError());
  check(cudaDeviceSynchronize());
  std::vector<float> c(m * n);
  check(cudaMemcpy(c.data(), device_c, c.size() * sizeof(float), cudaMemcpyDeviceToHost));

  int wrong = 0;  // small integers: every order of the sums gives the same
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      float sum = 0;
      for (int l = 0; l < k; ++l)
        sum += __bfloat162float(a[i * k + l]) * __bfloat162float(b[j * k + l]);
      wrong += c[i * n + j] != sum;
    }
  }
  std::printf("%d x %d sums over %d: %d are wrong\n", m, n, k, wrong);
  return wrong != 0;
}
