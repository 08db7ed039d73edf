#include "report_kernels.hpp"

#include <cuda_runtime.h>

#include "tile/ptx/convert.cuh"
#include "tile/ptx/ldmatrix.cuh"
#include "tile/ptx/mma.cuh"
#include "tile/ptx/stmatrix.cuh"

namespace ptx_test {
namespace {

int line = 0;  // set by all lanes, so by an atomic

// Between the kernel and the wrapper, as in real kernels.
__device__ __forceinline__ void load_tile(std::uint32_t (&r)[1], const void* row) {
  atomicExch(&line, __LINE__ + 1);
  tile::ptx::ldmatrix_x1(r, row);
}

__global__ void call_kernel(Call call, float* global) {
  __shared__ uint4 rows[32];
  __shared__ uint4 others[8];
  const int lane = static_cast<int>(threadIdx.x);
  std::uint32_t a[4] = {}, b[2] = {}, one[1] = {};
  float d[4] = {};
  if (call != Call::unwritten_row) rows[lane] = make_uint4(0, 0, 0, 0);
  if (call != Call::load_without_barrier) __syncthreads();
  const void* row = &rows[lane];
  switch (call) {
    case Call::right:
      tile::ptx::ldmatrix_x4(a, row);
      tile::ptx::mma_m16n8k16<__half>(d, a, b);
      break;
    case Call::unused_addresses:
      tile::ptx::ldmatrix_x1(one, lane < 8 ? row : nullptr);
      tile::ptx::ldmatrix_x2(b, lane < 16 ? row : global + 1);
      break;
    case Call::short_warp:
      atomicExch(&line, __LINE__ + 1);
      tile::ptx::mma_m16n8k16<__half>(d, a, b);
      break;
    case Call::half_of_the_warp:
      atomicExch(&line, __LINE__ + 1);
      if (lane < 16) tile::ptx::ldmatrix_x4(a, row);
      break;
    case Call::different_places:
      if (lane < 16) {
        tile::ptx::mma_m16n8k8_tf32(d, a, b);
      } else {
        atomicExch(&line, __LINE__ + 1);
        tile::ptx::mma_m16n8k8_tf32(d, a, b);
      }
      break;
    case Call::instruction_and_syncwarp:
      atomicExch(&line, __LINE__ + 1);
      if (lane < 16) tile::ptx::mma_m16n8k16<__half>(d, a, b);
      if (lane >= 16) __syncwarp();
      break;
    case Call::misaligned_row:
      atomicExch(&line, __LINE__ + 1);
      tile::ptx::ldmatrix_x4(a, static_cast<const char*>(row) + (lane == 5 ? 8 : 0));
      break;
    case Call::row_in_global_memory:
      atomicExch(&line, __LINE__ + 1);
      tile::ptx::ldmatrix_x4(a, global + 4 * lane);
      break;
    case Call::row_past_shared_memory:
      if (lane < 8) others[lane] = rows[lane];
      __syncthreads();
      atomicExch(&line, __LINE__ + 1);
      tile::ptx::ldmatrix_x4(a, &others[lane % 8] + (lane == 31 ? 1 : 0));
      break;
    case Call::fp8:
      atomicExch(&line, __LINE__ + 1);
      tile::ptx::mma_m16n8k32<__nv_fp8_e4m3>(d, a, b);
      break;
    case Call::stmatrix:
      atomicExch(&line, __LINE__ + 1);
      tile::ptx::stmatrix_x1(&rows[lane], one);
      break;
    case Call::pack_fp8:
      atomicExch(&line, __LINE__ + 1);
      one[0] = tile::ptx::pack<__nv_fp8_e5m2>(d[0], d[1]);
      break;
    case Call::pack_fp16:
      atomicExch(&line, __LINE__ + 1);
      one[0] = tile::ptx::pack<__half>(d[0], d[1]);
      break;
    case Call::row_past_array:
      if (lane < 8) others[lane] = rows[lane];
      atomicExch(&line, __LINE__ + 1);
      tile::ptx::ldmatrix_x4(a, &rows[lane + 1]);
      break;
    case Call::unwritten_row: load_tile(one, row); break;
    case Call::load_without_barrier: load_tile(one, &rows[31 - lane]); break;
    case Call::store_without_barrier:
      atomicExch(&line, __LINE__ + 1);
      tile::ptx::stmatrix_x4(&rows[lane], a);
      a[0] = rows[lane ^ 1].x;
      break;
  }
  global[lane] = d[0] + static_cast<float>(a[0] + b[0] + one[0]);
}

}  // namespace

void make_call(Call call, float* global) {
  line = 0;
  call_kernel<<<1, call == Call::short_warp ? 20 : 32>>>(call, global);
}

int line_of_call() { return line; }

}  // namespace ptx_test
