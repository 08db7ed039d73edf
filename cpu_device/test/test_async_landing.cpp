// cp.async on the CPU device: a copy lands at the wait and not before. What is wrong with a copy is
// said where it is issued.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "async_kernels.hpp"
#include "cpu_device/check.h"
#include "report.hpp"

using namespace device_test;

namespace {

constexpr int kThreads = 40;

/// The first thread's reads, or none if the check build has found something. -1: nothing landed.
std::vector<float> reads(const std::string& steps, std::size_t count) {
  Script script;
  steps.copy(script.steps, kScriptLength);
  std::vector<float> values(std::size_t{kScriptLength} * kThreads);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i / kThreads);
  const DeviceArray<float> in(values), out(values.size());
  run_script(script, in.data(), out.data(), kThreads);
  const KernelFailure failure = take_failure();
  if (failure.error != cudaSuccess) {
    REQUIRE(cpu_device::kChecking);
    CHECK(failure.report.find("cp.async") != std::string::npos);
    return {};
  }
  const std::vector<float> all = out.download();
  std::vector<float> firsts;
  for (std::size_t read = 0; read < count; ++read) firsts.push_back(all[read * kThreads]);
  return firsts;
}

void check_early_reads(const std::string& steps, const std::vector<float>& expected) {
  CAPTURE(steps);
  CHECK(reads(steps, expected.size()) == (cpu_device::kChecking ? std::vector<float>{} : expected));
}

}  // namespace

TEST_CASE("who reads before the wait sees what was there") {
  const OptionsGuard guard;
  check_early_reads("aA", {-1});
  check_early_reads("a,A0A", {-1, 0});
  check_early_reads("a,1A", {-1});
  check_early_reads("a,b,c,1ABC", {0, 1, -1});
  check_early_reads("a,b,c,2ABC", {0, -1, -1});
  check_early_reads("a,b,c,3ABC0ABC", {-1, -1, -1, 0, 1, 2});
  check_early_reads("a,0A a,A0A", {0, 0, 1});
}

TEST_CASE("a copy that is not committed does not land by a wait for groups") {
  const OptionsGuard guard;
  check_early_reads("a0A", {-1});
  check_early_reads("a,b0AB", {0, -1});
  check_early_reads("a,b0AB,0B", {0, -1, 1});
}

TEST_CASE("of two copies under way to one place the later one lands later") {
  const OptionsGuard guard;
  check_early_reads("a,a,1A0A", {0, 1});
  check_early_reads("aa,0A", {1});
}

TEST_CASE("the source is read at the wait") {
  const OptionsGuard guard;
  const DeviceArray<float> memory(std::vector<float>{1, 2});
  read_late(memory.data());
  require_kernels_ran();
  CHECK(memory.download() == std::vector<float>{5, 5});
}

TEST_CASE("copies that a block leaves are forgotten, also if it fails") {
  const OptionsGuard guard;
  const DeviceArray<float> in(std::vector<float>(256, 7));
  for (const bool fail : {false, true}) {
    CAPTURE(fail);
    leave_copies(in.data(), 20, fail);
    CHECK((take_failure().error == cudaSuccess) == !fail);
    CHECK(reads("a,0A", 1) == std::vector<float>{0});
    CHECK(reads("*A", 1) == std::vector<float>{-1});
    check_early_reads("a,1A", {-1});  // no group is left either
  }
}

TEST_CASE("of a thread that never waits not all copies are kept") {
  const OptionsGuard guard;
  constexpr int kCount = 200'000;
  std::vector<float> values(kCount);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const DeviceArray<float> in(values), out(2);
  never_wait(in.data(), out.data(), kCount);
  if (cpu_device::kChecking) {
    CHECK(take_failure().error == cudaErrorLaunchFailure);
    return;
  }
  CHECK(out.download() == std::vector<float>{2 * 65536 - 1, kCount - 1});
}

TEST_CASE("a wrong copy ends the kernel where it is issued") {
  const OptionsGuard guard;
  const DeviceArray<float> memory(64);
  struct Case {
    BadCopy mistake;
    cudaError_t error;
    const char* what;
  };
  const Case cases[] = {
      {BadCopy::none, cudaSuccess, ""},
      {BadCopy::misaligned_destination, cudaErrorMisalignedAddress,
       "issues a cp.async to an address that is no multiple of its size\n"},
      {BadCopy::misaligned_source, cudaErrorMisalignedAddress,
       "issues a cp.async from an address that is no multiple of its size\n"},
      {BadCopy::global_destination, cudaErrorIllegalInstruction,
       "issues a cp.async to what is not in shared memory\n"},
      {BadCopy::shared_source, cudaErrorInvalidAddressSpace,
       "issues a cp.async from what is not in global memory\n"},
      {BadCopy::local_source, cudaErrorInvalidAddressSpace,
       "issues a cp.async from what is not in global memory\n"},
      {BadCopy::negative_size, cudaErrorLaunchFailure,
       "issues a cp.async of less than 0 bytes, or of more than its destination has\n"},
      {BadCopy::large_size, cudaErrorLaunchFailure,
       "issues a cp.async of less than 0 bytes, or of more than its destination has\n"},
  };
  for (const Case& c : cases) {
    CAPTURE(std::string(c.what));
    bad_copy(c.mistake, memory.data());
    const KernelFailure failure = take_failure();
    CHECK(std::string(cudaGetErrorName(failure.error)) == cudaGetErrorName(c.error));
    if (cpu_device::kChecking) continue;  // test_check.cpp has those reports
    const std::string start = std::string("kernel bad_copy_kernel failed: thread 5 ") + c.what;
    CHECK(failure.report.substr(0, start.size()) == (*c.what ? start : ""));
  }
}
