#include "block_kernels.hpp"

#include <cuda_runtime.h>

namespace device_test {
namespace {

__device__ unsigned thread_number() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
__device__ unsigned threads_of_block() { return blockDim.x * blockDim.y * blockDim.z; }

// ---- Who am I? ----

__global__ void who_am_i_kernel(Indices* indices, int* visits) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned i = block * threads_of_block() + thread_number();
  indices[i] = {threadIdx, blockIdx, blockDim, gridDim};
  atomicAdd(&visits[i], 1);
}

// ---- Barriers ----

__global__ void barrier_votes_kernel(const unsigned* bits, BarrierResults* results) {
  const unsigned thread = thread_number();
  for (int round = 0; round < kRounds; ++round) {
    const int vote = bits[thread] >> round & 1;
    BarrierResults& r = results[round * threads_of_block() + thread];
    r.count = __syncthreads_count(vote);
    r.all = __syncthreads_and(vote * 6);
    r.any = __syncthreads_or(-vote);
  }
}

__global__ void reverse_kernel(int* data) {
  __shared__ int shared[1024];
  int* mine = &data[blockIdx.x * blockDim.x];
  shared[threadIdx.x] = mine[threadIdx.x];
  __syncthreads();
  mine[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

// The flags of this kernel and the next are meant to race. compute-sanitizer's racecheck, which
// knows barriers only, reports both.
__global__ void wait_for_flag_kernel(int* out) {
  __shared__ volatile int flag, message;
  if (threadIdx.x == 0) flag = 0;
  __syncthreads();
  if (threadIdx.x == 0) {
    while (flag == 0) __nanosleep(100);
    __threadfence_block();
    out[0] = message;
  } else if (threadIdx.x == 32) {
    for (int i = 0; i < 10; ++i) __nanosleep(100);
    message = 42;
    __threadfence_block();
    flag = 1;
  }
}

__global__ void poll_by_votes_kernel(unsigned poller, int* out) {
  __shared__ volatile int flag;
  if (threadIdx.x == 0) flag = 0;
  __syncthreads();
  if (threadIdx.x / 32 == poller) {
    while (!__any_sync(0xffffffffu, flag)) {
    }
    if (threadIdx.x % 32 == 0) *out = flag;
  } else {
    int sum = 0;
    for (int i = 0; i < 100; ++i) sum += __shfl_xor_sync(0xffffffffu, 1, 1);
    if (threadIdx.x % 32 == 0) flag = sum;
  }
}

// ---- Shared memory ----

struct Pair {
  double weight;
  short index;
};

__device__ void expect(bool right, int* wrong) {
  if (!right) atomicAdd(wrong, 1);
}

template <class T>
__device__ bool is_aligned(const T* pointer, size_t bytes = alignof(T)) {
  return reinterpret_cast<size_t>(pointer) % bytes == 0;
}

// Each thread fills its part of all arrays and reads its neighbour's: overlapping would show.
__global__ void several_arrays_kernel(int* wrong, int* visited) {
  constexpr int n = 64;
  __shared__ char letters[n + 1];  // an odd size, so that the next must be aligned
  __shared__ double numbers[n];
  __shared__ Pair pairs[n];
  __shared__ unsigned char square[n / 8][8];
  __shared__ __align__(128) char aligned[n];
  __shared__ float4 vectors[n];
  __shared__ int scalar, few[3], *pointer;
  const int t = static_cast<int>(threadIdx.x);

  letters[t] = static_cast<char>(t);
  numbers[t] = t + 0.5;
  pairs[t] = {t * 2.0, static_cast<short>(-t)};
  square[t / 8][t % 8] = static_cast<unsigned char>(3 * t);
  aligned[t] = static_cast<char>(t ^ 21);
  vectors[t] = make_float4(t, t + 1, t + 2, t + 3);
  if (t == 0) letters[n] = 99, scalar = 1234, few[0] = few[2] = 7, few[1] = 8, pointer = few + 1;
  __syncthreads();

  const int o = (t + 37) % n;
  expect(letters[o] == o && letters[n] == 99, wrong);
  expect(numbers[o] == o + 0.5, wrong);
  expect(pairs[o].weight == o * 2.0 && pairs[o].index == -o, wrong);
  expect(square[o / 8][o % 8] == static_cast<unsigned char>(3 * o), wrong);
  expect(aligned[o] == (o ^ 21), wrong);
  expect(vectors[o].x == o && vectors[o].w == o + 3, wrong);
  expect(scalar == 1234 && few[0] == 7 && *pointer == 8 && few[2] == 7, wrong);
  expect(is_aligned(numbers) && is_aligned(pairs) && is_aligned(vectors), wrong);
  expect(is_aligned(aligned, 128), wrong);
  expect(sizeof(letters) == n + 1 && sizeof(square) == n, wrong);
  atomicAdd(visited, 1);
}

// The same array for all callers of the function, and another for each argument of the template.
__device__ int* mailbox() {
  __shared__ int boxes[64];
  return boxes;
}
template <int kTag>
__device__ int* tagged_mailbox() {
  __shared__ int boxes[64];
  return boxes;
}

__global__ void declared_in_functions_kernel(int* wrong, int* visited) {
  const int t = static_cast<int>(threadIdx.x);
  const int o = 63 - t;
  mailbox()[t] = 100 + t;
  tagged_mailbox<1>()[t] = 200 + t;
  tagged_mailbox<2>()[t] = 300 + t;
  {
    __shared__ int boxes[64];  // a namesake
    boxes[t] = 400 + t;
    __syncthreads();
    expect(boxes[o] == 400 + o, wrong);
  }
  {
    __shared__ int boxes[64];  // and another
    boxes[t] = 500 + t;
    __syncthreads();
    expect(boxes[o] == 500 + o, wrong);
  }
  expect(mailbox()[o] == 100 + o, wrong);
  expect(tagged_mailbox<1>()[o] == 200 + o && tagged_mailbox<2>()[o] == 300 + o, wrong);
  atomicAdd(visited, 1);
}

template <class T, int kPadding>
__global__ void template_kernel(int* wrong, int* visited) {
  __shared__ T rows[8][8 + kPadding];
  const unsigned t = threadIdx.x;
  rows[t / 8][t % 8] = static_cast<T>(t) / 2;
  __syncthreads();
  expect(rows[t % 8][t / 8] == static_cast<T>(t % 8 * 8 + t / 8) / 2, wrong);
  expect(sizeof(rows) == sizeof(T) * 8 * (8 + kPadding), wrong);
  atomicAdd(visited, 1);
}

__global__ void dynamic_and_static_kernel(int* wrong, int* visited, unsigned bytes) {
  extern __shared__ __align__(16) unsigned char dynamic[];
  __shared__ unsigned char fixed[kStaticBytes];
  float4* vectors = reinterpret_cast<float4*>(dynamic);
  const unsigned t = threadIdx.x;
  for (unsigned i = t; i < bytes; i += blockDim.x) dynamic[i] = static_cast<unsigned char>(i * 7);
  for (unsigned i = t; i < kStaticBytes; i += blockDim.x) fixed[i] = 200;
  __syncthreads();
  for (unsigned i = t + 1; i < bytes; i += blockDim.x) {
    expect(dynamic[i] == static_cast<unsigned char>(i * 7), wrong);
  }
  for (unsigned i = blockDim.x - 1 - t; i < kStaticBytes; i += blockDim.x) {
    expect(fixed[i] == 200, wrong);
  }
  expect(is_aligned(vectors, 16), wrong);
  __syncthreads();
  if (t < bytes / 16) vectors[t] = make_float4(t, 0, 0, -1);
  __syncthreads();
  const unsigned o = 63 - t;
  if (o < bytes / 16) expect(vectors[o].x == o && vectors[o].w == -1, wrong);
  atomicAdd(visited, 1);
}

// ---- Constant memory and variables of the device ----

struct Settings {
  double scale;
  int offset;
};

__constant__ float constants[kConstants];
__constant__ Settings settings;
__device__ long long counter = 5;

__global__ void use_constants_kernel(double* out) {
  out[threadIdx.x] = constants[threadIdx.x] * settings.scale + settings.offset;
  atomicAdd(reinterpret_cast<unsigned long long*>(&counter), 1);
}

// ---- Launches ----

__global__ void write_kernel(int* out, int value) { *out = value; }

template <class T>
__global__ void write_as_kernel(int* out, T value) {
  *out = static_cast<int>(value * 2);
}

template <int kA, int kB>
__global__ void write_sum_kernel(int* out) {
  *out = kA + kB;
}

// A parameter is each thread's own.
__global__ void change_parameter_kernel(int* out, int value) {
  value += static_cast<int>(threadIdx.x);
  if (threadIdx.x == blockDim.x - 1) *out = value;
}

struct Large {
  int numbers[500];
};
__global__ void large_parameter_kernel(int* out, const Large large) {
  int sum = 0;
  for (const int number : large.numbers) sum += number;
  *out = sum;
}

__global__ void number_threads_kernel(int* out) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned i = block * threads_of_block() + thread_number();
  out[i] = static_cast<int>(i);
}

namespace inner {
__global__ void write_kernel(int* out, int value) { *out = -value; }
}  // namespace inner

}  // namespace

void who_am_i(Indices* indices, int* visits, dim3 grid, dim3 block) {
  who_am_i_kernel<<<grid, block>>>(indices, visits);
}

void barrier_votes(const unsigned* bits, BarrierResults* results, dim3 block) {
  barrier_votes_kernel<<<1, block>>>(bits, results);
}

void reverse_blocks(int* data, unsigned blocks, unsigned threads) {
  reverse_kernel<<<blocks, threads>>>(data);
}

void wait_for_flag(int* out) { wait_for_flag_kernel<<<1, 64>>>(out); }

void poll_by_votes(unsigned poller, int* out) { poll_by_votes_kernel<<<1, 64>>>(poller, out); }

void several_arrays(int* wrong, int* visited) { several_arrays_kernel<<<1, 64>>>(wrong, visited); }

void declared_in_functions(int* wrong, int* visited) {
  declared_in_functions_kernel<<<1, 64>>>(wrong, visited);
}

void in_template_for_int_and_double(int* wrong, int* visited) {
  template_kernel<int, 0><<<1, 64>>>(wrong, visited);
  template_kernel<double, 1><<<1, 64>>>(wrong, visited);
}

void dynamic_and_static(int* wrong, int* visited, unsigned bytes) {
  dynamic_and_static_kernel<<<1, 64, bytes>>>(wrong, visited, bytes);
}

cudaError_t allow_dynamic_bytes(int bytes) {
  return cudaFuncSetAttribute(dynamic_and_static_kernel,
                              cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

cudaError_t set_constants(const float* values, size_t count, size_t first) {
  return cudaMemcpyToSymbol(constants, values, count * sizeof(float), first * sizeof(float));
}

cudaError_t get_constants(float* values, size_t count, size_t first) {
  return cudaMemcpyFromSymbol(values, constants, count * sizeof(float), first * sizeof(float));
}

cudaError_t set_settings(double scale, int offset) {
  const Settings values{scale, offset};
  return cudaMemcpyToSymbol(settings, &values, sizeof values);
}

void use_constants(double* out) { use_constants_kernel<<<1, kConstants>>>(out); }

cudaError_t set_counter(long long value) {
  return cudaMemcpyToSymbol(counter, &value, sizeof value);
}
cudaError_t get_counter(long long* value) {
  return cudaMemcpyFromSymbol(value, counter, sizeof *value);
}

cudaError_t to_constants(const void* from, size_t bytes, size_t offset, cudaMemcpyKind kind) {
  return cudaMemcpyToSymbol(constants, from, bytes, offset, kind);
}
cudaError_t from_constants(void* to, size_t bytes, size_t offset, cudaMemcpyKind kind) {
  return cudaMemcpyFromSymbol(to, constants, bytes, offset, kind);
}

void launch_in_all_ways(int* out, std::vector<int>* expected, cudaStream_t stream) {
  // The place for the next launch's result, which is to be `value`.
  auto place = [&](int value) {
    expected->push_back(value);
    return out + expected->size() - 1;
  };
  write_kernel<<<1, 1>>>(place(1), 1);
  write_kernel<<<dim3(1), dim3(1, 1)>>>(place(2), 2);
  write_kernel<<<1, 1, 0>>>(place(3), 3);
  write_kernel<<<1, 1, 0, stream>>>(place(4), 4);
  double fraction = 5.9;
  write_kernel<<<1, 1, 0, nullptr>>>(place(5), fraction);  // converted to the parameter's type
  write_as_kernel<<<1, 1>>>(place(5), 2.5);                // deduced
  write_as_kernel<float><<<1, 1>>>(place(6), 3);
  write_as_kernel<int><<<1, 1>>>(place(10), fraction);
  write_sum_kernel<3, 5><<<1, 1>>>(place(8));
  write_sum_kernel<(9 > 8 ? 4 : 0), 5><<<1, 1>>>(place(9));
  inner::write_kernel<<<1, 1>>>(place(-10), 10);
  ::device_test::inner::write_kernel<<<1, 1>>>(place(-11), 11);

  void (*pointer)(int*, int) = &write_kernel;
  pointer<<<1, 1>>>(place(12), 12);
  pointer = write_as_kernel<int>;
  (*pointer)<<<1, 1>>>(place(26), 13);
  auto launch = [&](int value) { write_kernel<<<1, 1>>>(place(value), value); };
  launch(14);
  if (expected->empty())
    write_kernel<<<1, 1>>>(place(-1), -1);
  else
    write_kernel<<<1, 1>>>(place(15), 15);
  for (int i = 16; i < 18; ++i) write_kernel<<<1, 1>>>(place(i), i);

  change_parameter_kernel<<<1, 8>>>(place(18), 11);
  Large large{};
  large.numbers[0] = large.numbers[499] = 10;
  large_parameter_kernel<<<1, 1>>>(place(20), large);
  large.numbers[0] = 1000;  // too late: the kernel has a copy
}

void number_threads(int* out, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream) {
  number_threads_kernel<<<grid, block, shared_bytes, stream>>>(out);
}

// ---- Parameters ----

namespace {

Copies copies;

struct Counted {
  int value = 7;
  Counted() { ++copies.made; }
  Counted(const Counted& other) : value(other.value) { ++copies.made; }
  ~Counted() {
    value = -1;
    ++copies.destroyed;
  }
};

__global__ void takes_counted(Counted counted, int* out) {
  counted.value += static_cast<int>(threadIdx.x);
  out[threadIdx.x] = counted.value;
}
template <class T>
__global__ void takes_any(T any, int* out) {
  any.value += static_cast<int>(threadIdx.x);
  out[threadIdx.x] = any.value;
}

}  // namespace

Copies pass_what_is_counted(int way, int* out, unsigned threads) {
  copies = {};
  {
    Counted counted;
    void* arguments[] = {&counted, &out};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(1);
    config.blockDim = dim3(threads);
    switch (way) {
      case 0: takes_counted<<<1, threads>>>(counted, out); break;
      case 1: takes_counted<<<1, threads>>>(Counted(), out); break;
      case 2: takes_any<Counted><<<1, threads>>>(counted, out); break;
      case 3: takes_any<<<1, threads>>>(counted, out); break;
      case 4: cudaLaunchKernel(takes_counted, dim3(1), dim3(threads), arguments, 0, nullptr); break;
      case 5: cudaLaunchKernelEx(&config, takes_counted, counted, out); break;
    }
    cudaDeviceSynchronize();
  }
  return copies;
}

}  // namespace device_test
