#include "fault_kernels.hpp"

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <type_traits>

namespace device_test {
namespace {

// The compiler must believe that these change.
__device__ volatile int zero = 0;
__device__ volatile int* volatile null_pointer = nullptr;
__device__ volatile int result;
__device__ __align__(16) int vectors[12];

__device__ int deeper(volatile int* caller) {
  volatile int frame[64];
  frame[0] = *caller + 1;
  if (frame[0] == 0) return 0;  // not on any stack
  return deeper(frame) + frame[0];
}

__global__ void empty() {}

__device__ void make(Fault fault) {
  __shared__ volatile int flag;
  switch (fault) {
    case Fault::spin:
      while (zero == 0) result = result + 1;
      break;
    case Fault::spin_on_flag:
      flag = 0;
      while (flag == 0) {
      }
      break;
    case Fault::sleep_for_ever:
      flag = 0;
      while (flag == 0) __nanosleep(20);
      break;
    case Fault::write_to_null: *null_pointer = 1; break;
    case Fault::read_wild: result = *reinterpret_cast<volatile int*>(0x10000 + zero); break;
    case Fault::misaligned: {
      const auto* from = reinterpret_cast<const float4*>(vectors + 1 + zero);
      *reinterpret_cast<float4*>(vectors + 8) = *from;
      break;
    }
    case Fault::recursion: {
      volatile int start = 0;
      result = deeper(&start);
      break;
    }
    case Fault::division: result = 7 / zero; break;
    case Fault::remainder: result = 7 % zero; break;
    case Fault::trap: __trap();
    case Fault::nested_launch: empty<<<1, 1>>>(); break;
  }
}

__global__ void faulty(Fault fault, unsigned block, unsigned thread, int* done) {
  if (threadIdx.x < 32) __shfl_xor_sync(0xffffffffu, 1, 1);
  if (blockIdx.x == block && threadIdx.x == thread) make(fault);
  done[blockIdx.x * blockDim.x + threadIdx.x] = 1;
}

template <class T, bool kBackward>
__global__ void trapping(const T*) {
  __trap();
}

__global__ void wait_for_other_block_kernel(volatile int* flag, int* out) {
  if (blockIdx.x == 1) {
    *flag = 1;
  } else {
    while (*flag == 0) __nanosleep(100);
    *out = 1;
  }
}

__global__ void many_barriers_kernel(int* out, int rounds) {
  for (int round = 0; round < rounds; ++round) __syncthreads();
  if (threadIdx.x == 0) *out = 1;
}

__global__ void too_much_shared_kernel(int* out) {
  __shared__ char fixed[kTooMuchStatic];
  fixed[threadIdx.x] = 1;
  if (threadIdx.x == 0) *out = fixed[threadIdx.x];
}

__global__ void read_fresh_shared_kernel(int* out) {
  __shared__ int words[kFreshWords];
  out[blockIdx.x * kFreshWords + threadIdx.x] = words[threadIdx.x];
  words[threadIdx.x] = 12345;
}

}  // namespace

void make_fault(Fault fault, unsigned blocks, unsigned threads, unsigned block, unsigned thread,
                int* done) {
  faulty<<<blocks, threads>>>(fault, block, thread, done);
}

void trap_in_template() {
  const auto launch = [](auto element, auto backward) {
    using T = decltype(element);
    constexpr bool kBackward = backward.value;
    trapping<T, kBackward><<<1, 1>>>(nullptr);
  };
  launch(__half{}, std::true_type{});
}

void trap_in_pointer() {
  const auto kernel = trapping<float, false>;
  kernel<<<1, 1>>>(nullptr);
}

void wait_for_other_block(int* flag, int* out) { wait_for_other_block_kernel<<<2, 1>>>(flag, out); }

void many_barriers(int* out, int rounds) { many_barriers_kernel<<<1, 512>>>(out, rounds); }

void too_much_shared(int* out, unsigned dynamic_bytes) {
  too_much_shared_kernel<<<1, 64, dynamic_bytes>>>(out);
}

void read_fresh_shared(int* out, unsigned blocks) {
  read_fresh_shared_kernel<<<blocks, kFreshWords>>>(out);
}

void barrier_on_host() { __syncthreads(); }

namespace {

__global__ void spin_kernel(int* count, int* out) {
  const volatile int* seen = count;
  atomicAdd(count, 1);
  while (*seen < static_cast<int>(blockDim.x)) {
  }
  out[threadIdx.x] = *seen;
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wreturn-type"
__device__ int sign_of(int x) {
  if (x > 0) return 1;
  if (x < 0) return -1;
}
#pragma GCC diagnostic pop

__global__ void no_return_kernel(int* out) { *out = sign_of(*out); }

}  // namespace

void meet_by_spinning(int* count, int* out, unsigned threads) {
  spin_kernel<<<1, threads>>>(count, out);
}
void end_without_return(int* out) { no_return_kernel<<<1, 1>>>(out); }

}  // namespace device_test
