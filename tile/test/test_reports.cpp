// What the CPU device says of instructions that are called wrongly. CPU device only.
#include <doctest/doctest.h>

#include <string>

#include "cpu_device/test/report.hpp"
#include "report_kernels.hpp"

using namespace ptx_test;
using cpu_device::kChecking;
using cpu_device::options;
using cpu_device::Order;
using device_test::DeviceArray;
using device_test::KernelFailure;
using device_test::OptionsGuard;

namespace {

struct Expected {
  Call call;
  cudaError_t error;
  const char* text;                  // in the report, with the line for a #
  const char* checking_text = text;  // in the check build
  int capability = 80;
};

// "tile/test/report_kernels.cu:57"
std::string place() { return "tile/test/report_kernels.cu:" + std::to_string(line_of_call()); }

KernelFailure run(Call call, Order order, int capability) {
  options().order = order;
  options().seed = 3;
  options().capability = capability;
  const DeviceArray<float> global(1024);
  make_call(call, global.data());
  return device_test::take_failure();
}

void check(const Expected& expected) {
  const OptionsGuard guard;
  for (const Order order : {Order::forward, Order::reverse, Order::random}) {
    const KernelFailure failure = run(expected.call, order, expected.capability);
    std::string text = kChecking ? expected.checking_text : expected.text;
    for (size_t at; (at = text.find('#')) != text.npos;) text.replace(at, 1, place());
    CHECK(failure.error == expected.error);
    const bool found = failure.report.find(text) != std::string::npos;
    CHECK_MESSAGE(found, failure.report, "has no \"", text, "\"");
  }
}

constexpr cudaError_t kFailure = cudaErrorLaunchFailure;

}  // namespace

TEST_SUITE("reports") {
  TEST_CASE("right calls are silent") {
    const OptionsGuard guard;
    for (const Call call : {Call::right, Call::unused_addresses, Call::pack_fp16}) {
      for (const Order order : {Order::forward, Order::reverse, Order::random}) {
        const KernelFailure failure = run(call, order, 80);
        CHECK_MESSAGE(failure.error == cudaSuccess, failure.report);
        CHECK(failure.report.empty());
      }
    }
    for (const Call call : {Call::fp8, Call::pack_fp8, Call::stmatrix}) {
      const KernelFailure failure = run(call, Order::forward, 90);
      CHECK_MESSAGE(failure.error == cudaSuccess, failure.report);
    }
  }

  TEST_CASE("not all lanes of the warp, or not at one place") {
    check({Call::short_warp, kFailure,
           "calls mma.m16n8k16 of fp16 in a warp of 20 threads; it takes 32\n  at #\n"});
    check({Call::half_of_the_warp, kFailure,
           "16 threads (0, 1, 2, …) wait at ldmatrix.x4, mask "
           "0xffffffff, #\n  16 threads (16, 17, 18, …) returned"});
    check({Call::different_places, kFailure,
           "lanes of one warp call mma.m16n8k8 of tf32 at different places; all 32 must run the "
           "same one\n  at "});
    check({Call::different_places, kFailure, "\n  at #\n"});
    check({Call::instruction_and_syncwarp, kFailure,
           "lanes of one warp do not agree on a call or its mask"});
  }

  TEST_CASE("addresses of rows") {
    check(
        {Call::misaligned_row, cudaErrorMisalignedAddress,
         "thread 5 calls ldmatrix.x4 with the address of a row that is no multiple of 16\n  at #\n",
         "thread 5 reads rows[5] at an address that is no multiple of 16, as its type asks\n  at "
         "#\n"});
    check(
        {Call::row_in_global_memory, cudaErrorIllegalAddress,
         " calls ldmatrix.x4 with the address of a row that is not in shared memory\n  at #\n  the "
         "address is 0x"});
    check({Call::row_past_shared_memory, cudaErrorIllegalAddress,
           "thread 31 calls ldmatrix.x4 with the address of a row past the end of shared memory\n  "
           "at #\n",
           "thread 31 reads others[8], past the end of others (8 elements)\n  at #\n"});
  }

  TEST_CASE("what the card lacks") {
    check({Call::fp8, kFailure,
           " calls mma.m16n8k32 of e4m3, which needs compute capability 8.9; this card has 8.0\n  "
           "at #\n"});
    check({Call::stmatrix, kFailure,
           " calls stmatrix.x1, which needs compute capability 9.0; this card has 8.0\n  at #\n"});
    constexpr const char* kOld =
        "stmatrix.x1, which needs compute capability 9.0; this card has 8.9";
    check({Call::stmatrix, kFailure, kOld, kOld, 89});
    check({Call::pack_fp8, kFailure, "calls cvt to fp8, which needs compute capability 8.9"});
  }

  TEST_CASE("the check build looks at each row, as an access of the lane that passes it") {
    if (!kChecking) return;
    check({Call::row_past_array, cudaErrorIllegalAddress, "",
           "thread 31 reads rows[32], past the end of rows (32 elements)\n  at #\n"});
    check({Call::unwritten_row, kFailure, "", "], which nothing has written\n  at #, called at "});
    check({Call::load_without_barrier, kFailure, "", "read at #, called at "});
    check({Call::load_without_barrier, kFailure, "", ": a race\n"});
    check({Call::store_without_barrier, kFailure, "", ": a race\n  written at #\n", 90});
  }
}
