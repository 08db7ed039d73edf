#include "harness/measure.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>

#include "harness/measure_kernels.hpp"
#include "tile/host/cuda_check.hpp"
#include "tile/host/device.hpp"

namespace tile {
namespace {

constexpr std::size_t kVectorBytes = 16;
// More than any card's L2: 50 MB on an H200, 128 MB on the largest of its successors.
constexpr std::size_t kClearBytes = std::size_t{256} << 20;
constexpr int kFewest = 3, kMost = 30;  // repetitions
constexpr double kMillisecondsOfAWork = 400, kMillisecondsOfABurst = 300;
constexpr double kShort = 1;  // milliseconds: never worth a group of its own
constexpr double kSlow = 4;   // times the fastest step: worth one
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

Timing summary(std::vector<double> times, double clock) {
  std::sort(times.begin(), times.end());
  auto at = [&times](double share) {
    return times[static_cast<std::size_t>(share * static_cast<double>(times.size() - 1) + 0.5)];
  };
  return {at(0.5), at(0.1), at(0.9), static_cast<int>(times.size()), clock};
}

/// What every execution that is timed needs.
class Timer {
 public:
  Status allocate() {
    if (Status s = clear_.allocate(kClearBytes); !s.ok()) return s;
    return sink_.allocate(1);
  }
  /// Enqueues one execution with the cache cleared before it. Does not wait.
  Status enqueue(const Work& work, Interval* interval) const {
    read_vectors(clear_.get(), kClearBytes / kVectorBytes, sink_.get(), nullptr);
    if (Status s = launch_status("the kernel that clears the cache"); !s.ok()) return s;
    if (Status s = interval->start.record(); !s.ok()) return s;
    if (Status s = work(nullptr); !s.ok()) return s;
    return interval->end.record();
  }

 private:
  RandomMemory clear_, sink_;
};

Status elapsed(const Interval& interval, double* milliseconds) {
  float time = 0;
  TILE_RETURN_IF_CUDA_ERROR(cudaEventElapsedTime(&time, interval.start.get(), interval.end.get()));
  *milliseconds = static_cast<double>(time);
  return {};
}

}  // namespace

Status time_once(std::span<const Work> works, std::vector<double>* milliseconds) {
  Timer timer;
  if (Status s = timer.allocate(); !s.ok()) return s;
  milliseconds->assign(works.size(), 0);
  for (std::size_t w = 0; w < works.size(); ++w) {
    Interval interval;
    if (Status s = timer.enqueue(works[w], &interval); !s.ok()) return s;
    if (Status s = synchronize_status(nullptr); !s.ok()) return s;
    if (Status s = elapsed(interval, &(*milliseconds)[w]); !s.ok()) return s;
  }
  return {};
}

std::vector<Group> plan(std::span<const double> milliseconds, std::size_t rivals) {
  const std::span<const double> steps = milliseconds.subspan(rivals);
  if (steps.empty()) return {};
  const double slow = std::max(kShort, kSlow * *std::min_element(steps.begin(), steps.end()));
  std::vector<Group> groups(1);
  for (std::size_t w = 0; w < milliseconds.size(); ++w) {
    const bool together = w < rivals || w + 1 == milliseconds.size() || milliseconds[w] <= slow;
    if (together) {
      groups.front().works.push_back(w);
    } else {
      groups.push_back({{w}});
    }
  }
  for (Group& group : groups) {
    double round = 0;
    for (const std::size_t w : group.works) round += milliseconds[w];
    const double fit = kMillisecondsOfAWork * static_cast<double>(group.works.size()) / round;
    group.repetitions = static_cast<int>(std::clamp<double>(fit, kFewest, kMost));
    group.burst =
        static_cast<int>(std::clamp<double>(kMillisecondsOfABurst / round, 1, group.repetitions));
  }
  return groups;
}

Status time_in_turn(std::span<const Work> works, const Group& group, Duty duty,
                    std::vector<Timing>* timings) {
  Timer timer;
  RandomMemory counts;
  if (Status s = timer.allocate(); !s.ok()) return s;
  if (Status s = counts.allocate(2 * sizeof(std::uint64_t)); !s.ok()) return s;
  // Executes each once and waits.
  auto round = [&] {
    Interval unused;
    for (const std::size_t w : group.works) {
      if (Status s = timer.enqueue(works[w], &unused); !s.ok()) return s;
    }
    return synchronize_status(nullptr);
  };

  for (int i = 0; i < group.repetitions / 10; ++i) {
    if (Status s = round(); !s.ok()) return s;
  }
  if (duty == Duty::sustained) {
    const auto end = std::chrono::steady_clock::now() + kHeating;
    while (std::chrono::steady_clock::now() < end) {
      if (Status s = round(); !s.ok()) return s;
    }
  }
  std::vector<std::vector<Interval>> intervals(group.works.size());
  for (int i = 0; i < group.repetitions; ++i) {
    if (duty == Duty::burst && group.burst > 0 && i % group.burst == 0) {
      if (Status s = synchronize_status(nullptr); !s.ok()) return s;
      std::this_thread::sleep_for(kPause);
    }
    for (std::size_t w = 0; w < group.works.size(); ++w) {
      Interval& interval = intervals[w].emplace_back();
      if (Status s = timer.enqueue(works[group.works[w]], &interval); !s.ok()) return s;
    }
  }
  count_cycles(counts.get(), nullptr);
  if (Status s = launch_status("the kernel that counts cycles"); !s.ok()) return s;
  std::uint64_t cycles_and_nanoseconds[2];
  TILE_RETURN_IF_CUDA_ERROR(cudaMemcpy(cycles_and_nanoseconds, counts.get(),
                                       sizeof cycles_and_nanoseconds, cudaMemcpyDeviceToHost));
  const double clock = 1e3 * static_cast<double>(cycles_and_nanoseconds[0]) /
                       static_cast<double>(cycles_and_nanoseconds[1]);

  for (std::size_t w = 0; w < group.works.size(); ++w) {
    std::vector<double> times;
    for (const Interval& interval : intervals[w]) {
      times.emplace_back();
      if (Status s = elapsed(interval, &times.back()); !s.ok()) return s;
    }
    (*timings)[group.works[w]] = summary(std::move(times), clock);
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

Status multiply_adds(DType type, Work* work, double* operations) {
  auto sink = std::make_shared<RandomMemory>();
  if (Status s = sink->allocate(1); !s.ok()) return s;
  const int multiprocessors = device().multiprocessors;
  if (type != DType::fp32) {
    *operations = 2 * tensor_multiply_add_count(type, multiprocessors);
    *work = [=](void* stream) {
      tensor_multiply_add(type, multiprocessors, sink->get(), stream);
      return launch_status("the kernel of mma.sync instructions");
    };
    return {};
  }
  *operations = 2 * multiply_add_count(multiprocessors);
  *work = [=](void* stream) {
    multiply_add(multiprocessors, sink->get(), stream);
    return launch_status("the kernel of multiply-adds");
  };
  return {};
}

}  // namespace tile
