#include "harness/measure.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>

#include "harness/cuda_check.hpp"
#include "harness/measure_kernels.hpp"

namespace tile {
namespace {

constexpr std::size_t kVectorBytes = 16;
// More than any card's L2: 50 MB on an H200, 128 MB on the largest of its successors.
constexpr std::size_t kClearBytes = std::size_t{256} << 20;
constexpr int kWarmUps = 3;
constexpr int kRepetitions = 30;
constexpr std::chrono::milliseconds kPause{200}, kHeating{500};

/// Device memory with random bits.
class RandomMemory {
 public:
  Status allocate(std::size_t bytes) {
    const std::size_t vectors = std::max<std::size_t>(1, bytes / kVectorBytes);
    void* raw = nullptr;
    TILE_RETURN_IF_CUDA_ERROR(cudaMalloc(&raw, vectors * kVectorBytes));
    memory_.reset(raw);
    fill_random(raw, vectors, nullptr);
    return launch_status("the kernel that fills memory with random bits");
  }
  void* get() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(void* memory) const { static_cast<void>(cudaFree(memory)); }
  };
  std::unique_ptr<void, Free> memory_;
};

class Event {
 public:
  Event() = default;
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  ~Event() {
    if (event_) static_cast<void>(cudaEventDestroy(event_));
  }
  Status record() {
    if (!event_) TILE_RETURN_IF_CUDA_ERROR(cudaEventCreate(&event_));
    return cuda_status(cudaEventRecord(event_, nullptr), "cudaEventRecord");
  }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

struct Interval {
  Event start, end;
};

/// Enqueues one execution with the cache cleared before it. Does not wait.
Status enqueue(const Work& work, const RandomMemory& clear, const RandomMemory& sink,
               Interval* interval) {
  read_vectors(clear.get(), kClearBytes / kVectorBytes, sink.get(), nullptr);
  if (Status s = launch_status("the kernel that clears the cache"); !s.ok()) return s;
  if (Status s = interval->start.record(); !s.ok()) return s;
  if (Status s = work(nullptr); !s.ok()) return s;
  return interval->end.record();
}

Timing summary(std::vector<double> times, double clock) {
  std::sort(times.begin(), times.end());
  auto at = [&times](double share) {
    return times[static_cast<std::size_t>(share * static_cast<double>(times.size() - 1) + 0.5)];
  };
  return {at(0.5), at(0.1), at(0.9), static_cast<int>(times.size()), clock};
}

}  // namespace

Status time_in_turn(std::span<const Work> works, Duty duty, std::vector<Timing>* timings) {
  RandomMemory clear, sink, counts;
  if (Status s = clear.allocate(kClearBytes); !s.ok()) return s;
  if (Status s = counts.allocate(2 * sizeof(std::uint64_t)); !s.ok()) return s;
  if (Status s = sink.allocate(1); !s.ok()) return s;

  Interval unused;
  auto run_all = [&] {
    for (const Work& work : works) {
      if (Status s = enqueue(work, clear, sink, &unused); !s.ok()) return s;
    }
    return synchronize_status(nullptr);
  };
  for (int i = 0; i < kWarmUps; ++i) {
    if (Status s = run_all(); !s.ok()) return s;
  }
  if (duty == Duty::burst) {
    std::this_thread::sleep_for(kPause);
  } else {
    const auto end = std::chrono::steady_clock::now() + kHeating;
    while (std::chrono::steady_clock::now() < end) {
      if (Status s = run_all(); !s.ok()) return s;
    }
  }

  std::vector<Interval> intervals(works.size() * kRepetitions);
  for (std::size_t i = 0; i < intervals.size(); ++i) {
    if (Status s = enqueue(works[i % works.size()], clear, sink, &intervals[i]); !s.ok()) return s;
  }
  count_cycles(counts.get(), nullptr);
  if (Status s = launch_status("the kernel that counts cycles"); !s.ok()) return s;
  std::uint64_t cycles_and_nanoseconds[2];
  TILE_RETURN_IF_CUDA_ERROR(cudaMemcpy(cycles_and_nanoseconds, counts.get(),
                                       sizeof cycles_and_nanoseconds, cudaMemcpyDeviceToHost));
  const double clock = 1e3 * static_cast<double>(cycles_and_nanoseconds[0]) /
                       static_cast<double>(cycles_and_nanoseconds[1]);

  timings->clear();
  for (std::size_t w = 0; w < works.size(); ++w) {
    std::vector<double> times;
    for (std::size_t i = w; i < intervals.size(); i += works.size()) {
      float milliseconds = 0;
      TILE_RETURN_IF_CUDA_ERROR(
          cudaEventElapsedTime(&milliseconds, intervals[i].start.get(), intervals[i].end.get()));
      times.push_back(static_cast<double>(milliseconds));
    }
    timings->push_back(summary(std::move(times), clock));
  }
  return {};
}

Status copies(double bytes, std::vector<Work>* works) {
  const auto vectors = std::max<std::size_t>(1, static_cast<std::size_t>(bytes / 2) / kVectorBytes);
  auto from = std::make_shared<RandomMemory>(), to = std::make_shared<RandomMemory>();
  if (Status s = from->allocate(vectors * kVectorBytes); !s.ok()) return s;
  if (Status s = to->allocate(vectors * kVectorBytes); !s.ok()) return s;
  works->push_back([=](void* stream) {
    return cuda_status(cudaMemcpyAsync(to->get(), from->get(), vectors * kVectorBytes,
                                       cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream)),
                       "cudaMemcpyAsync");
  });
  works->push_back([=](void* stream) {
    copy_vectors(from->get(), to->get(), vectors, stream);
    return launch_status("the copy kernel");
  });
  return {};
}

}  // namespace tile
