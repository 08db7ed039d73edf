// What is to be said of each mistake stands in beginners.txt.
#include "beginner_kernels.hpp"

#include <cuda_runtime.h>

#include "tile/ptx/cp_async.cuh"

namespace device_test {
namespace {

#define MISTAKES(X)            \
  X(axpy, thread_alone)        \
  X(axpy, all_in_each)         \
  X(axpy, all_for_one)         \
  X(axpy, step_of_one)         \
  X(axpy, step_of_block)       \
  X(axpy, grid_for_block)      \
  X(axpy, no_guard)            \
  X(axpy, guard_too_wide)      \
  X(axpy, guard_of_other)      \
  X(axpy, y_of_thread)         \
  X(axpy, not_added)           \
  X(axpy, wrong_operand)       \
  X(matmul, no_barrier)        \
  X(matmul, no_second)         \
  X(matmul, barrier_in_if)     \
  X(matmul, tile_too_small)    \
  X(matmul, transposed)        \
  X(matmul, ld_of_other)       \
  X(matmul, no_padding)        \
  X(matmul, second_tile_first) \
  X(matmul, block_y_missing)   \
  X(matmul, thread_y_missing)  \
  X(matmul, no_wait)           \
  X(softmax, no_maximum)       \
  X(softmax, no_atomic)        \
  X(softmax, half_mask)        \
  X(softmax, shuffle_in_if)    \
  X(softmax, all_write)        \
  X(softmax, one_array)        \
  X(softmax, starts_late)      \
  X(layernorm, n_of_threads)   \
  X(layernorm, squares)        \
  X(layernorm, sum_of_rows)    \
  X(attention, diagonal)       \
  X(attention, no_scale)       \
  X(attention, sum_kept)       \
  X(attention, output_kept)

enum Mistake {
  none,
#define NAME(kernel, mistake) mistake,
  MISTAKES(NAME)
#undef NAME
};

constexpr int kN = kBeginnerCount;
constexpr unsigned kFull = 0xffffffffu;

// Chapter 01: y = alpha * x + y, by 4 blocks of 256 threads.
template <Mistake kM>
__global__ void axpy(float alpha, const float* x, float* y, int n) {
  const int t = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
  if (kM == all_in_each || kM == all_for_one) {
    for (int i = 0; i < n; ++i) y[i] = alpha * x[i] + y[i];
  } else if (kM == step_of_one || kM == step_of_block) {
    const int step = kM == step_of_one ? 1 : threads;
    for (int i = block * threads + t; i < n; i += step) y[i] = alpha * x[i] + y[i];
  } else {
    const int own = block * threads + t;
    const int i = kM == thread_alone ? t : kM == grid_for_block ? block * blocks + t : own;
    const int j = kM == y_of_thread ? t : i;  // in y
    const bool is_inside = kM == no_guard         ? true
                           : kM == guard_too_wide ? i <= n
                           : kM == guard_of_other ? t < n
                                                  : i < n;
    if (!is_inside) return;
    y[j] = kM == not_added       ? alpha * x[i]
           : kM == wrong_operand ? x[i] + alpha * y[j]
                                 : alpha * x[i] + y[j];
  }
}

template <Mistake kM>
void launch_axpy(const BeginnerMemory& m) {
  if (kM == all_for_one) {
    axpy<kM><<<1, 256>>>(1.75f, m.x, m.one, 1);
  } else {
    axpy<kM><<<4, 256>>>(1.75f, m.x, m.y, kN);
  }
}

constexpr int kT = 8;  // the side of a tile; kSide is a multiple

// Chapter 02: c = a * b by tiles. Every matrix has a leading dimension of its own.
template <Mistake kM>
__global__ void matmul(const float* a, const float* b, float* c) {
  __shared__ float a_tile[kM == tile_too_small ? kT - 1 : kT][kT];
  __shared__ float b_tile[kT][kT];
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const int block_row = static_cast<int>(blockIdx.y) * kT;
  const int row = kM == block_y_missing ? y : block_row + (kM == thread_y_missing ? 0 : y);
  const int column = static_cast<int>(blockIdx.x) * kT + x;
  constexpr int kLdOfB = kM == ld_of_other ? kLdA : kLdB;
  float sum = 0;
  for (int k = kM == second_tile_first ? kT : 0; k < kSide; k += kT) {
    if (kM == no_wait) {
      tile::ptx::cp_async<4>(&a_tile[y][x], &a[row * kLdA + k + x]);
    } else {
      a_tile[y][x] = a[row * kLdA + k + x];
    }
    b_tile[y][x] = b[(k + y) * kLdOfB + column];
    if (kM == barrier_in_if) {
      if (row < kSide - 1) __syncthreads();
    } else if (kM != no_barrier) {
      __syncthreads();
    }
    for (int j = 0; j < kT; ++j) sum += a_tile[y][j] * b_tile[j][x];
    if (kM != no_second) __syncthreads();
  }
  if (kM == transposed) {
    c[column * kLdC + row] = sum;
  } else if (kM == no_padding) {
    c[row * kSide + column] = sum;
  } else {
    c[row * kLdC + column] = sum;
  }
}

template <Mistake kM>
void launch_matmul(const BeginnerMemory& m) {
  matmul<kM><<<dim3(kSide / kT, kSide / kT), dim3(kT, kT)>>>(m.a, m.b, m.c);
}

// Chapter 03: softmax of a's rows, with a thread for each of 64 columns, and their sums in y.
template <Mistake kM>
__global__ void softmax(const float* a, float* c, float* y) {
  __shared__ float partial[2];
  __shared__ float other_partial[2];
  __shared__ float total;
  const int t = static_cast<int>(threadIdx.x), row = static_cast<int>(blockIdx.x);
  const bool has_column = t < kSide;
  const float logit = has_column ? 60 * a[row * kLdA + t] : -INFINITY;
  float maximum = logit;
  if (kM == shuffle_in_if) {
    if (has_column) {
      for (int d = 16; d > 0; d /= 2) {
        maximum = fmaxf(maximum, __shfl_xor_sync(kFull, maximum, d));
      }
    }
  } else {
    constexpr unsigned kMask = kM == half_mask ? 0xffffu : kFull;
    for (int d = 16; d > 0; d /= 2) {
      maximum = fmaxf(maximum, __shfl_xor_sync(kMask, maximum, d));
    }
  }
  if (t % 32 == 0) partial[t / 32] = maximum;
  if (t == 0) total = 0;
  __syncthreads();
  maximum = kM == no_maximum ? 0 : fmaxf(partial[0], partial[1]);
  const float weight = has_column ? expf(logit - maximum) : 0;
  if (kM == no_atomic) {
    total += weight;
    __syncthreads();
  } else {
    float sum = kM == starts_late && t == 0 ? 0 : weight;
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(kFull, sum, d);
    float* sums = kM == one_array ? partial : other_partial;
    if (t % 32 == 0) sums[t / 32] = sum;
    __syncthreads();
    if (t == 0) total = sums[0] + sums[1];
    __syncthreads();
  }
  if (has_column) c[row * kLdC + t] = weight / total;
  if (kM == all_write) {
    y[row] = total;
  } else if (t == 0) {
    y[row] = total;
  }
}

template <Mistake kM>
void launch_softmax(const BeginnerMemory& m) {
  softmax<kM><<<kSide, 64>>>(m.a, m.c, m.y);
}

// Chapter 04: a row is normalised by one thread of 64, and a's columns are added up to y.
template <Mistake kM>
__global__ void layernorm(const float* a, float* c, float* y) {
  const int t = static_cast<int>(threadIdx.x), row = static_cast<int>(blockIdx.x);
  const float* from = a + row * kLdA;
  constexpr float kFar = 1000;
  if (t == 0) {
    float sum = 0, squares_of = 0;
    for (int j = 0; j < kSide; ++j) sum += from[j] + kFar;
    const float mean = sum / static_cast<float>(kM == n_of_threads ? blockDim.x : kSide);
    for (int j = 0; j < kSide; ++j) {
      const float value = from[j] + kFar - (kM == squares ? 0 : mean);
      squares_of += value * value;
    }
    const float variance = squares_of / kSide - (kM == squares ? mean * mean : 0);
    const float rstd = 1 / sqrtf(variance + 1e-5f);
    for (int j = 0; j < kSide; ++j) c[row * kLdC + j] = (from[j] + kFar - mean) * rstd;
  }
  if (t >= kSide) return;
  if (kM == sum_of_rows) {
    y[t] += from[t];
  } else {
    atomicAdd(&y[t], from[t]);
  }
}

template <Mistake kM>
void launch_layernorm(const BeginnerMemory& m) {
  layernorm<kM><<<kSide, 64>>>(m.a, m.c, m.y);
}

// Chapter 05: causal attention of kSide queries, which are rows of a, by a thread each. Keys are
// rows of b, and values the first 8 columns of x. The softmax is online.
template <Mistake kM>
__global__ void attention(const float* a, const float* b, const float* x, float* c) {
  const int query = static_cast<int>(threadIdx.x);
  float maximum = -INFINITY, sum = 0, out[8] = {};
  const int end = kM == diagonal ? query : query + 1;
  for (int key = 0; key < end; ++key) {
    float score = 0;
    for (int j = 0; j < kSide; ++j) score += a[query * kLdA + j] * b[key * kLdB + j];
    if (kM != no_scale) score /= sqrtf(kSide);
    const float before = maximum;
    maximum = fmaxf(maximum, score);
    const float correction = expf(before - maximum), weight = expf(score - maximum);
    sum = (kM == sum_kept ? sum : sum * correction) + weight;
    for (int j = 0; j < 8; ++j) {
      out[j] = (kM == output_kept ? out[j] : out[j] * correction) + weight * x[key * 8 + j];
    }
  }
  for (int j = 0; j < 8; ++j) c[query * kLdC + j] = out[j] / sum;
}

template <Mistake kM>
void launch_attention(const BeginnerMemory& m) {
  attention<kM><<<1, kSide>>>(m.a, m.b, m.x, m.c);
}

const Beginner kAll[] = {
#define ROW(kernel, mistake) {#kernel, #mistake, launch_##kernel<mistake>, launch_##kernel<none>},
    MISTAKES(ROW)
#undef ROW
};

}  // namespace

const std::span<const Beginner> kBeginners = kAll;

}  // namespace device_test
