// How large, how late and how fast each level of a card's memory is, from registers to HBM.
//     ./tour play docs/measure/memory.cu
//     nvcc -std=c++20 -O3 -arch=native -I . docs/measure/memory.cu && ./a.out
// Each kernel first runs on a small problem whose result the host computes as well.
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>

#include "docs/measure/measure.hpp"

enum class Level { registers, shared, l1, l2, memory };

constexpr int kLine = 128 / sizeof(unsigned);  // elements of a cache line
constexpr int kSmall = 16 * 1024;              // bytes of a chain in shared memory or L1
constexpr int kPlaces = kSmall / sizeof(unsigned);
constexpr int kThreads = 512;
constexpr int kInFlight = 4;      // loads, in each thread
constexpr int kSlice = kThreads;  // of 16 bytes: what a block rereads, 8 KiB
constexpr int kChains = 8;        // of multiply-adds, in each thread

// snippet-begin chase
/// One thread follows a chain of places. It cannot ask for a place before it has the one before, so
/// the time of a hop is the latency of a load. __ldca may find the line in L1; __ldcg asks L2.
template <Level kLevel>
__global__ void chase(const unsigned* next,  // [places]: where to go from each
                      unsigned place, int hops, unsigned* end, long long* cycles) {
  __shared__ unsigned chain[kPlaces];
  if (kLevel == Level::shared) {
    for (int i = 0; i < kPlaces; i += kLine) chain[i] = next[i];
  }
  const long long start = clock64();
  for (int hop = 0; hop < hops; ++hop) {
    switch (kLevel) {
      case Level::registers: place = place * place + place; break;
      case Level::shared: place = chain[place]; break;
      case Level::l1: place = __ldca(next + place); break;
      default: place = __ldcg(next + place);
    }
  }
  *end = place;
  *cycles = clock64() - start;
}
// snippet-end chase

__device__ unsigned sum_of(uint4 v) { return v.x + v.y + v.z + v.w; }

// snippet-begin stream
/// All blocks together read the data `passes` times, with four loads in flight in each thread.
__global__ void stream(const uint4* data,  // [size]
                       std::int64_t size, int passes, unsigned* sum) {
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  const std::int64_t first = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  unsigned mine = 0;
  for (int pass = 0; pass < passes; ++pass) {
    for (std::int64_t i = first; i < size; i += kInFlight * stride) {
      uint4 loaded[kInFlight];
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        loaded[k] = i + k * stride < size ? __ldcg(data + i + k * stride) : uint4{0, 0, 0, 0};
      }
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) mine += sum_of(loaded[k]);
    }
  }
  atomicAdd(sum, mine);
}
// snippet-end stream

/// Each block reads 8 KiB of its own again and again, from shared memory or L1. In each pass a warp
/// reads what another one did in the pass before.
template <Level kLevel>
__global__ void reread(const uint4* data,  // [blocks][kSlice]
                       int passes, unsigned* sum) {
  __shared__ uint4 slice[kSlice];
  data += blockIdx.x * kSlice;
  slice[threadIdx.x] = data[threadIdx.x];
  __syncthreads();
  unsigned mine = 0, i = threadIdx.x;
  // Every fourth iteration reads the same places. nvcc finds that out if it unrolls the loop by
  // four, and then loads once and for all.
#pragma unroll 1
  for (int pass = 0; pass < passes; pass += kInFlight, i += kInFlight * 32) {
    uint4 loaded[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const unsigned at = (i + k * 32) % kSlice;
      loaded[k] = kLevel == Level::shared ? slice[at] : __ldca(data + at);
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) mine += sum_of(loaded[k]);
  }
  atomicAdd(sum, mine);
}

/// Independent chains of multiply-adds. Each of them reads three registers.
__global__ void multiply_add(float a, float b, int passes,
                             float* sums) {  // [blocks][kThreads]
  float x[kChains], total = 0;
  for (int k = 0; k < kChains; ++k) x[k] = threadIdx.x + k;
  for (int pass = 0; pass < passes; ++pass) {
#pragma unroll
    for (float& value : x) value = fmaf(value, a, b);
  }
  for (const float value : x) total += value;
  sums[blockIdx.x * blockDim.x + threadIdx.x] = total;
}

/// A chain through all cache lines, in a random order: no hardware guesses what comes next.
std::vector<unsigned> make_chain(std::size_t bytes) {
  std::vector<unsigned> lines(bytes / sizeof(unsigned) / kLine), next(lines.size() * kLine);
  std::iota(lines.begin(), lines.end(), 0u);
  std::shuffle(lines.begin(), lines.end(), std::mt19937(1));
  for (std::size_t i = 0; i < lines.size(); ++i) {
    next[lines[i] * std::size_t{kLine}] = lines[(i + 1) % lines.size()] * kLine;
  }
  return next;
}

struct Measurement {
  cudaDeviceProp card = properties();
  unsigned blocks = 2 * card.multiProcessorCount;
  unsigned* sum = allocate<unsigned>(1);
  long long* cycles = allocate<long long>(1);
  int wrong = 0;
  std::vector<Row> rows;

  template <Level kLevel>
  static unsigned start() {
    return kLevel == Level::registers ? 3 : 0;
  }

  template <Level kLevel>
  void check_chain() {
    constexpr int kHops = 500;
    const std::vector<unsigned> chain = make_chain(kSmall);
    unsigned* next = on_device(chain);
    chase<kLevel><<<1, 1>>>(next, start<kLevel>(), kHops, sum, cycles);
    unsigned place = start<kLevel>();
    for (int i = 0; i < kHops; ++i) {
      place = kLevel == Level::registers ? place * place + place : chain[place];
    }
    wrong += on_host(sum, 1)[0] != place;
    check(cudaFree(next));
  }

  template <Level kLevel>
  void measure_latency(const char* name, std::size_t bytes) {
    constexpr int kHops = 50'000;
    unsigned* next = on_device(make_chain(bytes));
    const auto launch = [&](int hops) {
      chase<kLevel><<<1, 1>>>(next, start<kLevel>(), hops, sum, cycles);
    };
    if (kLevel == Level::l2) launch(int(bytes / 128));  // brings every line there
    if (kLevel == Level::memory) empty_l2();
    const double ns = nanoseconds(1, [&] { launch(kHops); });
    const std::string where = kLevel == Level::registers ? "" : shown_bytes(double(bytes));
    rows.push_back({name, "latency", ns / kHops, "ns", where});
    rows.push_back({name, "latency in cycles", double(on_host(cycles, 1)[0]) / kHops, "", where});
    check(cudaFree(next));
  }

  /// Of what was copied there before.
  void empty_l2() {
    const std::size_t bytes = 4 * std::size_t(card.l2CacheSize);
    char* other = allocate<char>(bytes);
    check(cudaMemset(other, 0, bytes));
    check(cudaFree(other));
  }

  /// Every word counts once in every pass.
  template <class Launch>
  void check_sum(std::size_t chunks, const Launch& launch) {
    std::mt19937 random(2);
    std::vector<uint4> data(chunks);
    unsigned once = 0;
    for (uint4& v : data) {
      v = {unsigned(random()), unsigned(random()), unsigned(random()), unsigned(random())};
      once += v.x + v.y + v.z + v.w;
    }
    uint4* device = on_device(data);
    constexpr int kPasses = 2 * kInFlight;
    check(cudaMemset(sum, 0, sizeof *sum));
    launch(device, kPasses);
    wrong += on_host(sum, 1)[0] != once * kPasses;
    check(cudaFree(device));
  }

  template <class Launch>
  void measure_bandwidth(const char* name, std::size_t chunks, int passes, const Launch& launch) {
    const double bytes = double(chunks) * sizeof(uint4);
    uint4* device = allocate<uint4>(chunks);
    check(cudaMemset(device, 0, chunks * sizeof(uint4)));
    const double ns = nanoseconds(5, [&] { launch(device, passes); });
    rows.push_back({name, "bandwidth", bytes * passes / ns * 1e-3, "TB/s", shown_bytes(bytes)});
    check(cudaFree(device));
  }

  void check_multiply_adds() {
    constexpr int kPasses = 10;
    const float a = 0.75f, b = 1.5f;
    float* device = allocate<float>(std::size_t{blocks} * kThreads);
    multiply_add<<<blocks, kThreads>>>(a, b, kPasses, device);
    const std::vector<float> sums = on_host(device, std::size_t{blocks} * kThreads);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      float total = 0;
      for (int k = 0; k < kChains; ++k) {
        float x = float(i % kThreads + k);
        for (int pass = 0; pass < kPasses; ++pass) x = std::fmaf(x, a, b);
        total += x;
      }
      wrong += sums[i] != total;
    }
    check(cudaFree(device));
  }

  void measure_multiply_adds() {
    constexpr int kPasses = 1 << 15;
    float* device = allocate<float>(std::size_t{blocks} * kThreads);
    const double ns =
        nanoseconds(5, [&] { multiply_add<<<blocks, kThreads>>>(0.75f, 1.5f, kPasses, device); });
    const double adds = double(kPasses) * kChains * kThreads * blocks;
    rows.push_back({"multiply-adds", "fp32", 2 * adds / ns * 1e-3, "TFLOP/s", ""});
    rows.push_back({"registers", "bandwidth", 12 * adds / ns * 1e-3, "TB/s", ""});
    check(cudaFree(device));
  }
};

int main(int count, char** arguments) {
  Measurement m;
  const auto read_all = [&m](std::size_t chunks) {
    return [&m, size = std::int64_t(chunks)](const uint4* data, int passes) {
      stream<<<m.blocks, kThreads>>>(data, size, passes, m.sum);
    };
  };
  const auto read_shared = [&m](const uint4* data, int passes) {
    reread<Level::shared><<<m.blocks, kThreads>>>(data, passes, m.sum);
  };
  const auto read_l1 = [&m](const uint4* data, int passes) {
    reread<Level::l1><<<m.blocks, kThreads>>>(data, passes, m.sum);
  };
  const std::size_t slices = std::size_t{m.blocks} * kSlice;

  constexpr std::size_t kOdd = 10'007;  // chunks, a number that no grid divides
  m.check_chain<Level::registers>();
  m.check_chain<Level::shared>();
  m.check_chain<Level::l1>();
  m.check_chain<Level::memory>();
  m.check_sum(kOdd, read_all(kOdd));
  m.check_sum(slices, read_shared);
  m.check_sum(slices, read_l1);
  m.check_multiply_adds();
  end_without_times(m.wrong);

  // Sizes by the card's own L2: a quarter of it stays there, and 32 of it do not.
  const std::size_t l2 = m.card.l2CacheSize, in_l2 = l2 / 4;
  const std::size_t beyond = std::min(32 * l2, m.card.totalGlobalMem / 4);
  constexpr double kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB;
  m.rows.push_back({"registers", "size", 4 * m.card.regsPerMultiprocessor / kKiB, "KiB", ""});
  m.rows.push_back(
      {"shared memory", "size", double(m.card.sharedMemPerMultiprocessor) / kKiB, "KiB", ""});
  m.rows.push_back({"L2", "size", double(l2) / kMiB, "MiB", ""});
  m.rows.push_back({"device memory", "size", double(m.card.totalGlobalMem) / kGiB, "GiB", ""});
  m.rows.push_back({"multiprocessors", "number", double(m.card.multiProcessorCount), "", ""});

  m.measure_multiply_adds();  // first: the clock rises meanwhile
  m.measure_bandwidth("shared memory", slices, 1 << 14, read_shared);
  m.measure_bandwidth("L1", slices, 1 << 14, read_l1);
  m.measure_bandwidth("L2", in_l2 / 16, 400, read_all(in_l2 / 16));
  m.measure_bandwidth("device memory", beyond / 16, 1, read_all(beyond / 16));
  m.measure_latency<Level::registers>("registers", kSmall);
  m.measure_latency<Level::shared>("shared memory", kSmall);
  m.measure_latency<Level::l1>("L1", kSmall);
  m.measure_latency<Level::l2>("L2", in_l2);
  m.measure_latency<Level::memory>("device memory", std::min(8 * l2, beyond));
  show(m.rows, "memory_hierarchy", count, arguments);
  return 0;
}
