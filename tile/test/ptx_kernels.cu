#include "ptx_kernels.hpp"

#include <cuda_runtime.h>

#include "tile/host/cuda_check.hpp"
#include "tile/ptx/convert.cuh"
#include "tile/ptx/fragments.hpp"
#include "tile/ptx/ldmatrix.cuh"
#include "tile/ptx/mma.cuh"
#include "tile/ptx/stmatrix.cuh"
#include "tile/ptx/swizzle.hpp"

namespace ptx_test {
namespace {

// ---- mma ----

// Two warps a block: neighbours must not meet.
constexpr int kThreads = 64;

template <int kA, int kB, int kD>
struct Registers {
  static constexpr int kCountA = kA, kCountB = kB, kCountD = kD;
};

template <class T>
struct K16 : Registers<4, 2, 4> {
  __device__ static void run(float (&d)[4], const std::uint32_t (&a)[4],
                             const std::uint32_t (&b)[2]) {
    tile::ptx::mma_m16n8k16<T>(d, a, b);
  }
  using D = float;
};
struct K16OfHalves : Registers<4, 2, 4> {
  __device__ static void run(float (&d)[4], const std::uint32_t (&a)[4],
                             const std::uint32_t (&b)[2]) {
    tile::ptx::mma_m16n8k16_of_halves(d, a, b);
  }
  using D = float;
};
struct K16InFp16 : Registers<4, 2, 2> {
  __device__ static void run(std::uint32_t (&d)[2], const std::uint32_t (&a)[4],
                             const std::uint32_t (&b)[2]) {
    tile::ptx::mma_m16n8k16_f16(d, a, b);
  }
  using D = std::uint32_t;
};
struct K8 : Registers<2, 1, 4> {
  __device__ static void run(float (&d)[4], const std::uint32_t (&a)[2],
                             const std::uint32_t (&b)[1]) {
    tile::ptx::mma_m16n8k8(d, a, b[0]);
  }
  using D = float;
};
struct K8Tf32 : Registers<4, 2, 4> {
  __device__ static void run(float (&d)[4], const std::uint32_t (&a)[4],
                             const std::uint32_t (&b)[2]) {
    tile::ptx::mma_m16n8k8_tf32(d, a, b);
  }
  using D = float;
};
template <class T>
struct K32 : Registers<4, 2, 4> {
  __device__ static void run(float (&d)[4], const std::uint32_t (&a)[4],
                             const std::uint32_t (&b)[2]) {
    tile::ptx::mma_m16n8k32<T>(d, a, b);
  }
  using D = float;
};

template <class Instruction>
__global__ void multiply_kernel(int count, const std::uint32_t* a, const std::uint32_t* b,
                                std::uint32_t* d) {
  const int thread = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (thread / 32 >= count) return;
  using I = Instruction;
  std::uint32_t a_registers[I::kCountA], b_registers[I::kCountB];
  typename I::D d_registers[I::kCountD];
  auto* sums = reinterpret_cast<typename I::D*>(d) + thread * I::kCountD;
  for (int i = 0; i < I::kCountA; ++i) a_registers[i] = a[thread * I::kCountA + i];
  for (int i = 0; i < I::kCountB; ++i) b_registers[i] = b[thread * I::kCountB + i];
  for (int i = 0; i < I::kCountD; ++i) d_registers[i] = sums[i];
  I::run(d_registers, a_registers, b_registers);
  for (int i = 0; i < I::kCountD; ++i) sums[i] = d_registers[i];
}

template <class Instruction>
tile::Status multiply_with(int count, const std::uint32_t* a, const std::uint32_t* b,
                           std::uint32_t* d) {
  constexpr int kWarps = kThreads / 32;
  multiply_kernel<Instruction><<<(count + kWarps - 1) / kWarps, kThreads>>>(count, a, b, d);
  return tile::launch_status("multiply_kernel");
}

// ---- ldmatrix and stmatrix ----

template <int kTiles, bool kTransposed>
__device__ void load_registers(std::uint32_t (&r)[kTiles], const void* row) {
  using namespace tile::ptx;
  if constexpr (kTiles == 1) {
    kTransposed ? ldmatrix_x1_trans(r, row) : ldmatrix_x1(r, row);
  } else if constexpr (kTiles == 2) {
    kTransposed ? ldmatrix_x2_trans(r, row) : ldmatrix_x2(r, row);
  } else {
    kTransposed ? ldmatrix_x4_trans(r, row) : ldmatrix_x4(r, row);
  }
}

template <int kTiles, bool kTransposed>
__global__ void load_kernel(const std::uint32_t* memory, const int* rows,
                            std::uint32_t* registers) {
  __shared__ uint4 shared[kSharedBytes / sizeof(uint4)];
  auto* words = reinterpret_cast<std::uint32_t*>(shared);
  for (int i = static_cast<int>(threadIdx.x); i < kSharedBytes / 4; i += 32) words[i] = memory[i];
  __syncthreads();
  std::uint32_t r[kTiles];
  load_registers<kTiles, kTransposed>(r, reinterpret_cast<char*>(shared) + rows[threadIdx.x]);
  for (int i = 0; i < kTiles; ++i) registers[threadIdx.x * kTiles + i] = r[i];
}

template <int kTiles, bool kTransposed>
__device__ void store_registers(void* row, const std::uint32_t (&r)[kTiles]) {
  using namespace tile::ptx;
  if constexpr (kTiles == 1) {
    kTransposed ? stmatrix_x1_trans(row, r) : stmatrix_x1(row, r);
  } else if constexpr (kTiles == 2) {
    kTransposed ? stmatrix_x2_trans(row, r) : stmatrix_x2(row, r);
  } else {
    kTransposed ? stmatrix_x4_trans(row, r) : stmatrix_x4(row, r);
  }
}

template <int kTiles, bool kTransposed>
__global__ void store_kernel(std::uint32_t* memory, const int* rows,
                             const std::uint32_t* registers) {
  __shared__ uint4 shared[kSharedBytes / sizeof(uint4)];
  auto* words = reinterpret_cast<std::uint32_t*>(shared);
  for (int i = static_cast<int>(threadIdx.x); i < kSharedBytes / 4; i += 32) words[i] = memory[i];
  __syncthreads();
  std::uint32_t r[kTiles];
  for (int i = 0; i < kTiles; ++i) r[i] = registers[threadIdx.x * kTiles + i];
  store_registers<kTiles, kTransposed>(reinterpret_cast<char*>(shared) + rows[threadIdx.x], r);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kSharedBytes / 4; i += 32) memory[i] = words[i];
}

// Calls launch.template operator()<kTiles, kTransposed>().
template <class Launch>
void with_move(Move move, Launch launch) {
  switch (move.tiles * 2 + move.transposed) {
    case 2: launch.template operator()<1, false>(); break;
    case 3: launch.template operator()<1, true>(); break;
    case 4: launch.template operator()<2, false>(); break;
    case 5: launch.template operator()<2, true>(); break;
    case 8: launch.template operator()<4, false>(); break;
    case 9: launch.template operator()<4, true>(); break;
  }
}

// ---- From matrices in memory to matrices in memory ----

__global__ void matrices_kernel(const uint4* a, const uint4* b, float* c) {
  __shared__ uint4 shared_a[16 * 2], shared_b[16];  // a row of a is two chunks of 16 bytes
  const int lane = static_cast<int>(threadIdx.x);
  shared_a[lane / 2 * 2 + tile::swizzle_32B(lane / 2, lane % 2)] = a[lane];
  if (lane < 16) shared_b[lane] = b[lane];
  __syncwarp();
  std::uint32_t a_registers[4], b_registers[2];
  const int row = lane % 16;
  tile::ptx::ldmatrix_x4(a_registers, &shared_a[row * 2 + tile::swizzle_32B(row, lane / 16)]);
  tile::ptx::ldmatrix_x2_trans(b_registers, &shared_b[row]);
  float d[4] = {};
  tile::ptx::mma_m16n8k16<__half>(d, a_registers, b_registers);
  for (int i = 0; i < 4; ++i) {
    const tile::ptx::Element e = tile::ptx::element_of_d(lane, i);
    c[e.row * 8 + e.col] = d[i];
  }
}

// ---- Conversions and cache hints ----

struct ToTf32 {};

template <class T>
__global__ void convert_kernel(int words, const float* values, std::uint32_t* out) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= words) return;
  if constexpr (std::is_same_v<T, ToTf32>) {
    out[i] = tile::ptx::to_tf32(values[i]);
  } else {
    out[i] = tile::ptx::pack<T>(values[2 * i], values[2 * i + 1]);
  }
}

template <class T>
tile::Status convert_with(int words, const float* values, std::uint32_t* out) {
  convert_kernel<T><<<(words + 255) / 256, 256>>>(words, values, out);
  return tile::launch_status("convert_kernel");
}

}  // namespace

tile::Status multiply(Mma mma, int count, const std::uint32_t* a, const std::uint32_t* b,
                      std::uint32_t* d) {
  switch (mma) {
    case Mma::k16_fp16: return multiply_with<K16<__half>>(count, a, b, d);
    case Mma::k16_bf16: return multiply_with<K16<__nv_bfloat16>>(count, a, b, d);
    case Mma::k16_in_fp16: return multiply_with<K16InFp16>(count, a, b, d);
    case Mma::k16_of_halves: return multiply_with<K16OfHalves>(count, a, b, d);
    case Mma::k8_fp16: return multiply_with<K8>(count, a, b, d);
    case Mma::k8_tf32: return multiply_with<K8Tf32>(count, a, b, d);
    case Mma::k32_e4m3: return multiply_with<K32<__nv_fp8_e4m3>>(count, a, b, d);
    case Mma::k32_e5m2: return multiply_with<K32<__nv_fp8_e5m2>>(count, a, b, d);
  }
  return tile::invalid_argument("mma", "is no instruction");
}

tile::Status load(Move move, const std::uint32_t* memory, const int* rows,
                  std::uint32_t* registers) {
  with_move(move, [=]<int kTiles, bool kTransposed>() {
    load_kernel<kTiles, kTransposed><<<1, 32>>>(memory, rows, registers);
  });
  return tile::launch_status("load_kernel");
}

tile::Status store(Move move, std::uint32_t* memory, const int* rows,
                   const std::uint32_t* registers) {
  with_move(move, [=]<int kTiles, bool kTransposed>() {
    store_kernel<kTiles, kTransposed><<<1, 32>>>(memory, rows, registers);
  });
  return tile::launch_status("store_kernel");
}

tile::Status multiply_matrices(const std::uint32_t* a, const std::uint32_t* b, float* c) {
  matrices_kernel<<<1, 32>>>(reinterpret_cast<const uint4*>(a), reinterpret_cast<const uint4*>(b),
                             c);
  return tile::launch_status("matrices_kernel");
}

tile::Status convert(Conversion conversion, int words, const float* values, std::uint32_t* out) {
  switch (conversion) {
    case Conversion::fp16: return convert_with<__half>(words, values, out);
    case Conversion::bf16: return convert_with<__nv_bfloat16>(words, values, out);
    case Conversion::e4m3: return convert_with<__nv_fp8_e4m3>(words, values, out);
    case Conversion::e5m2: return convert_with<__nv_fp8_e5m2>(words, values, out);
    case Conversion::tf32: return convert_with<ToTf32>(words, values, out);
  }
  return tile::invalid_argument("conversion", "is none");
}

}  // namespace ptx_test
