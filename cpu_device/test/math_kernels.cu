#include "math_kernels.hpp"

#include <cuda_runtime.h>

namespace device_test {
namespace {

__device__ float sine_of_sincospif(float x) {
  float sine = 0, cosine = 0;
  sincospif(x, &sine, &cosine);
  return sine;
}
__device__ float cosine_of_sincospif(float x) {
  float sine = 0, cosine = 0;
  sincospif(x, &sine, &cosine);
  return cosine;
}

#define CASE(name, error, reference) \
  case __COUNTER__ - kFirst:         \
    return name(x);
#define FAST_CASE(name, low, high, bound, reference) CASE(name, bound, reference)
#define PAIR_CASE(name, error, reference) \
  case __COUNTER__ - kFirst: return name(x, y);

__device__ float evaluate(int function, float x) {
  constexpr int kFirst = __COUNTER__ + 1;
  switch (function) { DEVICE_TEST_FLOAT_FUNCTIONS(CASE) }
  return 0;
}
__device__ float evaluate_fast(int function, float x) {
  constexpr int kFirst = __COUNTER__ + 1;
  switch (function) { DEVICE_TEST_FAST_FUNCTIONS(FAST_CASE) }
  return 0;
}
__device__ float evaluate(int function, float x, float y) {
  constexpr int kFirst = __COUNTER__ + 1;
  switch (function) { DEVICE_TEST_FLOAT_PAIR_FUNCTIONS(PAIR_CASE) }
  return 0;
}
__device__ double evaluate(int function, double x) {
  constexpr int kFirst = __COUNTER__ + 1;
  switch (function) { DEVICE_TEST_DOUBLE_FUNCTIONS(CASE) }
  return 0;
}

// The index of this thread, of `count`; -1 for a thread too many.
__device__ int index(int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  return i < count ? i : -1;
}
constexpr int kThreads = 128;
unsigned blocks_for(int count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }

template <class T>
__global__ void function_kernel(int function, const T* in, T* out, int count) {
  if (const int i = index(count); i >= 0) out[i] = evaluate(function, in[i]);
}
__global__ void fast_function_kernel(int function, const float* in, float* out, int count) {
  if (const int i = index(count); i >= 0) out[i] = evaluate_fast(function, in[i]);
}
__global__ void pair_function_kernel(int function, const float* x, const float* y, float* out,
                                     int count) {
  if (const int i = index(count); i >= 0) out[i] = evaluate(function, x[i], y[i]);
}

__global__ void fast_of_two_kernel(const float* x, const float* y, FastOfTwo* out, int count) {
  const int i = index(count);
  if (i < 0) return;
  out[i].quotient = __fdividef(x[i], y[i]);
  out[i].power = __powf(x[i], y[i]);
  __sincosf(y[i], &out[i].sine, &out[i].cosine);
}

__global__ void fused_kernel(const double* a, const double* b, const double* c, Fused* out,
                             int count) {
  const int i = index(count);
  if (i < 0) return;
  const float p = static_cast<float>(a[i]), q = static_cast<float>(b[i]);
  const float r = static_cast<float>(c[i]);
  out[i] = {__fmaf_rn(p, q, r),    fmaf(p, q, r),         __fma_rn(a[i], b[i], c[i]),
            fma(a[i], b[i], c[i]), __dadd_rn(a[i], b[i]), __dmul_rn(a[i], b[i])};
}

__global__ void word_functions_kernel(const Words* in, WordResults* out, int count) {
  const int i = index(count);
  if (i < 0) return;
  const Words w = in[i];
  const int x = static_cast<int>(w.x), y = static_cast<int>(w.y);
  const long long a = static_cast<long long>(w.a), b = static_cast<long long>(w.b);
  WordResults r;
  r.popc = __popc(w.x);
  r.popcll = __popcll(w.a);
  r.clz = __clz(x);
  r.clzll = __clzll(a);
  r.ffs = __ffs(x);
  r.ffsll = __ffsll(a);
  r.brev = __brev(w.x);
  r.byte_perm = __byte_perm(w.x, w.y, w.s);
  r.funnel_l = __funnelshift_l(w.x, w.y, w.s);
  r.funnel_r = __funnelshift_r(w.x, w.y, w.s);
  r.funnel_lc = __funnelshift_lc(w.x, w.y, w.s % 64);
  r.funnel_rc = __funnelshift_rc(w.x, w.y, w.s % 64);
  r.dp4a = __dp4a(x, y, static_cast<int>(w.s));
  r.dp4a_unsigned = __dp4a(w.x, w.y, w.s);
  r.sad = __sad(x, y, w.s);
  r.usad = __usad(w.x, w.y, w.s);
  r.hadd = __hadd(x, y);
  r.rhadd = __rhadd(x, y);
  r.uhadd = __uhadd(w.x, w.y);
  r.brevll = __brevll(w.a);
  r.umulhi = __umulhi(w.x, w.y);
  r.mulhi = __mulhi(x, y);
  r.mul24 = __mul24(x, y);
  r.umul64hi = __umul64hi(w.a, w.b);
  r.as_int = __float_as_int(__int_as_float(x));
  r.as_uint = __float_as_uint(__uint_as_float(w.y));
  r.as_longlong = __double_as_longlong(__longlong_as_double(a));
  r.min_int = min(x, y);
  r.max_int = max(x, y);
  r.min_unsigned = min(w.x, w.y);
  r.max_unsigned = max(w.x, w.y);
  r.min_mixed = min(x, w.y);  // as unsigned
  r.max_mixed = max(w.x, y);
  r.min_long = min(a, b);
  r.max_long = max(w.a, w.b);
  out[i] = r;
}

__global__ void extremes_kernel(const float* x, const float* y, Extremes* out, int count) {
  const int i = index(count);
  if (i < 0) return;
  const double a = x[i], b = y[i];
  out[i] = {min(x[i], y[i]), max(x[i], y[i]), min(a, b), max(a, b), max(x[i], b)};
}

#define CONVERT(to, name)                        \
  to[0][kNearest] = __float2##name##_rn(single); \
  to[0][kZero] = __float2##name##_rz(single);    \
  to[0][kDown] = __float2##name##_rd(single);    \
  to[0][kUp] = __float2##name##_ru(single);      \
  to[1][kNearest] = __double2##name##_rn(full);  \
  to[1][kZero] = __double2##name##_rz(full);     \
  to[1][kDown] = __double2##name##_rd(full);     \
  to[1][kUp] = __double2##name##_ru(full)

__global__ void to_integers_kernel(const double* in, Integers* out, int count) {
  const int i = index(count);
  if (i < 0) return;
  const double full = in[i];
  const float single = static_cast<float>(full);
  CONVERT(out[i].to_int, int);
  CONVERT(out[i].to_uint, uint);
  CONVERT(out[i].to_ll, ll);
  CONVERT(out[i].to_ull, ull);
}

__global__ void to_floats_kernel(const long long* in, Floats* out, int count) {
  const int i = index(count);
  if (i < 0) return;
  const int low = static_cast<int>(in[i]);
  out[i] = {__int2float_rn(low), __uint2float_rn(static_cast<unsigned>(in[i])),
            __ll2float_rn(in[i]), __double2float_rn(static_cast<double>(in[i])),
            __int2double_rn(low)};
}

__global__ void clocks_kernel(long long* before_and_after, int* result) {
  before_and_after[0] = clock64();
  unsigned x = static_cast<unsigned>(*result);
  __builtin_assume(x > 0);
  for (unsigned i = 0; i < 1000; ++i) x = x * 5 + i;
  *result = static_cast<int>(x);
  __threadfence_system();
  before_and_after[1] = clock64();
}

}  // namespace

void float_function(int function, const float* in, float* out, int count) {
  function_kernel<<<blocks_for(count), kThreads>>>(function, in, out, count);
}
void fast_function(int function, const float* in, float* out, int count) {
  fast_function_kernel<<<blocks_for(count), kThreads>>>(function, in, out, count);
}
void float_pair_function(int function, const float* x, const float* y, float* out, int count) {
  pair_function_kernel<<<blocks_for(count), kThreads>>>(function, x, y, out, count);
}
void double_function(int function, const double* in, double* out, int count) {
  function_kernel<<<blocks_for(count), kThreads>>>(function, in, out, count);
}
void fast_of_two(const float* x, const float* y, FastOfTwo* out, int count) {
  fast_of_two_kernel<<<blocks_for(count), kThreads>>>(x, y, out, count);
}
void fused(const double* a, const double* b, const double* c, Fused* out, int count) {
  fused_kernel<<<blocks_for(count), kThreads>>>(a, b, c, out, count);
}
void word_functions(const Words* in, WordResults* out, int count) {
  word_functions_kernel<<<blocks_for(count), kThreads>>>(in, out, count);
}
void extremes(const float* x, const float* y, Extremes* out, int count) {
  extremes_kernel<<<blocks_for(count), kThreads>>>(x, y, out, count);
}
void to_integers(const double* in, Integers* out, int count) {
  to_integers_kernel<<<blocks_for(count), kThreads>>>(in, out, count);
}
void to_floats(const long long* in, Floats* out, int count) {
  to_floats_kernel<<<blocks_for(count), kThreads>>>(in, out, count);
}
void clocks(long long* before_and_after, int* result) {
  clocks_kernel<<<1, 1>>>(before_and_after, result);
}

}  // namespace device_test
