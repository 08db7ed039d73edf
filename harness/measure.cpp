#include "harness/measure.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "harness/cuda_check.hpp"
#include "harness/measure_kernels.hpp"

namespace tile {
namespace {

struct FreeMemory {
  void operator()(void* memory) const { static_cast<void>(cudaFree(memory)); }
};
using Memory = std::unique_ptr<void, FreeMemory>;

Status allocate(std::size_t bytes, Memory* memory) {
  void* raw = nullptr;
  TILE_RETURN_IF_CUDA_ERROR(cudaMalloc(&raw, bytes));
  memory->reset(raw);
  TILE_RETURN_IF_CUDA_ERROR(cudaMemset(raw, 0x5a, bytes));
  return {};
}

class Events {
 public:
  ~Events() {
    for (const cudaEvent_t event : {start, end}) {
      if (event) static_cast<void>(cudaEventDestroy(event));
    }
  }
  Status create() {
    TILE_RETURN_IF_CUDA_ERROR(cudaEventCreate(&start));
    TILE_RETURN_IF_CUDA_ERROR(cudaEventCreate(&end));
    return {};
  }
  cudaEvent_t start = nullptr, end = nullptr;
};

constexpr std::size_t kVectorBytes = 16;
// More than any card's L2: 50 MB on an H200, 128 MB on the largest of its successors.
constexpr std::size_t kClearBytes = std::size_t{256} << 20;
constexpr int kWarmUps = 3;

}  // namespace

Status median_milliseconds(const Work& work, int repetitions, double* milliseconds) {
  Memory clear, sink;
  Events events;
  if (Status s = allocate(kClearBytes, &clear); !s.ok()) return s;
  if (Status s = allocate(1, &sink); !s.ok()) return s;
  if (Status s = events.create(); !s.ok()) return s;

  std::vector<float> times;
  for (int i = -kWarmUps; i < repetitions; ++i) {
    read_vectors(clear.get(), kClearBytes / kVectorBytes, sink.get(), nullptr);
    if (Status s = launch_status("the cache-clearing kernel"); !s.ok()) return s;
    TILE_RETURN_IF_CUDA_ERROR(cudaEventRecord(events.start, nullptr));
    if (Status s = work(nullptr); !s.ok()) return s;
    TILE_RETURN_IF_CUDA_ERROR(cudaEventRecord(events.end, nullptr));
    TILE_RETURN_IF_CUDA_ERROR(cudaEventSynchronize(events.end));
    float elapsed = 0;
    TILE_RETURN_IF_CUDA_ERROR(cudaEventElapsedTime(&elapsed, events.start, events.end));
    if (i >= 0) times.push_back(elapsed);
  }
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  *milliseconds = static_cast<double>(*middle);
  return {};
}

Status copy_milliseconds(double bytes, int repetitions, double* milliseconds) {
  const auto vectors = std::max<std::size_t>(1, static_cast<std::size_t>(bytes / 2) / kVectorBytes);
  Memory from, to;
  if (Status s = allocate(vectors * kVectorBytes, &from); !s.ok()) return s;
  if (Status s = allocate(vectors * kVectorBytes, &to); !s.ok()) return s;

  double by_runtime = 0, by_kernel = 0;
  Status s = median_milliseconds(
      [&](void* stream) {
        return cuda_status(
            cudaMemcpyAsync(to.get(), from.get(), vectors * kVectorBytes, cudaMemcpyDeviceToDevice,
                            static_cast<cudaStream_t>(stream)),
            "cudaMemcpyAsync");
      },
      repetitions, &by_runtime);
  if (!s.ok()) return s;
  s = median_milliseconds(
      [&](void* stream) {
        copy_vectors(from.get(), to.get(), vectors, stream);
        return launch_status("the copy kernel");
      },
      repetitions, &by_kernel);
  if (!s.ok()) return s;
  *milliseconds = std::min(by_runtime, by_kernel);
  return {};
}

}  // namespace tile
