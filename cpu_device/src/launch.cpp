// From <<<…>>> to clusters of blocks on OS threads: checks of the configuration, the workers,
// shared memory.
#include "cpu_device/launch.h"

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "block.hpp"
#include "check/checker.hpp"
#include "closed_memory.hpp"
#include "cluster.hpp"
#include "faults.hpp"
#include "kernel_name.hpp"
#include "state.hpp"

CPU_DEVICE_THREAD_LOCAL uint3 threadIdx;
CPU_DEVICE_THREAD_LOCAL uint3 blockIdx;
CPU_DEVICE_THREAD_LOCAL dim3 blockDim;
CPU_DEVICE_THREAD_LOCAL dim3 gridDim;

namespace cpu_device {

CPU_DEVICE_THREAD_LOCAL char* shared_arena;
CPU_DEVICE_THREAD_LOCAL uint32_t launch_number;

namespace {

// In which order clusters start. Random: a walk in steps prime to their number visits each once.
class ClusterOrder {
 public:
  explicit ClusterOrder(uint64_t clusters) : clusters_(clusters) {
    if (options().order != Order::random) return;
    step_ = clusters / 2 + options().seed % (clusters / 2 + 1) + 1;
    while (std::gcd(step_, clusters) != 1) ++step_;
    first_ = options().seed % clusters;
  }
  uint64_t operator()(uint64_t i) const {
    if (options().order == Order::reverse) return clusters_ - 1 - i;
    using Wide = unsigned __int128;  // a grid may have 2^63 blocks
    return static_cast<uint64_t>((Wide{i} * step_ + first_) % clusters_);
  }

 private:
  uint64_t clusters_, step_ = 1, first_ = 0;
};

void run_clusters(Launch& launch) {
  Cluster cluster(launch);
  const ThreadWatch watch;
  const uint64_t clusters = launch.blocks / launch.cluster_blocks;
  const ClusterOrder order(clusters);
  while (!launch.failed) {
    const uint64_t i = launch.next_cluster++;
    if (i >= clusters) break;
    Failure failure = cluster.run(order(i));
    if (failure.code != cudaSuccess && !launch.failed.exchange(true)) {
      kernel_failed(failure.code, std::move(failure.report));
    }
  }
}

// OS threads beside the launching one. They sleep between launches.
class Workers {
 public:
  ~Workers() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  /// Runs the launch on this thread and up to `helpers` others.
  void run(Launch& launch, size_t helpers) {
    while (threads_.size() < helpers) threads_.emplace_back([this] { work(); });
    if (helpers > 0) {
      {
        const std::lock_guard lock(mutex_);
        launch_ = &launch;
        wanted_ = running_ = helpers;
      }
      wake_.notify_all();
    }
    run_clusters(launch);
    std::unique_lock lock(mutex_);
    running_ -= wanted_;  // those that did not wake up in time are not needed any more
    wanted_ = 0;
    done_.wait(lock, [this] { return running_ == 0; });
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stop_ || wanted_ > 0; });
      if (stop_) return;
      --wanted_;
      Launch& launch = *launch_;
      lock.unlock();
      run_clusters(launch);
      lock.lock();
      if (--running_ == 0) done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  Launch* launch_ = nullptr;
  size_t wanted_ = 0, running_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

// Each block has 1,024 stacks of two mappings, and Linux gives a process 65,530.
constexpr int kMostBlocks = 24;

// Each worker runs the blocks of a cluster at a time.
int worker_count(uint32_t cluster_blocks) {
  if (kOneWorker) return 1;
  const int most = kMostBlocks / static_cast<int>(cluster_blocks);
  if (options().workers > 0) return std::min(options().workers, most);
  static const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(cores, 1, most);
}

}  // namespace

cudaError_t check_config(const Config& config, const void* function, std::string* why) {
  const cudaDeviceProp& card = properties();
  auto too_large = [&](const char* what, const dim3& value, const int* limit) {
    for (int axis = 0; axis < 3; ++axis) {
      const unsigned extent = axis == 0 ? value.x : axis == 1 ? value.y : value.z;
      if (extent >= 1 && extent <= static_cast<unsigned>(limit[axis])) continue;
      *why = std::string(what) + " " + to_string(value) + ": extent " + "xyz"[axis] +
             " must be 1 to " + std::to_string(limit[axis]);
      return true;
    }
    return false;
  };
  if (too_large("grid", config.grid, card.maxGridSize)) return cudaErrorInvalidConfiguration;
  if (too_large("block", config.block, card.maxThreadsDim)) return cudaErrorInvalidConfiguration;
  const uint64_t threads = uint64_t{config.block.x} * config.block.y * config.block.z;
  if (threads > kMaxThreads) {
    *why = "block " + to_string(config.block) + ": " + std::to_string(threads) +
           " threads, and 1024 is the limit";
    return cudaErrorInvalidConfiguration;
  }
  if (const cudaError_t error = check_cluster(config, function, why); error != cudaSuccess) {
    return error;
  }
  const uint64_t blocks = uint64_t{config.grid.x} * config.grid.y * config.grid.z;
  if (config.cooperative && blocks > kLargestCluster) {
    *why = "grid " + to_string(config.grid) + ": " + std::to_string(blocks) + " blocks, and " +
           std::to_string(kLargestCluster) + " is the limit of a cooperative launch";
    return cudaErrorCooperativeLaunchTooLarge;
  }
  const size_t dynamic_limit = dynamic_shared_limit(function);
  if (config.shared_bytes > dynamic_limit) {
    *why = std::to_string(config.shared_bytes) + " bytes of dynamic shared memory, and " +
           std::to_string(dynamic_limit) +
           " is the limit; cudaFuncSetAttribute(kernel, "
           "cudaFuncAttributeMaxDynamicSharedMemorySize, …) raises it to " +
           std::to_string(card.sharedMemPerBlockOptin);
    return cudaErrorInvalidValue;
  }
  if (!valid_stream(config.stream)) {
    *why = "the stream does not exist";
    return cudaErrorInvalidResourceHandle;
  }
  return cudaSuccess;
}

cudaError_t run_grid(const KernelName& name, const Config& config, const void* function,
                     void (*body)(const void* frame), const void* frame, size_t frame_bytes) {
  if (current_block) {
    current_block->fail(cudaErrorNotSupported,
                        "launched a kernel: the CPU device does not nest launches",
                        Block::Blamed::thread);
  }
  static std::mutex one_at_a_time;
  static Workers workers;
  static uint32_t launches = 0;
  const std::lock_guard lock(one_at_a_time);

  std::string why;
  if (const cudaError_t error = check_config(config, function, &why); error != cudaSuccess) {
    return refused(error, "kernel " + kernel_name(name, function) + " was not launched: " + why +
                              "\n  at " + name.file + ":" + std::to_string(name.line) + "\n");
  }

  auto launch = std::make_unique<Launch>();
  launch->name = name;
  launch->function = function;
  launch->body = body;
  launch->frame = frame;
  launch->frame_bytes = frame_bytes;
  launch->config = config;
  // The grid of a cooperative launch is one cluster: its blocks take turns, and wait for each
  // other.
  if (config.cooperative) launch->config.cluster = config.grid;
  launch->number = ++launches;
  launch->blocks = uint64_t{config.grid.x} * config.grid.y * config.grid.z;
  launch->threads = config.block.x * config.block.y * config.block.z;
  const dim3 cluster = launch->config.cluster;
  launch->cluster_blocks = cluster.x * cluster.y * cluster.z;
  launch->shared_limit = shared_limit(function);
  launch->shared_bytes = static_cast<uint32_t>(config.shared_bytes);
  launch->shared_bytes_without_gaps = config.shared_bytes;
  for (uint32_t t = 0; t < launch->threads; ++t) {
    launch->thread_index[t] = {t % config.block.x, t / config.block.x % config.block.y,
                               t / config.block.x / config.block.y};
  }

  if (options().print_launches) {
    std::printf("launch: %u %zu %s\n", launch->threads, config.shared_bytes,
                kernel_name(name, function).c_str());
  }

  const closed_memory::Open open;
  const FaultHandlers handlers;
  if constexpr (kChecking) check::launch_begins(*launch);
  const uint64_t useful =
      std::min<uint64_t>(static_cast<uint64_t>(worker_count(launch->cluster_blocks)),
                         launch->blocks / launch->cluster_blocks);
  workers.run(*launch, useful - 1);
  for (const LateStores& late : launch->late_stores) finish(late);
  if constexpr (kChecking) {
    if (options().closed_memory) {
      closed_memory::kernel_ended(kernel_name(name, function) + ", launched at " + name.file + ":" +
                                  std::to_string(name.line));
    }
    if (const std::string text = check::describe_same_stores(); !text.empty() && !launch->failed) {
      remark("kernel " + kernel_name(name, function) + ": " + text + "  launched at " + name.file +
             ":" + std::to_string(name.line) + "\n");
    }
    check::launch_ends();
  }
  count_activity(name.text, {1, launch->blocks, launch->blocks * launch->threads, launch->barriers,
                             launch->collectives, launch->loaded_bytes, launch->most_on_the_way});
  return cudaSuccess;  // a kernel that has failed was launched
}

uint32_t place_shared(SharedSlot& slot, size_t bytes, size_t alignment, const SharedName& name) {
  Launch& launch = current_block->launch();
  size_t end = 0;
  {
    const std::lock_guard lock(launch.placing);
    const uint64_t where = slot.launch_and_offset;  // another block may have been faster
    if ((where >> 32) == launch.number) return static_cast<uint32_t>(where);
    // At least 16 bytes, so that a vector load from the start of any array works.
    const size_t step = std::max<size_t>(alignment, 16);
    const auto round_up = [step](size_t value) { return (value + step - 1) / step * step; };
    // Where memory is checked a gap, a row of banks wide, lies between declarations. A GPU has
    // none, so it does not count.
    const size_t gap = kOneWorker && launch.shared_bytes > 0 ? 128 : 0;
    const size_t offset = round_up(launch.shared_bytes + gap);
    end = round_up(launch.shared_bytes_without_gaps) + bytes;
    const size_t static_bytes = end - launch.config.shared_bytes;
    if (end <= launch.shared_limit && static_bytes <= properties().sharedMemPerBlock) {
      launch.shared_bytes_without_gaps = end;
      const auto more = std::ranges::count(std::string_view(name.names), ',');
      launch.shared_bytes = static_cast<uint32_t>(
          offset + bytes + (kChecking ? static_cast<size_t>(more) * kApart : 0));
      launch.placed.push_back({name.names, offset, bytes});
      if constexpr (kAsan) current_block->cluster().allow_shared(offset, bytes);
      slot.launch_and_offset = uint64_t{launch.number} << 32 | offset;
      return static_cast<uint32_t>(offset);
    }
  }
  current_block->leaves_kernel();
  // The message outlives the block that fails.
  static thread_local std::string what;
  what = std::string("needs too much shared memory: with '") + name.names + "', " + name.file +
         ":" + std::to_string(name.line) + ", it is " + std::to_string(end) + " bytes, " +
         std::to_string(launch.config.shared_bytes) + " of them dynamic; the limits are " +
         std::to_string(properties().sharedMemPerBlock) + " static and " +
         std::to_string(launch.shared_limit) + " in all";
  current_block->fail(cudaErrorInvalidValue, what.c_str(), Block::Blamed::block);
}

}  // namespace cpu_device
