// Bad addresses, full stacks, endless loops: the kernel ends with CUDA's error and a report, the
// next kernel runs. CPU device only.
#include <doctest/doctest.h>

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "block_kernels.hpp"
#include "fault_kernels.hpp"
#include "report.hpp"

using namespace device_test;
using cpu_device::options;
using cpu_device::Order;

namespace {

struct Expected {
  Fault fault;
  cudaError_t error;
  const char* what;
};

constexpr const char* kHang =
    "does not end: an endless loop, or a wait for what no thread writes\n";

// The check build looks before the thread does.
constexpr const char* in_check_build(const char* there, const char* elsewhere) {
  return cpu_device::kChecking ? there : elsewhere;
}

const Expected kQuick[] = {
    {Fault::write_to_null, cudaErrorIllegalAddress,
     in_check_build("writes address 0x0, where there is no memory\n",
                    "touched a bad address, or overflowed its stack: 0x0\n")},
    {Fault::read_wild, cudaErrorIllegalAddress,
     in_check_build("reads address 0x10000, where there is no memory\n",
                    "touched a bad address, or overflowed its stack: 0x10000\n")},
    {Fault::recursion, cudaErrorIllegalAddress,
     "touched a bad address, or overflowed its stack: 0x"},
    {Fault::trap, cudaErrorLaunchFailure, "called __trap()\n"},
    {Fault::nested_launch, cudaErrorNotSupported,
     "launched a kernel: the CPU device does not nest launches\n"},
#ifdef __x86_64__  // Arm's division by zero gives zero
    {Fault::division, cudaErrorLaunchFailure, "divided an integer by zero\n"},
    {Fault::remainder, cudaErrorLaunchFailure, "divided an integer by zero\n"},
#endif
};

const Expected kHangs[] = {{Fault::spin, cudaErrorLaunchTimeout, kHang},
                           {Fault::spin_on_flag, cudaErrorLaunchTimeout, kHang},
                           {Fault::sleep_for_ever, cudaErrorLaunchTimeout, kHang}};

/// A launch of 3 blocks of 96 threads, of which thread 40 of block 1 makes the mistake.
void check(const Expected& expected) {
  CAPTURE(static_cast<int>(expected.fault));
  const unsigned blocks = 3, threads = 96, block = 1, thread = 40;
  const DeviceArray<int> done(blocks * threads);
  make_fault(expected.fault, blocks, threads, block, thread, done.data());
  const KernelFailure failure = take_failure();
  const std::string& report = failure.report;
  CHECK(failure.error == expected.error);
  INFO(report);
  CHECK(report.find("kernel faulty failed: thread 40 " + std::string(expected.what)) == 0);
  CHECK(report.find("cpu_device/test/fault_kernels.cu:") != std::string::npos);
  CHECK(report.find(", grid (3, 1, 1), block (96, 1, 1); this is block (1, 0, 0)\n") !=
        std::string::npos);
  CHECK(done.download()[block * threads + thread] == 0);
}

void check_next_kernel() {
  const DeviceArray<int> out(4 * 256);
  number_threads(out.data(), 4, 256);
  const std::vector<int> numbers = out.download();
  for (size_t i = 0; i < numbers.size(); ++i) REQUIRE(numbers[i] == static_cast<int>(i));
}

}  // namespace

TEST_CASE("faults become CUDA's errors, time after time") {
  const OptionsGuard guard;
  for (const Order order : {Order::forward, Order::reverse, Order::random}) {
    for (const int workers : {1, 2}) {
      options().order = order;
      options().workers = workers;
      for (int round = 0; round < 5; ++round) {
        for (const Expected& expected : kQuick) {
          check(expected);
          check_next_kernel();
        }
      }
    }
  }
}

#ifdef __x86_64__  // Arm takes it
// The check build finds it earlier.
TEST_CASE("a misaligned vector is called so" * doctest::skip(cpu_device::kChecking)) {
  const OptionsGuard guard;
  check({Fault::misaligned, cudaErrorMisalignedAddress,
         "touched an address that is not aligned as its type asks (a float4: to 16 bytes), or that "
         "no memory has\n  run it with --check to see which line and which array\n  launched at "});
}
#endif

TEST_CASE("a kernel is called by its name and its template's arguments") {
  const OptionsGuard guard;
  const auto begins = [](const std::string& report, const std::string& text) {
    CHECK_MESSAGE(report.starts_with(text), report);
  };
  trap_in_template();
  begins(take_failure().report, "kernel trapping<T = fp16, kBackward = true> failed: thread 0 ");
  trap_in_pointer();
  begins(take_failure().report, "kernel trapping<fp32, false> failed: thread 0 ");
}

TEST_CASE("a function that ends without its return" * doctest::skip(cpu_device::kAsan)) {
  const OptionsGuard guard;
  const DeviceArray<int> out(std::vector<int>{0});
  end_without_return(out.data());
  const KernelFailure failure = take_failure();
  CHECK(failure.error == cudaErrorLaunchFailure);
  CHECK(failure.report.starts_with(
      "kernel no_return_kernel failed: thread 0 came to the end of a function that has to return "
      "a value\n  at cpu_device/test/fault_kernels.cu:"));
}

TEST_CASE("the report says what the other threads did") {
  const OptionsGuard guard;
  options().order = Order::forward;
  const DeviceArray<int> done(64);
  make_fault(Fault::trap, 1, 64, 0, 5, done.data());
  const std::string report = take_failure().report;
  // Lane 31 came last to the shuffle and went on, then the others. The second warp had not begun.
  CHECK(report.find("  6 threads (0, 1, 2, …) returned\n") != std::string::npos);
}

TEST_CASE("the watchdog ends kernels that do not end, time after time") {
  const OptionsGuard guard;
  options().hang_seconds = 0.1;
  options().order = Order::forward;
  for (int round = 0; round < 3; ++round) {
    for (const Expected& expected : kHangs) {
      const auto start = std::chrono::steady_clock::now();
      check(expected);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      CHECK(took.count() > 0.05);
      CHECK(took.count() < 5);  // of the wall's time, on a busy machine
      check_next_kernel();
    }
  }
  options().workers = 2;
  check({Fault::spin, cudaErrorLaunchTimeout, kHang});
}

TEST_CASE("the watchdog leaves alone what goes on") {
  const OptionsGuard guard;
  options().hang_seconds = 0.05;
  // One launch that takes longer than that: the rounds are doubled until it does.
  const DeviceArray<int> out(1);
  std::chrono::duration<double> took{};
  for (int rounds = 2000; took.count() < 0.15; rounds *= 2) {
    const auto start = std::chrono::steady_clock::now();
    many_barriers(out.data(), rounds);
    REQUIRE(out.download()[0] == 1);
    took = std::chrono::steady_clock::now() - start;
  }
  // Nor does it mind a wait that ends.
  const DeviceArray<int> found(1);
  wait_for_flag(found.data());
  CHECK(found.download()[0] == 42);
}

TEST_CASE("blocks of different workers can wait for each other") {
  const OptionsGuard guard;
  options().workers = 2;
  options().hang_seconds = 0.5;
  for (const Order order : {Order::forward, Order::reverse}) {
    options().order = order;
    const DeviceArray<int> flag(1), out(1);
    wait_for_other_block(flag.data(), out.data());
    if (cpu_device::kOneWorker && order == Order::forward) {
      // The block that the other waits for never begins.
      CHECK(take_failure().error == cudaErrorLaunchTimeout);
    } else {
      CHECK(out.download()[0] == 1);
    }
  }
}

TEST_CASE("more shared memory than a block can have") {
  const OptionsGuard guard;
  const DeviceArray<int> out(1);
  too_much_shared(out.data(), 0);
  CHECK(out.download()[0] == 1);
  require(cudaMemset(out.data(), 0, sizeof(int)));

  too_much_shared(out.data(), 9000);
  const auto [error, report] = take_failure();
  CHECK(error == cudaErrorInvalidValue);
  CHECK(report.find("kernel too_much_shared_kernel failed: needs too much shared memory: with "
                    "'fixed', cpu_device/test/fault_kernels.cu:") == 0);
  // 9000 rounded up to 16, and the array.
  CHECK(report.find("it is 49968 bytes, 9000 of them dynamic; the limits are 49152 static and "
                    "49152 in all\n") != std::string::npos);
  CHECK(out.download()[0] == 0);
}

TEST_CASE("a refused launch is reported with its reason") {
  const OptionsGuard guard;
  const struct {
    dim3 grid, block;
    size_t bytes;
    const char* why;
  } refused[] = {
      {1, dim3(32, 33), 0, "block (32, 33, 1): 1056 threads, and 1024 is the limit"},
      {1, dim3(1, 1, 65), 0, "block (1, 1, 65): extent z must be 1 to 64"},
      {dim3(1, 65536), 1, 0, "grid (1, 65536, 1): extent y must be 1 to 65535"},
      {0, 1, 0, "grid (0, 1, 1): extent x must be 1 to 2147483647"},
      {1, 1, 50'000,
       "50000 bytes of dynamic shared memory, and 49152 is the limit; cudaFuncSetAttribute(kernel, "
       "cudaFuncAttributeMaxDynamicSharedMemorySize, …) raises it to 232448"}};
  for (const auto& [grid, block, bytes, why] : refused) {
    number_threads(nullptr, grid, block, bytes);
    CHECK(cudaGetLastError() != cudaSuccess);
    const std::string report = cpu_device::take_report();
    CHECK(report.find("kernel number_threads_kernel was not launched: " + std::string(why) +
                      "\n  at cpu_device/test/block_kernels.cu:") == 0);
  }
}

TEST_CASE("fresh memory is all ones, which is NaN") {
  const OptionsGuard guard;
  options().order = Order::forward;
  for (int round = 0; round < 2; ++round) {  // a kernel before leaves no trace
    const DeviceArray<int> out(5 * kFreshWords);
    read_fresh_shared(out.data(), 5);
    if (cpu_device::kChecking) {
      const auto [error, report] = take_failure();
      CHECK(error == cudaErrorLaunchFailure);
      CHECK(report.find("reads words[0], which nothing has written\n") != std::string::npos);
      continue;
    }
    CHECK(out.download() == std::vector<int>(5 * kFreshWords, -1));
  }
  void* memory = nullptr;
  require(cudaMalloc(&memory, 1000));
  std::vector<unsigned char> bytes(1000);
  require(cudaMemcpy(bytes.data(), memory, 1000, cudaMemcpyDeviceToHost));
  CHECK(std::ranges::count(bytes, 0xff) == 1000);
  require(cudaFree(memory));
}

namespace {
volatile sig_atomic_t own_signals = 0;
void count_signal(int) { own_signals = own_signals + 1; }
}  // namespace

TEST_CASE("the program's own signal handlers are back after a launch") {
  const OptionsGuard guard;
  struct sigaction mine {
  }, before{}, after{};
  mine.sa_handler = count_signal;
  sigaction(SIGFPE, &mine, &before);
  check(kQuick[0]);
  sigaction(SIGFPE, nullptr, &after);
  CHECK((after.sa_handler == count_signal));
  raise(SIGFPE);
  CHECK(own_signals == 1);
  sigaction(SIGFPE, &before, nullptr);
}
