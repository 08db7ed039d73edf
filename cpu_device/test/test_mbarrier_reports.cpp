// What is said of mbarriers and of stores to other blocks that go wrong. CPU device only.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "marks.hpp"
#include "mbarrier_kernels.hpp"
#include "report.hpp"

using namespace device_test;
using cpu_device::options;
using cpu_device::Order;

namespace {

constexpr const char* kFile = "cpu_device/test/mbarrier_kernels.cu";

KernelFailure run(Misuse what) {
  const DeviceArray<int> out(128);
  misuse(what, out.data());
  return take_failure();
}

std::string launched(int block) {
  return "\n  launched at " + marked(kFile, "launch") +
         ", grid (2, 1, 1), block (64, 1, 1), cluster (2, 1, 1); this is block (" +
         std::to_string(block) + ", 0, 0)\n";
}

/// The report up to who waits where.
std::string without_waits(const std::string& report) {
  const std::string last = ", 0, 0)\n";
  return report.substr(0, report.find(last) + last.size());
}

struct Mistake {
  Misuse misuse;
  const char* mark;
  cudaError_t error;
  std::string what;
};

}  // namespace

TEST_CASE("a mistake with an mbarrier ends the kernel with a report") {
  const OptionsGuard guard;
  const Mistake mistakes[] = {
      {Misuse::not_initialised, "fresh", cudaErrorLaunchFailure,
       "calls mbarrier.try_wait.parity with an mbarrier that is not initialised"},
      {Misuse::zeros, "zeros", cudaErrorLaunchFailure,
       "calls mbarrier.arrive.expect_tx with an mbarrier that is not initialised"},
      {Misuse::no_arrivals, "no_arrivals", cudaErrorLaunchFailure,
       "calls mbarrier.init with a number of arrivals that is not 1 to 2^20 - 1"},
      {Misuse::too_many_arrivals, "too_many", cudaErrorLaunchFailure,
       "calls mbarrier.init with a number of arrivals that is not 1 to 2^20 - 1"},
      {Misuse::arrival_too_many, "arrival_too_many", cudaErrorLaunchFailure,
       "arrives at an mbarrier in a phase that waits for no more arrivals, only for bytes"},
      {Misuse::too_many_expected, "too_many_expected", cudaErrorLaunchFailure,
       "counts more than 2^20 - 1 bytes at an mbarrier in one phase"},
      {Misuse::too_many_sent, "too_many_sent", cudaErrorLaunchFailure,
       "counts more than 2^20 - 1 bytes at an mbarrier in one phase"},
      {Misuse::wrong_parity, "wrong_parity", cudaErrorLaunchFailure,
       "waits for a parity that is neither 0 nor 1"},
      {Misuse::mbarrier_in_global_memory, "global", cudaErrorIllegalAddress,
       "calls mbarrier.arrive.expect_tx with an mbarrier that is not in shared memory"},
      {Misuse::mbarrier_of_other_block, "other_block", cudaErrorIllegalAddress,
       "calls mbarrier.try_wait.parity with an mbarrier of another block"},
      {Misuse::misaligned_mbarrier, "misaligned", cudaErrorMisalignedAddress,
       "calls mbarrier.try_wait.parity with an mbarrier at an address that is no multiple of 8"},
      {Misuse::send_to_global_memory, "to_global", cudaErrorIllegalAddress,
       "asks where in another block lies what is not in shared memory"},
      {Misuse::send_past_shared_memory, "past", cudaErrorIllegalAddress,
       "calls st.async with what is not in shared memory"},
      {Misuse::count_in_global_memory, "count_in_global", cudaErrorIllegalAddress,
       "asks where in another block lies what is not in shared memory"},
      {Misuse::send_to_block_2, "block_2", cudaErrorIllegalAddress,
       "asks for an address in the block of rank 2; its cluster has 2 blocks"},
      {Misuse::misaligned_value, "value", cudaErrorMisalignedAddress,
       "calls st.async with an address that is no multiple of its size"},
  };
  for (const NamedOrder& order : kOrders) {
    options().order = order.order;
    options().seed = order.seed;
    for (const Mistake& mistake : mistakes) {
      // So many bytes are sent to one place only, which is a race.
      if (cpu_device::kChecking && mistake.misuse == Misuse::too_many_sent) continue;
      CAPTURE(std::string(order.name));
      CAPTURE(mistake.what);
      const KernelFailure failure = run(mistake.misuse);
      CHECK(std::string(cudaGetErrorName(failure.error)) == cudaGetErrorName(mistake.error));
      std::string report = without_waits(failure.report);
      if (mistake.error == cudaErrorIllegalAddress) {
        const size_t begin = report.find("\n  the address is 0x");
        REQUIRE_MESSAGE(begin != std::string::npos, report);
        report.erase(begin, report.find('\n', begin + 1) - begin);
      }
      CHECK(report == "kernel misuse_kernel failed: thread 3 " + mistake.what + "\n  at " +
                          marked(kFile, mistake.mark) + launched(1));
    }
    CHECK(run(Misuse::none).error == cudaSuccess);
  }
}

TEST_CASE("st.async is for launches in clusters") {
  const OptionsGuard guard;
  const DeviceArray<int> out(64);
  send_without_clusters(out.data());
  const KernelFailure failure = take_failure();
  CHECK(failure.error == cudaErrorIllegalInstruction);
  CHECK(failure.report.find("calls st.async in a launch without clusters\n  at " +
                            marked(kFile, "send")) != std::string::npos);
}

TEST_CASE("threads that wait at an mbarrier for ever are reported at once") {
  const OptionsGuard guard;
  options().hang_seconds = 1000;
  for (const NamedOrder& order : kOrders) {
    options().order = order.order;
    options().seed = order.seed;
    CAPTURE(std::string(order.name));
    const auto waits = [](const char* call, const char* mark, const std::string& for_what = "") {
      return "64 threads (0, 1, 2, …) wait at " + std::string(call) + ", " + marked(kFile, mark) +
             for_what + "\n";
    };
    const auto report = [](const std::string& first, const std::string& second) {
      return "kernel misuse_kernel failed: its threads wait for each other" + launched(0) + "  " +
             first + "  of its cluster, block (1, 0, 0):\n    " + second;
    };
    const std::string first = ", for phase 1 (parity 0) of barrier";
    const std::string sync = waits("cluster_sync()", "sync");
    KernelFailure failure = run(Misuse::missing_bytes);
    CHECK(failure.error == cudaErrorLaunchFailure);
    CHECK(failure.report == report(sync, waits("mbarrier_wait()", "missing_bytes",
                                               first + ", which misses 4 bytes")));
    failure = run(Misuse::missing_arrival);
    CHECK(failure.report == report(sync, waits("mbarrier_wait()", "missing_arrival",
                                               first + ", which misses 1 arrival")));
    failure = run(Misuse::next_phase);
    const std::string next = waits("mbarrier_wait()", "next_phase",
                                   ", for phase 2 (parity 1) of barrier, which misses 2 arrivals");
    CHECK(failure.report == report(next, next));
    failure = run(Misuse::initialised_again);
    const std::string again =
        waits("mbarrier_wait()", "initialised_again", first + ", which misses 2 arrivals");
    CHECK(failure.report == report(again, again));
    // The parity of a phase is that of the one in progress, and tells no more of it.
    failure = run(Misuse::two_phases_late);
    const std::string late = waits(
        "mbarrier_wait()", "two_phases_late",
        ", for phase 3 (parity 0) of barrier, which misses 2 arrivals; whoever means phase 1, "
        "of the same parity, comes too late");
    CHECK(failure.report == report(late, late));
  }
}

// In the check build it is a finding.
TEST_CASE("nothing can be sent to a block that has ended" * doctest::skip(cpu_device::kChecking)) {
  const OptionsGuard guard;
  options().order = Order::forward;
  const KernelFailure failure = run(Misuse::send_to_the_ended);
  CHECK(failure.error == cudaErrorLaunchFailure);
  CHECK(without_waits(failure.report) ==
        "kernel misuse_kernel failed: thread 3 calls st.async for a block that "
        "has ended\n  at " +
            marked(kFile, "ended") + launched(1));
}

TEST_CASE("a card without mbarriers that count bytes refuses each instruction") {
  const OptionsGuard guard;
  options().capability = 80;
  const DeviceArray<int> out(64);
  meet_at_mbarrier(1, 64, out.data());
  const KernelFailure failure = take_failure();
  CHECK(failure.error == cudaErrorLaunchFailure);
  CHECK(
      failure.report.find("calls mbarrier.init, which needs compute capability 9.0; this card has "
                          "8.0\n") != std::string::npos);
}

// As on a GPU, where it depends on time whether this happens.
TEST_CASE("a thread that is woken two phases late waits for the next phase of the parity") {
  const OptionsGuard guard;
  const DeviceArray<int> out(std::vector<int>{0});
  wake_two_phases_late(out.data());
  CHECK(take_failure().report == "");
  CHECK(out.download()[0] == 3);
}

TEST_CASE("a report does not say that threads wait whose phase is complete") {
  const OptionsGuard guard;
  for (const NamedOrder& order : kOrders) {
    options().order = order.order;
    options().seed = order.seed;
    const std::string report = run(Misuse::woken).report;
    CHECK(report.find("thread 3 calls mbarrier.init with a number") != std::string::npos);
    CHECK(report.find("mbarrier_wait()") == std::string::npos);
  }
}

TEST_CASE("a phase wakes those that wait for it, not those that waited for the one before") {
  const OptionsGuard guard;
  const DeviceArray<int> out(std::vector<int>(32));
  wake_once(out.data());
  CHECK(take_failure().report == "");
  CHECK(out.download() == std::vector<int>(32, 1));
}
