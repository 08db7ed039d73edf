// bugs NAME: runs one of the broken kernels and says what came of it. Exit status: 0 if nothing was
// noticed, 1 if something was, 2 if the arguments are wrong.
#include "bugs.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tile/host/cuda_check.hpp"
#include "tile/host/device.hpp"
#include "tile/host/text.hpp"

namespace {

constexpr int kThreads = bugs::kThreads;
using Values = std::vector<float>;

/// A bug, and what the kernel would compute without it.
struct Bug {
  std::string_view name;
  bugs::Launch* launch;
  int n;
  int results;  // in the first elements of `out`
  bool zeroed;  // whether `out` is zero before the launch
  float (*expected)(const Values& in, int i);
};

float identity(const Values& in, int i) { return in[static_cast<std::size_t>(i)]; }
float twice(const Values& in, int i) { return 2 * identity(in, i); }

float sum(const Values& in, int first, int count) {
  float sum = 0;
  for (int j = 0; j < count; ++j) sum += identity(in, (first + j) % static_cast<int>(in.size()));
  return sum;
}
float sum_of_all(const Values& in, int) { return sum(in, 0, static_cast<int>(in.size())); }

constexpr Bug kBugs[] = {
    {"missing_barrier", bugs::missing_barrier, 256, 256, false,
     [](const Values& in, int i) {
       return identity(in, i) + identity(in, i - i % kThreads + i % (kThreads / 2));
     }},
    {"missing_second_barrier", bugs::missing_second_barrier, 512, 512, false, sum_of_all},
    {"missing_syncwarp", bugs::missing_syncwarp, 256, 256, false,
     [](const Values& in, int i) { return identity(in, i) - identity(in, i - i % 32); }},
    {"past_the_end", bugs::past_the_end, 1000, 1000, false, twice},
    {"shared_overrun", bugs::shared_overrun, 256, 256, false,
     [](const Values& in, int i) { return identity(in, i) - (i > 0 ? identity(in, i - 1) : 0); }},
    {"misaligned", bugs::misaligned, 1025, 1024, false,
     [](const Values& in, int i) { return identity(in, i + 1); }},
    {"host_memory", bugs::host_memory, 256, 256, false, twice},
    {"unwritten", bugs::unwritten, 256, 256, false, identity},
    {"divergent_barrier", bugs::divergent_barrier, 200, 200, false,
     [](const Values& in, int i) { return identity(in, i) - identity(in, i - i % kThreads); }},
    {"missing_atomic", bugs::missing_atomic, 64 * kThreads, 1, true, sum_of_all},
    {"endless_wait", bugs::endless_wait, 128, 128, false, identity},
    {"local_overrun", bugs::local_overrun, 256, 256, false,
     [](const Values& in, int i) { return sum(in, i, 5); }},
};

void require(cudaError_t error, const char* call) {
  if (const tile::Status status = tile::cuda_status(error, call); !status.ok()) {
    throw std::runtime_error(status.message);
  }
}

// Memory to the byte, unlike a DeviceBuffer: so that compute-sanitizer notices who leaves it.
struct DeviceFree {
  void operator()(float* memory) const { static_cast<void>(cudaFree(memory)); }
};
using DeviceMemory = std::unique_ptr<float, DeviceFree>;

DeviceMemory allocate(const char* name, int n, bool written) {
  void* memory = nullptr;
  require(cudaMalloc(&memory, static_cast<std::size_t>(n) * sizeof(float)), "cudaMalloc");
  tile::name_array({.name = name,
                    .data = memory,
                    .element_bytes = sizeof(float),
                    .rows = 1,
                    .cols = n,
                    .ld = n,
                    .written = written});
  return DeviceMemory(static_cast<float*>(memory));
}

// What the kernel got wrong, as text; empty if nothing.
std::string run(const Bug& bug) {
  const auto bytes = [](int n) { return static_cast<std::size_t>(n) * sizeof(float); };
  Values in(static_cast<std::size_t>(bug.n));
  for (int i = 0; i < bug.n; ++i) in[static_cast<std::size_t>(i)] = static_cast<float>(i % 10 + 1);
  const DeviceMemory device_in = allocate("in", bug.n, true);
  const DeviceMemory device_out = allocate("out", bug.n, bug.zeroed);
  require(cudaMemcpy(device_in.get(), in.data(), bytes(bug.n), cudaMemcpyHostToDevice),
          "cudaMemcpy to the device");
  if (bug.zeroed) require(cudaMemset(device_out.get(), 0, bytes(bug.n)), "cudaMemset");

  bug.launch(device_in.get(), device_out.get(), bug.n);
  const tile::Status launched = tile::launch_status(bug.name);
  if (!launched.ok()) return launched.message;
  const tile::Status done = tile::synchronize_status(nullptr);
  if (!done.ok()) return done.message;

  Values out(static_cast<std::size_t>(bug.results));
  require(cudaMemcpy(out.data(), device_out.get(), bytes(bug.results), cudaMemcpyDeviceToHost),
          "cudaMemcpy from the device");
  int wrong = 0, first = 0;
  for (int i = bug.results; i-- > 0;) {
    if (identity(out, i) == bug.expected(in, i)) continue;
    ++wrong;
    first = i;
  }
  if (wrong == 0) return {};
  return "no error, but " + std::to_string(wrong) + " of " + tile::counted(bug.results, "result") +
         (wrong == 1 ? " is" : " are") + " wrong, first out[" + std::to_string(first) + "]: got " +
         tile::number(identity(out, first)) + ", expected " + tile::number(bug.expected(in, first));
}

}  // namespace

int main(int count, char** arguments) {
  const std::string_view name = count == 2 ? arguments[1] : "";
  const auto bug = std::ranges::find(kBugs, name, &Bug::name);
  if (bug == std::end(kBugs)) {
    std::fprintf(stderr, "bugs takes one of these names:\n");
    for (const Bug& known : kBugs) std::fprintf(stderr, "  %s\n", std::string(known.name).c_str());
    return 2;
  }
  try {
    tile::keep_device_reports();
    std::string noticed = run(*bug);
    const int status = noticed.empty() ? 0 : 1;
    if (noticed.empty()) noticed = "no error, and all results are right\n";
    if (noticed.back() != '\n') noticed += '\n';  // a report ends with one
    std::fputs(noticed.c_str(), stdout);
    return status;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
