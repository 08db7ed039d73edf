// Workers, host threads, the counts of what was simulated, and the environment's options. CPU
// device only.
#include <doctest/doctest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "block_kernels.hpp"
#include "fault_kernels.hpp"
#include "report.hpp"

using namespace device_test;
using cpu_device::options;

namespace {

std::vector<int> counting(int first, size_t count) {
  std::vector<int> numbers(count);
  for (size_t i = 0; i < count; ++i) numbers[i] = first + static_cast<int>(i);
  return numbers;
}

}  // namespace

TEST_CASE("any number of workers runs every block once") {
  const OptionsGuard guard;
  for (const int workers : {1, 2, 5, 100, 1}) {
    options().workers = workers;
    for (const unsigned blocks : {1u, 2u, 7u, 1000u}) {
      const unsigned threads = 64;
      const DeviceArray<Indices> indices(blocks * threads);
      const DeviceArray<int> visits(blocks * threads);
      who_am_i(indices.data(), visits.data(), blocks, threads);
      REQUIRE(visits.download() == std::vector<int>(blocks * threads, 1));
      const DeviceArray<int> data(counting(0, blocks * threads));
      reverse_blocks(data.data(), blocks, threads);
      reverse_blocks(data.data(), blocks, threads);
      REQUIRE(data.download() == counting(0, blocks * threads));
    }
  }
}

TEST_CASE("threads that wait for each other in a loop let each other run" *
          doctest::skip(cpu_device::kAsan)) {
  const OptionsGuard guard;
  for (const cpu_device::Order order : {cpu_device::Order::forward, cpu_device::Order::reverse}) {
    options().order = order;
    const DeviceArray<int> count(std::vector<int>{0}), out(40);
    meet_by_spinning(count.data(), out.data(), 40);
    CHECK(take_failure().report == "");
    CHECK(out.download() == std::vector<int>(40, 40));
  }
}

TEST_CASE("several host threads launch at once") {
  const OptionsGuard guard;
  options().workers = 2;
  std::array<int, 4> right{};
  std::vector<std::thread> hosts;
  for (size_t h = 0; h < right.size(); ++h) {
    hosts.emplace_back([h, &right] {
      const unsigned threads = 32 + 16 * static_cast<unsigned>(h);
      for (int launch = 0; launch < 100; ++launch) {
        const DeviceArray<int> data(counting(launch, 3 * threads));
        reverse_blocks(data.data(), 3, threads);
        reverse_blocks(data.data(), 3, threads);
        // A refused launch is not the error of another.
        number_threads(nullptr, 0, 1);
        if (cudaGetLastError() != cudaErrorInvalidConfiguration) return;
        if (data.download() == counting(launch, 3 * threads)) ++right[h];
      }
    });
  }
  for (std::thread& host : hosts) host.join();
  for (const int count : right) CHECK(count == 100);
}

TEST_CASE("many tiny launches") {
  const OptionsGuard guard;
  options().workers = 2;
  const DeviceArray<int> out(4);
  for (int launch = 0; launch < 10'000; ++launch) {
    number_threads(out.data(), 1 + static_cast<unsigned>(launch) % 3, 1);
  }
  CHECK(out.download() == std::vector<int>{0, 1, 2, 0});
}

TEST_CASE("one block's failure stops the grid, whoever runs it") {
  const OptionsGuard guard;
  for (const int workers : {1, 2, 5}) {
    options().workers = workers;
    options().order = cpu_device::Order::forward;
    const unsigned blocks = 20'000, threads = 32;
    const DeviceArray<int> done(blocks * threads);
    make_fault(Fault::trap, blocks, threads, 3, 3, done.data());
    CHECK(take_failure().error == cudaErrorLaunchFailure);
    const std::vector<int> ran = done.download();
    CHECK(ran[3 * threads + 3] == 0);
    if (workers == 1) CHECK(std::ranges::count(ran, 1) < 4 * static_cast<int>(threads));
    CHECK(std::ranges::count(ran, 1) < static_cast<int>(blocks * threads) - 1);
  }
}

TEST_CASE("what was simulated is counted") {
  const OptionsGuard guard;
  const DeviceArray<int> data(5 * 64);
  const DeviceArray<unsigned> bits(64);
  const DeviceArray<BarrierResults> results(kRounds * 64);
  for (const int workers : {1, 3}) {
    options().workers = workers;
    cpu_device::take_activity();
    reverse_blocks(data.data(), 5, 64);
    barrier_votes(bits.data(), results.data(), 64);
    make_fault(Fault::trap, 1, 64, 9, 9, data.data());  // there is no block 9: two shuffles' worth
    number_threads(data.data(), 0, 1);                  // refused
    cudaGetLastError();
    const cpu_device::Activity activity = cpu_device::take_activity();
    CHECK(activity.launches == 3);
    CHECK(activity.blocks == 7);
    CHECK(activity.threads == 7 * 64);
    CHECK(activity.barriers == 5 + 3 * kRounds);
    CHECK(activity.collectives == 1);
    CHECK(cpu_device::take_activity().launches == 0);
  }
}

// ---- The environment is read once a process, so these start this program again ----

namespace {

struct Outcome {
  int status;  // of the process's exit; -1 if a signal ended it
  std::string output;
};

/// Runs the test case `name`, which is skipped otherwise, with `variable` set.
Outcome run_again(const std::string& variable, const std::string& name) {
  char self[4096] = {};
  if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) return {-1, "no /proc/self/exe"};
  const char* emulator = std::getenv("EMULATOR");  // set by CMake where this is cross-compiled
  const std::string command = variable + " " + (emulator ? emulator : "") + " '" + self +
                              "' --no-skip --test-case='" + name + "' 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  std::string output;
  char buffer[1000];
  while (fgets(buffer, sizeof buffer, pipe)) output += buffer;
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, output};
}

}  // namespace

TEST_CASE("(child) says its options" * doctest::skip()) {
  const DeviceArray<int> out(1);
  number_threads(out.data(), 1, 1);
  CHECK(out.download()[0] == 0);
  std::printf("order %d seed %llu workers %d seconds %g reports %d closed %d\n",
              static_cast<int>(options().order), static_cast<unsigned long long>(options().seed),
              options().workers, options().hang_seconds, options().print_reports,
              options().closed_memory);
}

TEST_CASE("(child) prints a report" * doctest::skip()) {
  number_threads(nullptr, 1, 2000);
  CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
}

TEST_CASE("(child) calls a barrier on the host" * doctest::skip()) { barrier_on_host(); }

TEST_CASE("options come from the environment") {
  const struct {
    const char *variable, *says;
  } good[] = {
      {"CPU_DEVICE_ORDER=forward", "order 0 seed 0 "},
      {"CPU_DEVICE_ORDER=reverse", "order 1 seed 0 "},
      {"CPU_DEVICE_ORDER=random:7", "order 2 seed 7 "},
      {"CPU_DEVICE_ORDER=random:18446744073709551615", "order 2 seed 18446744073709551615 "},
      {"CPU_DEVICE_WORKERS=3", "workers 3 "},
      {"CPU_DEVICE_HANG_SECONDS=0.5", "seconds 0.5 "},
      {"CPU_DEVICE_HANG_SECONDS=1e300", "seconds 1e+300 "},
      {"CPU_DEVICE_REPORTS=on", "reports 1 closed 0\n"},
      {"CPU_DEVICE_REPORTS=off", "reports 0 "},
      {"CPU_DEVICE_CLOSED_MEMORY=on", "closed 1\n"}};
  for (const auto& [variable, says] : good) {
    const Outcome outcome = run_again(variable, "(child) says its options");
    CAPTURE(outcome.output);
    CHECK(outcome.status == 0);
    CHECK(outcome.output.find(says) != std::string::npos);
  }
}

TEST_CASE("a malformed variable ends the program with 2 and a message") {
  const std::string order = "is not forward, reverse or random:SEED\n";
  const std::string workers = "is not a number of threads, 1 or more\n";
  const std::string seconds = "is not a number of seconds above 0\n";
  const struct {
    const char *name, *value;
    std::string message;
  } bad[] = {{"CPU_DEVICE_ORDER", "sideways", order},
             {"CPU_DEVICE_ORDER", "random", order},
             {"CPU_DEVICE_ORDER", "random:", order},
             {"CPU_DEVICE_ORDER", "random:x", order},
             {"CPU_DEVICE_ORDER", "random:-1", order},
             {"CPU_DEVICE_ORDER", "random:7 ", order},
             {"CPU_DEVICE_ORDER", "Forward", order},
             {"CPU_DEVICE_ORDER", "", order},
             {"CPU_DEVICE_WORKERS", "0", workers},
             {"CPU_DEVICE_WORKERS", "-2", workers},
             {"CPU_DEVICE_WORKERS", "two", workers},
             {"CPU_DEVICE_WORKERS", "1.5", workers},
             {"CPU_DEVICE_HANG_SECONDS", "0", seconds},
             {"CPU_DEVICE_HANG_SECONDS", "-1", seconds},
             {"CPU_DEVICE_HANG_SECONDS", "nan", seconds},
             {"CPU_DEVICE_HANG_SECONDS", "1s", seconds},
             {"CPU_DEVICE_REPORTS", "yes", "is not on or off\n"},
             {"CPU_DEVICE_CLOSED_MEMORY", "1", "is not on or off\n"}};
  for (const auto& [name, value, message] : bad) {
    const std::string variable = std::string(name) + "='" + value + "'";
    const Outcome outcome = run_again(variable, "(child) says its options");
    CAPTURE(outcome.output);
    CHECK(outcome.status == 2);
    CHECK(outcome.output.find(std::string(name) + ": '" + value + "' " + message) !=
          std::string::npos);
  }
}

TEST_CASE("reports go to stderr, or nowhere") {
  const std::string report = "[CPU device] kernel number_threads_kernel was not launched: block ";
  const Outcome on = run_again("CPU_DEVICE_REPORTS=on", "(child) prints a report");
  CHECK(on.status == 0);
  CHECK(on.output.find(report) != std::string::npos);
  const Outcome off = run_again("CPU_DEVICE_REPORTS=off", "(child) prints a report");
  CHECK(off.status == 0);
  CHECK(off.output.find("[CPU device]") == std::string::npos);
}

TEST_CASE("a device function that needs a device says so on the host") {
  const Outcome outcome = run_again("", "(child) calls a barrier on the host");
  CHECK(outcome.status != 0);
  CHECK(outcome.output.find("__syncthreads() was called on the host; it works in kernels only\n") !=
        std::string::npos);
}
