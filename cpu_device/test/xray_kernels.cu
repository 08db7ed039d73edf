#include "xray_kernels.hpp"

#include <cuda_runtime.h>

#include "tile/ptx/cp_async.cuh"
#include "tile/ptx/ldmatrix.cuh"

namespace device_test {
namespace {

constexpr int kWarp = 32;

// ---- Global memory ----

__global__ void coalesced(const float* in, float* out) {
  out[threadIdx.x] = in[threadIdx.x];  // [coalesced]
}
__global__ void misaligned(const float* in, float* out) {
  out[threadIdx.x] = in[threadIdx.x + 1];  // [misaligned]
}
__global__ void broadcast(const float* in, float* out) {
  out[threadIdx.x] = in[7];  // [broadcast]
}
__global__ void stride_2(const float* in, float* out) {
  out[threadIdx.x] = in[2 * threadIdx.x];  // [stride_2]
}
__global__ void strided(const float* in, float* out) {
  out[kWarp * threadIdx.x] = in[kWarp * threadIdx.x];  // [strided]
}
__global__ void vectors(const float* in, float* out) {
  const float4 v = reinterpret_cast<const float4*>(in)[threadIdx.x];  // [vectors.load]
  reinterpret_cast<float4*>(out)[threadIdx.x] = v;                    // [vectors.store]
}
__global__ void copies(const float* in, float* out) {
  __shared__ alignas(16) float tile[4 * kWarp];
  const unsigned t = threadIdx.x;
  tile::ptx::cp_async<16>(&tile[4 * t], &in[4 * t]);  // [copies]
  tile::ptx::cp_async_commit();
  tile::ptx::cp_async_wait<0>();
  out[t] = tile[4 * t];
}
// Rows of kRow bytes, kFrom bytes apart in memory and kTo in shared memory.
template <int kBytes, int kRow, int kFrom, int kTo>
__global__ void copied_rows(const float* in, float* out) {
  __shared__ alignas(128) char tile[kWarp * 32];
  const int byte = static_cast<int>(threadIdx.x) * kBytes, row = byte / kRow, in_row = byte % kRow;
  const char* from = reinterpret_cast<const char*>(in) + row * kFrom + in_row;
  tile::ptx::cp_async<kBytes>(&tile[row * kTo + in_row], from);  // [copied_rows]
  tile::ptx::cp_async_wait_all();
  out[threadIdx.x] = tile[row * kTo + in_row];
}
// Half of the lanes store zeros.
__global__ void filled_copies(const float* in, float* out) {
  __shared__ alignas(128) float tile[4 * kWarp];
  const unsigned t = threadIdx.x;
  tile::ptx::cp_async<16>(&tile[4 * t], &in[64 * t], t < 16 ? 16 : 0);  // [filled_copies]
  tile::ptx::cp_async_wait_all();
  out[t] = tile[4 * t];
}
__global__ void atomics(const float*, float* out) {
  atomicAdd(&out[threadIdx.x / 8], 1.0f);  // [atomics]
}

// ---- Lanes that part ----

__global__ void branches(const float* in, float* out) {
  const unsigned t = threadIdx.x;
  if (t % 2 == 0) {
    out[t] = in[t];  // [branches.even]
  } else {
    out[t] = in[t + 64];  // [branches.odd]
  }
}
// Lane t takes t + 1 turns: so that there are 32 requests, of 32 lanes down to one.
__global__ void turns(const float* in, float* out) {
  float sum = 0;
  for (unsigned i = 0; i <= threadIdx.x; ++i) sum += in[kWarp * i + threadIdx.x];  // [turns]
  out[threadIdx.x] = sum;
}
// In turn i the lanes up to i ask for memory, and then all meet. Without the meetings lane 31's
// first access, in the last turn, would be taken for a part of lane 0's first.
__global__ void meetings(const float* in, float* out) {
  float sum = 0;
  for (unsigned i = 0; i < kWarp; ++i) {
    if (threadIdx.x <= i) sum += in[kWarp * i + threadIdx.x];  // [meetings]
    sum += __shfl_sync(~0u, sum, 0);
  }
  out[threadIdx.x] = sum;
}

// ---- Shared memory ----

template <unsigned kStride>
__global__ void banks(const float* in, float* out) {
  __shared__ float tile[kWarp * 33];
  for (unsigned i = threadIdx.x; i < kWarp * 33; i += kWarp) tile[i] = in[i];
  __syncthreads();
  out[threadIdx.x] = tile[kStride * threadIdx.x];  // [banks]
}
template <unsigned kStride>
__global__ void stores(const float* in, float* out) {
  __shared__ float tile[kWarp * 33];
  tile[kStride * threadIdx.x] = in[threadIdx.x];  // [stores]
  __syncthreads();
  out[threadIdx.x] = tile[kStride * (threadIdx.x ^ 1)];
}
// All lanes, pairs of neighbours, or none ask for the same 16 bytes.
template <unsigned kSame>
__global__ void wide(const float* in, float* out) {
  __shared__ float4 tile[kWarp];
  tile[threadIdx.x] = reinterpret_cast<const float4*>(in)[threadIdx.x];
  __syncthreads();
  const float4 v = tile[threadIdx.x / kSame];  // [wide]
  out[threadIdx.x] = v.x + v.y + v.z + v.w;
}
// A matrix of 8 x 8 halves has rows of 16 bytes, here kRow bytes apart.
template <unsigned kRow>
__global__ void matrices(const float*, float* out) {
  __shared__ alignas(16) unsigned char tile[kWarp * kRow];
  for (unsigned i = threadIdx.x; i < sizeof tile; i += kWarp) tile[i] = 0;
  __syncwarp();
  unsigned r[4];
  tile::ptx::ldmatrix_x4(r, &tile[kRow * threadIdx.x]);  // [matrices]
  out[threadIdx.x] = static_cast<float>(r[0] + r[1] + r[2] + r[3]);
}

}  // namespace

std::span<const XrayKernel> xray_kernels() {
#define KERNEL(...)                                                                       \
  {                                                                                       \
#__VA_ARGS__, [](const float* in, float* out) { __VA_ARGS__<<<1, kWarp>>>(in, out); } \
  }
  static constexpr XrayKernel kKernels[] = {
      KERNEL(coalesced),
      KERNEL(misaligned),
      KERNEL(broadcast),
      KERNEL(stride_2),
      KERNEL(strided),
      KERNEL(vectors),
      KERNEL(copies),
      KERNEL(atomics),
      KERNEL(branches),
      KERNEL(turns),
      KERNEL(meetings),
      KERNEL(banks<0>),
      KERNEL(banks<1>),
      KERNEL(banks<2>),
      KERNEL(banks<4>),
      KERNEL(banks<8>),
      KERNEL(banks<16>),
      KERNEL(banks<32>),
      KERNEL(banks<33>),
      KERNEL(stores<1>),
      KERNEL(stores<32>),
      KERNEL(stores<33>),
      KERNEL(wide<1>),
      KERNEL(wide<2>),
      KERNEL(wide<32>),
      KERNEL(matrices<16>),
      KERNEL(matrices<64>),
      KERNEL(matrices<128>),
      KERNEL(matrices<144>),
      KERNEL(copied_rows<16, 128, 256, 128>),
      KERNEL(copied_rows<16, 64, 256, 64>),
      KERNEL(copied_rows<16, 64, 256, 80>),
      KERNEL(copied_rows<16, 32, 256, 32>),
      KERNEL(copied_rows<16, 16, 16, 32>),
      KERNEL(copied_rows<16, 16, 0, 16>),
      KERNEL(copied_rows<8, 64, 256, 64>),
      KERNEL(copied_rows<8, 8, 8, 16>),
      KERNEL(copied_rows<4, 32, 128, 32>),
      KERNEL(filled_copies),
  };
#undef KERNEL
  return kKernels;
}

}  // namespace device_test
