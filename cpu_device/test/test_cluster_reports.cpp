// Clusters whose threads fail to meet: who waits where, in all blocks. CPU device only.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "cluster_kernels.hpp"
#include "marks.hpp"
#include "report.hpp"

using namespace device_test;
using cpu_device::options;
using cpu_device::Order;

namespace {

constexpr const char* kFile = "cpu_device/test/cluster_kernels.cu";

std::string at(int line) { return std::string(kFile) + ":" + std::to_string(line); }

struct Outcome {
  KernelFailure failure;
  MeetingLines lines;
  std::vector<int> out;
};

Outcome run(Meeting meeting, unsigned threads = 32) {
  const DeviceArray<int> out(4 * threads + 1);
  meet(meeting, threads, out.data());
  const KernelFailure failure = take_failure();
  return {failure, lines_of_meeting(), out.download()};
}

/// The report of a cluster of four blocks of 32 threads.
std::string report(const std::string& what, const Outcome& outcome, int block,
                   const std::string& waits) {
  return "kernel meeting_kernel failed: " + what + "\n  launched at " + at(outcome.lines.launch) +
         ", grid (4, 1, 1), block (32, 1, 1), cluster (4, 1, 1); this is block (" +
         std::to_string(block) + ", 0, 0)\n" + waits;
}

}  // namespace

TEST_CASE("blocks that wait for one another are reported, each with who waits where") {
  const OptionsGuard guard;
  options().same_stores = true;  // all of them store the line where they wait
  options().order = Order::forward;
  const Outcome outcome = run(Meeting::barrier_of_block);
  const std::string sync = " at cluster_sync(), " + at(outcome.lines.first) + "\n";
  CHECK(outcome.failure.error == cudaErrorLaunchFailure);
  CHECK(outcome.failure.report ==
        report("its threads wait for each other", outcome, 0,
               "  32 threads (0, 1, 2, …) wait" + sync +
                   "  of its cluster, block (1, 0, 0):\n"
                   "    1 thread (0) waits at __syncthreads(), " +
                   at(outcome.lines.second) + "\n    31 threads (1, 2, 3, …) wait" + sync +
                   "  of its cluster, blocks (2, 0, 0), (3, 0, 0):\n"
                   "    32 threads (0, 1, 2, …) wait" +
                   sync));
  CHECK(run(Meeting::block_returned).failure.error == cudaSuccess);
}

TEST_CASE("a thread arrives once and waits once in turn") {
  const OptionsGuard guard;
  options().same_stores = true;  // all of them store the line where they wait
  options().order = Order::forward;
  const Outcome second = run(Meeting::second_arrival);
  CHECK(second.failure.report.find(
            "thread 3 arrives at the barrier of its cluster a second time, without a "
            "cluster_wait()\n  at " +
            at(second.lines.first) + "\n") != std::string::npos);
  CHECK(second.failure.report.find("this is block (2, 0, 0)\n") != std::string::npos);
  const Outcome no = run(Meeting::no_arrival);
  CHECK(no.failure.report.find("thread 3 waits at the barrier of its cluster, where it has not "
                               "arrived\n  at " +
                               at(no.lines.first) + "\n") != std::string::npos);
  for (const Meeting meeting : {Meeting::two_arrivals, Meeting::two_waits}) {
    const Outcome two = run(meeting);
    const std::string what = meeting == Meeting::two_waits ? "wait" : "arrive";
    CHECK(two.failure.error == cudaErrorLaunchFailure);
    CHECK(two.failure.report.find("lanes of one warp " + what +
                                  " at the barrier of their cluster at different places; all must "
                                  "run the same instruction\n  at " +
                                  at(two.lines.first) + "\n  at " + at(two.lines.second) + "\n") !=
          std::string::npos);
  }
}

TEST_CASE("addresses in other blocks") {
  const OptionsGuard guard;
  options().same_stores = true;  // all of them store the line where they wait
  options().order = Order::forward;
  const Outcome rank = run(Meeting::rank);
  CHECK(rank.failure.error == cudaErrorIllegalAddress);
  CHECK(rank.failure.report.find("thread 0 asks for an address in the block of rank 4; its cluster "
                                 "has 4 blocks\n  at " +
                                 at(rank.lines.first) + "\n  the address is 0x") !=
        std::string::npos);
  const Outcome global = run(Meeting::global_address);
  CHECK(global.failure.error == cudaErrorIllegalAddress);
  CHECK(global.failure.report.find(
            "thread 0 asks where in another block lies what is not in shared "
            "memory\n  at " +
            at(global.lines.first) + "\n  the address is 0x") != std::string::npos);
}

TEST_CASE("a failure in one block ends the cluster, in every order") {
  const OptionsGuard guard;
  options().same_stores = true;  // all of them store the line where they wait
  options().hang_seconds = 0.2;
  for (const NamedOrder& order : kOrders) {
    options().order = order.order;
    options().seed = order.seed;
    for (const unsigned threads : {32u, 1024u}) {
      const Outcome trap = run(Meeting::trap, threads);
      CHECK(trap.failure.error == cudaErrorLaunchFailure);
      CHECK(trap.failure.report.find("thread 5 called __trap()\n") != std::string::npos);
      CHECK(trap.failure.report.find("this is block (2, 0, 0)\n") != std::string::npos);
      CHECK(run(Meeting::barrier_of_block, threads).failure.error == cudaErrorLaunchFailure);
      CHECK(run(Meeting::endless_poll, threads).failure.error == cudaErrorLaunchTimeout);
      CHECK(run(Meeting::arrived_and_returned, threads).failure.error == cudaSuccess);
    }
  }
}

TEST_CASE("the watchdog may strike at any moment, also between two blocks of a cluster") {
  const OptionsGuard guard;
  options().same_stores = true;  // all of them store the line where they wait
  options().hang_seconds = 0.004;
  for (int i = 0; i < 20; ++i) {
    CHECK(run(Meeting::endless_poll).failure.error == cudaErrorLaunchTimeout);
  }
}

// In the other builds its access is a finding.
TEST_CASE("of a block that has ended there is nothing left to read" *
          doctest::skip(cpu_device::kOneWorker)) {
  const OptionsGuard guard;
  options().same_stores = true;  // all of them store the line where they wait
  options().order = Order::forward;
  // Block 3 arrives last and goes on, so blocks 0 to 2 follow: block 0 reads before 1 has ended.
  CHECK(run(Meeting::read_after_the_end).out.back() == 0);
  options().order = Order::reverse;
  // Block 0 arrives last and reads at once.
  CHECK(run(Meeting::read_after_the_end).out.back() == 0);
  int poisoned = 0;
  options().order = Order::random;
  for (options().seed = 1; options().seed < 20; ++options().seed) {
    const int read = run(Meeting::read_after_the_end).out.back();
    CHECK((read == 0 || read == -1));
    poisoned += read == -1;
  }
  CHECK(poisoned > 0);
}

TEST_CASE("a card without clusters refuses them, and their instructions") {
  const OptionsGuard guard;
  options().same_stores = true;  // all of them store the line where they wait
  options().capability = 80;
  const DeviceArray<int> out(64);
  CHECK(number_blocks(out.data(), 4, 32, 2, 0, false) == cudaErrorInvalidClusterSize);
  CHECK(cudaGetLastError() == cudaErrorInvalidClusterSize);
  CHECK(cpu_device::take_report().find("kernel number_kernel was not launched: cluster (2, 1, 1): "
                                       "the card has no clusters; they need compute capability "
                                       "9.0\n  at " +
                                       std::string(kFile)) == 0);
  CHECK(number_blocks(out.data(), 4, 32, 1, 0, false) == cudaSuccess);
  const KernelFailure failure = take_failure();
  CHECK(failure.error == cudaErrorLaunchFailure);
  CHECK(failure.report.find("calls %cluster_ctarank, which needs compute capability 9.0; this card "
                            "has 8.0\n") != std::string::npos);
}

TEST_CASE("a refused cluster is reported with its reason") {
  const OptionsGuard guard;
  options().same_stores = true;  // all of them store the line where they wait
  const DeviceArray<int> out(64);
  const auto refused = [&](dim3 grid, dim3 cluster, bool large) {
    number_blocks(out.data(), grid, 32, cluster, 0, large);
    cudaGetLastError();
    const std::string text = cpu_device::take_report();
    const std::string head = "kernel number_kernel was not launched: cluster ";
    CHECK(text.substr(0, head.size()) == head);
    return text.substr(head.size(), text.find('\n') - head.size());
  };
  CHECK(refused(dim3(4, 3), dim3(2, 2), false) == "(2, 2, 1): grid (4, 3, 1) is no multiple of it");
  CHECK(refused(17, 17, true) == "(17, 1, 1): 17 blocks, and 16 is the limit");
  CHECK(refused(9, 9, false) ==
        "(9, 1, 1): 9 blocks, and 8 is the limit; cudaFuncSetAttribute(kernel, "
        "cudaFuncAttributeNonPortableClusterSizeAllowed, 1) raises it to 16");
}
