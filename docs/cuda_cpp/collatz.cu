// How long the lanes of a warp wait for the slowest of them, counted; with managed memory, and with
// C++ that host and device share.
//     ./tour play docs/cuda_cpp/collatz.cu
//     nvcc -std=c++20 docs/cuda_cpp/collatz.cu && ./a.out
#include <algorithm>
#include <cstdio>
#include <cstdlib>

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::printf("%s\n", cudaGetErrorString(error));
  std::exit(1);
}

// snippet-begin shared
/// For the host and the device: an ordinary class, compiled for both.
struct Collatz {
  unsigned factor, addend;

  /// How often n is halved or replaced by factor n + addend until it is 1.
  __host__ __device__ int steps(unsigned n) const {
    int count = 0;
    for (; n != 1; ++count) n = n % 2 == 0 ? n / 2 : factor * n + addend;
    return count;
  }
};

template <class Rule>
__global__ void count_steps(Rule rule,  // by value: each thread has its copy
                            int* steps, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) steps[i] = rule.steps(i + 1);
}
// snippet-end shared

int main() {
  constexpr int kCount = 1024, kThreads = 256, kWarp = 32;
  const Collatz rule{.factor = 3, .addend = 1};

  // snippet-begin managed
  int* steps = nullptr;
  check(cudaMallocManaged(&steps, kCount * sizeof(int)));
  count_steps<<<kCount / kThreads, kThreads>>>(rule, steps, kCount);
  check(cudaGetLastError());
  check(cudaDeviceSynchronize());  // before the host reads what the kernel writes
  // snippet-end managed

  int wrong = 0;
  long long taken = 0, paid = 0;
  for (int first = 0; first < kCount; first += kWarp) {
    int longest = 0;
    for (int i = first; i < first + kWarp; ++i) {
      wrong += steps[i] != rule.steps(i + 1);
      taken += steps[i];
      longest = std::max(longest, steps[i]);
    }
    paid += kWarp * longest;
  }
  check(cudaFree(steps));
  std::printf("%d numbers: %d are wrong\n", kCount, wrong);
  std::printf("%lld steps by lanes, %lld with those in which a lane waits for its warp: %lld %%\n",
              taken, paid, 100 * taken / paid);
  return wrong != 0;
}
