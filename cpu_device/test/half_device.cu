#include "half_device.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>

namespace half_device {
namespace {

template <class To, class From>
__device__ To reinterpret(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

__device__ uint32_t bits(int a) { return static_cast<uint32_t>(a); }
__device__ uint32_t bits(uint32_t a) { return a; }
__device__ uint32_t bits(float a) { return reinterpret<uint32_t>(a); }
__device__ uint32_t bits(__half a) { return __half_as_ushort(a); }
__device__ uint32_t bits(__nv_bfloat16 a) { return __bfloat16_as_ushort(a); }
__device__ uint32_t bits(__half2 a) { return bits(a.x) | bits(a.y) << 16; }
__device__ uint32_t bits(__nv_bfloat162 a) { return bits(a.x) | bits(a.y) << 16; }

template <class T>
__device__ uint32_t upper_half(T a) {
  return static_cast<uint32_t>(static_cast<uint64_t>(a) >> 32);
}

// The operand of another type; see Op.
__device__ uint64_t operand_word(uint16_t a, uint16_t b, uint16_t c) {
  return uint64_t{a} | uint64_t{b} << 16 | uint64_t{c} << 32 | uint64_t{a} << 48;
}

#define CASE(name, result) \
  case Op::name:           \
    return bits(result)
#define UNARY(name, function, function2) \
  CASE(name, function(a));               \
  CASE(name##_pair, function2(ab));
#define BINARY(name, function, function2) \
  CASE(name, function(a, b));             \
  CASE(name##_pair, function2(ab, bc));
#define TERNARY(name, function, function2) \
  CASE(name, function(a, b, c));           \
  CASE(name##_pair, function2(ab, bc, ca));
#define COMPARISON(name)                        \
  CASE(name, __h##name(a, b));                  \
  CASE(name##_pair, __h##name##2(ab, bc));      \
  CASE(name##_mask, __h##name##2_mask(ab, bc)); \
  CASE(name##_both, __hb##name##2(ab, bc));
#define FP16_INTEGER(name, T, mode)                                           \
  CASE(to_##name##_##mode, static_cast<uint32_t>(__half2##name##_##mode(a))); \
  CASE(to_##name##_##mode##_high, upper_half(__half2##name##_##mode(a)));     \
  CASE(from_##name##_##mode, __##name##2half_##mode(static_cast<T>(word)));
#define BF16_INTEGER(name, T, mode)                                               \
  CASE(to_##name##_##mode, static_cast<uint32_t>(__bfloat162##name##_##mode(a))); \
  CASE(to_##name##_##mode##_high, upper_half(__bfloat162##name##_##mode(a)));     \
  CASE(from_##name##_##mode, __##name##2bfloat16_##mode(static_cast<T>(word)));

// What both types name alike. T2 is the type of pairs.
template <class T, class T2>
__device__ uint32_t common_op(Op op, T a, T b, T c) {
  const T2 ab(a, b), bc(b, c);
  switch (op) {
    HALF_DEVICE_UNARY(UNARY)
    HALF_DEVICE_BINARY(BINARY)
    HALF_DEVICE_COMPARISON(COMPARISON)
    CASE(hisnan, __hisnan(a));
    CASE(hisnan2, __hisnan2(ab));
    CASE(hisinf, __hisinf(a));
    CASE(low2float, __low2float(ab));
    CASE(high2float, __high2float(ab));
    CASE(lowhigh2highlow, __lowhigh2highlow(ab));
    default: return 0;
  }
}

__device__ uint32_t fp16_op(Op op, uint16_t a_bits, uint16_t b_bits, uint16_t c_bits) {
  const __half a = __ushort_as_half(a_bits);
  const __half b = __ushort_as_half(b_bits);
  const __half c = __ushort_as_half(c_bits);
  const __half2 ab(a, b), bc(b, c), ca(c, a);
  const uint64_t word = operand_word(a_bits, b_bits, c_bits);
  const auto x = reinterpret<float>(static_cast<uint32_t>(word));
  const auto y = reinterpret<float>(static_cast<uint32_t>(word >> 32));
  switch (op) {
    HALF_DEVICE_TERNARY(TERNARY)
    CASE(hcmadd, __hcmadd(ab, bc, ca));
    HALF_DEVICE_INTEGER(FP16_INTEGER)
    CASE(to_char_rz, __half2char_rz(a));
    CASE(to_uchar_rz, __half2uchar_rz(a));
    CASE(to_float, __half2float(a));
    CASE(from_float, __float2half(x));
    CASE(from_float_rn, __float2half_rn(x));
    CASE(from_float_rz, __float2half_rz(x));
    CASE(from_float_rd, __float2half_rd(x));
    CASE(from_float_ru, __float2half_ru(x));
    CASE(from_double, __double2half(reinterpret<double>(word)));
    CASE(from_other, __half(__ushort_as_bfloat16(a_bits)));
    CASE(pair_from_float, __float2half2_rn(x));
    CASE(pair_from_floats, __floats2half2_rn(x, y));
    CASE(pair_from_float2, __float22half2_rn(make_float2(x, y)));
    CASE(pair_to_float2_x, __half22float2(ab).x);
    CASE(pair_to_float2_y, __half22float2(ab).y);
    CASE(make_pair, make_half2(a, b));
    CASE(halves2pair, __halves2half2(a, b));
    CASE(half2pair, __half2half2(a));
    CASE(low2half, __low2half(ab));
    CASE(high2half, __high2half(ab));
    CASE(low2pair, __low2half2(ab));
    CASE(high2pair, __high2half2(ab));
    CASE(lows2pair, __lows2half2(ab, bc));
    CASE(highs2pair, __highs2half2(ab, bc));
    CASE(through_short, __short_as_half(__half_as_short(a)));
    CASE(through_ushort, __ushort_as_half(__half_as_ushort(a)));
    default: return common_op<__half, __half2>(op, a, b, c);
  }
}

__device__ uint32_t bf16_op(Op op, uint16_t a_bits, uint16_t b_bits, uint16_t c_bits) {
  const __nv_bfloat16 a = __ushort_as_bfloat16(a_bits);
  const __nv_bfloat16 b = __ushort_as_bfloat16(b_bits);
  const __nv_bfloat16 c = __ushort_as_bfloat16(c_bits);
  const __nv_bfloat162 ab(a, b), bc(b, c);
  [[maybe_unused]] const __nv_bfloat162 ca(c, a);
  const uint64_t word = operand_word(a_bits, b_bits, c_bits);
  const auto x = reinterpret<float>(static_cast<uint32_t>(word));
  const auto y = reinterpret<float>(static_cast<uint32_t>(word >> 32));
  switch (op) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800  // has_bf16_fma()
    HALF_DEVICE_TERNARY(TERNARY)
    CASE(hcmadd, __hcmadd(ab, bc, ca));
#endif
    HALF_DEVICE_INTEGER(BF16_INTEGER)
    CASE(to_char_rz, __bfloat162char_rz(a));
    CASE(to_uchar_rz, __bfloat162uchar_rz(a));
    CASE(to_float, __bfloat162float(a));
    CASE(from_float, __float2bfloat16(x));
    CASE(from_float_rn, __float2bfloat16_rn(x));
    CASE(from_float_rz, __float2bfloat16_rz(x));
    CASE(from_float_rd, __float2bfloat16_rd(x));
    CASE(from_float_ru, __float2bfloat16_ru(x));
    CASE(from_double, __double2bfloat16(reinterpret<double>(word)));
    CASE(from_other, __nv_bfloat16(__ushort_as_half(a_bits)));
    CASE(pair_from_float, __float2bfloat162_rn(x));
    CASE(pair_from_floats, __floats2bfloat162_rn(x, y));
    CASE(pair_from_float2, __float22bfloat162_rn(make_float2(x, y)));
    CASE(pair_to_float2_x, __bfloat1622float2(ab).x);
    CASE(pair_to_float2_y, __bfloat1622float2(ab).y);
    CASE(make_pair, make_bfloat162(a, b));
    CASE(halves2pair, __halves2bfloat162(a, b));
    CASE(half2pair, __bfloat162bfloat162(a));
    CASE(low2half, __low2bfloat16(ab));
    CASE(high2half, __high2bfloat16(ab));
    CASE(low2pair, __low2bfloat162(ab));
    CASE(high2pair, __high2bfloat162(ab));
    CASE(lows2pair, __lows2bfloat162(ab, bc));
    CASE(highs2pair, __highs2bfloat162(ab, bc));
    CASE(through_short, __short_as_bfloat16(__bfloat16_as_short(a)));
    CASE(through_ushort, __ushort_as_bfloat16(__bfloat16_as_ushort(a)));
    default: return common_op<__nv_bfloat16, __nv_bfloat162>(op, a, b, c);
  }
}

__global__ void half_ops(Type type, Op op, const uint16_t* a, const uint16_t* b, const uint16_t* c,
                         uint32_t* out, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  out[i] = type == Type::fp16 ? fp16_op(op, a[i], b[i], c[i]) : bf16_op(op, a[i], b[i], c[i]);
}

bool succeeded(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return true;
  std::fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(error));
  return false;
}

#define SUCCEEDED(call) succeeded(call, #call)

}  // namespace

bool has_bf16_fma() {
  int device = 0, major = 0;
  return SUCCEEDED(cudaGetDevice(&device)) &&
         SUCCEEDED(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device)) &&
         major >= 8;
}

bool run_half_ops(Type type, Op op, const uint16_t* a, const uint16_t* b, const uint16_t* c,
                  uint32_t* out, int n) {
  const size_t operand_bytes = static_cast<size_t>(n) * sizeof(uint16_t);
  const size_t result_bytes = static_cast<size_t>(n) * sizeof(uint32_t);
  const uint16_t* const host[] = {a, b, c};
  uint16_t* operand[] = {nullptr, nullptr, nullptr};
  uint32_t* result = nullptr;

  bool ok = SUCCEEDED(cudaMalloc(&result, result_bytes));
  for (int i = 0; i < 3; ++i) {
    ok = ok && SUCCEEDED(cudaMalloc(&operand[i], operand_bytes)) &&
         SUCCEEDED(cudaMemcpy(operand[i], host[i], operand_bytes, cudaMemcpyHostToDevice));
  }
  if (ok) {
    constexpr unsigned kThreads = 256;
    const unsigned blocks = (static_cast<unsigned>(n) + kThreads - 1) / kThreads;
    half_ops<<<blocks, kThreads>>>(type, op, operand[0], operand[1], operand[2], result, n);
    ok = SUCCEEDED(cudaGetLastError()) &&
         SUCCEEDED(cudaMemcpy(out, result, result_bytes, cudaMemcpyDeviceToHost));
  }
  for (uint16_t* pointer : operand) ok = SUCCEEDED(cudaFree(pointer)) && ok;
  return SUCCEEDED(cudaFree(result)) && ok;
}

}  // namespace half_device
