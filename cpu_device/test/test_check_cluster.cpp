// The check build on kernels whose blocks work in clusters, as in test_check.cpp.
#include <doctest/doctest.h>

#include <cstdio>
#include <regex>
#include <string>
#include <vector>

#include "check_cluster_kernels.hpp"
#include "marks.hpp"
#include "report.hpp"
#include "tile/host/device.hpp"

using namespace device_test;
using cpu_device::options;

namespace {

constexpr const char* kFile = "cpu_device/test/check_cluster_kernels.cu";

KernelFailure run(const ClusterPair& pair, bool mistake, const NamedOrder& order) {
  options().order = order.order;
  options().seed = order.seed;
  const DeviceArray<int> out(kClusterBlocks * kClusterBlockThreads), counts(2);
  const auto name = [](const char* text, const DeviceArray<int>& array, std::int64_t count) {
    tile::name_array({text, array.data(), sizeof(int), 1, count, count, true});
  };
  name("out", out, kClusterBlocks * kClusterBlockThreads);
  name("counts", counts, 2);
  pair.launch(mistake, {out.data(), counts.data()});
  return take_failure();
}

/// The block whose shared memory the kernels touch from block `b`, and the one that touches b's.
int next(int b) { return b / 4 * 4 + (b + 1) % 4; }
int previous(int b) { return b / 4 * 4 + (b + 3) % 4; }

using Numbers = std::vector<int>;

/// What a report may say up to the line about the launch. In the text a # is any number, @ any
/// address, and [mark] stands for the line so marked. `holds` is given these numbers and, last,
/// that of the block that the report is about.
struct Form {
  std::string text;
  bool (*holds)(const Numbers& n);
};

bool has_form(const std::string& report, const char* kernel, const Form& form) {
  std::string pattern;
  for (std::size_t i = 0; i < form.text.size(); ++i) {
    const std::string rest = form.text.substr(i);
    if (rest[0] == '#') {
      pattern += "(\\d+)";
    } else if (rest[0] == '@') {
      pattern += "0x[0-9a-f]+";
    } else if (std::smatch mark;
               std::regex_search(rest, mark, std::regex("^ at \\[([a-z_.]+)\\]"))) {
      pattern += " at " + marked(kFile, mark[1]);
      i += static_cast<std::size_t>(mark.length()) - 1;
    } else {
      if (std::string("()[].+*?{}|^$\\").find(rest[0]) != std::string::npos) pattern += '\\';
      pattern += rest[0];
    }
  }
  pattern = std::string("kernel ") + kernel + "<true> failed: " + pattern + "\n  launched at " +
            place(kFile, std::string("PAIR(") + kernel + ")") +
            ", grid \\(8, 1, 1\\), block \\(64, 1, 1\\), cluster \\(4, 1, 1\\); this is block "
            "\\((\\d+), 0, 0\\)\n[^]*";
  std::smatch match;
  if (!std::regex_match(report, match, std::regex(pattern))) return false;
  Numbers numbers;
  for (std::size_t i = 1; i < match.size(); ++i) numbers.push_back(std::stoi(match[i]));
  return form.holds(numbers);
}

struct Case {
  const char* kernel;
  cudaError_t error;
  std::vector<Form> forms;
};

/// The next block writes to an array of this one, which reads it: noticed by either of them, at the
/// lines [kernel.write] and [kernel.read].
std::vector<Form> written_by_other(const std::string& array, const std::string& kernel) {
  const std::string write = "  written at [" + kernel + ".write]\n";
  const std::string read = "  read at [" + kernel + ".read]\n";
  const std::string between = "  missing: a cluster_sync() between the write and the read";
  return {{"thread # reads " + array + "[#], which block (#, 0, 0)'s thread # wrote: a race\n" +
               write + read + between,
           [](const Numbers& n) { return n[0] == n[1] && n[3] == n[0] && n[2] == previous(n[4]); }},
          {"thread # writes " + array +
               "[#] of block (#, 0, 0), which block (#, 0, 0)'s thread # read before anything was "
               "written there: a race\n" +
               read + write + between + ", which came too early",
           [](const Numbers& n) {
             return n[0] == n[1] && n[4] == n[0] && n[2] == n[3] && n[2] == next(n[5]);
           }}};
}

/// The same by st.async, for which the reader must wait.
std::vector<Form> sent_by_other(const std::string& kernel) {
  const std::string write = "  written at [" + kernel + ".write]\n";
  const std::string read = "  read at [" + kernel + ".read]\n";
  const std::string between = "  missing: an mbarrier_wait() between the write and the read";
  return {
      {"thread # reads slots[#], which block (#, 0, 0)'s thread # wrote by st.async: a race\n" +
           write + read + between,
       [](const Numbers& n) { return n[0] == n[1] && n[3] == n[0] && n[2] == previous(n[4]); }},
      {"thread # writes slots[#] of block (#, 0, 0) by st.async, which block (#, 0, 0)'s thread "
       "# read before anything was written there: a race\n" +
           read + write + between + ", which came too early",
       [](const Numbers& n) {
         return n[0] == n[1] && n[4] == n[0] && n[2] == n[3] && n[2] == next(n[5]);
       }}};
}

const std::string kOrLater =
    ", or between the read and the write if that is a turn of a loop later";

const std::string kNoOrder =
    "  blocks of one launch have no order; missing: atomics for both, or a second launch, or an "
    "atomic that tells of the first, with a __threadfence() before it and after it";

const std::string kOnlyMbarriers =
    "; cluster_arrive_relaxed() tells only of the initialisation of mbarriers";

const std::string kOnlyOwnShared =
    "; cluster_arrive_shared() tells only of the shared memory of its own block";

const std::string kOnlyShared = "; mbarrier_wait_cluster() tells only of shared memory";

const Case kCases[] = {
    {"write_at_once",
     cudaErrorIllegalAddress,
     {{"thread # writes slots[#] of block (#, 0, 0), which may not have begun\n  at "
       "[write_at_once]\n  missing: a cluster_sync() before the write",
       [](const Numbers& n) { return n[0] == n[1] && n[2] == next(n[3]); }}}},
    {"read_at_last",
     cudaErrorIllegalAddress,
     {{"thread # reads numbers[#] of block (#, 0, 0), which may have ended\n  at [read_at_last]\n  "
       "missing: a cluster_sync() between the read and the end of block (#, 0, 0)",
       [](const Numbers& n) { return n[0] == n[1] && n[2] == n[3] && n[2] == n[4] + 3; }}}},
    {"write_before_wait",
     cudaErrorIllegalAddress,
     {{"thread # writes slots[#] of block (#, 0, 0), which may not have begun\n  at "
       "[write_before_wait]\n  missing: a cluster_sync() before the write",
       [](const Numbers& n) { return n[0] == n[1] && n[2] == next(n[3]); }}}},
    {"read_and_return",
     cudaErrorIllegalAddress,
     {{"thread 5 reads numbers[5] of block (#, 0, 0), which may have ended\n  at "
       "[read_and_return]\n  missing: a cluster_sync() between the read and the end of block (#, "
       "0, 0)",
       [](const Numbers& n) { return n[0] == n[1] && n[0] == next(n[2]); }}}},
    {"send", cudaErrorLaunchFailure, written_by_other("slots", "send")},
    {"barrier_of_the_block", cudaErrorLaunchFailure,
     written_by_other("slots", "barrier_of_the_block")},
    {"write_after_arrival", cudaErrorLaunchFailure,
     written_by_other("slots", "write_after_arrival")},
    {"hand_on",
     cudaErrorLaunchFailure,
     {{"thread # reads slot[#], which block (#, 0, 0)'s thread # wrote: a race\n  written at "
       "[hand_on.write]\n  read at [hand_on.read]\n  missing: a cluster_sync() between the write "
       "and the read" +
           kOrLater,
       [](const Numbers& n) { return n[0] == n[1] && n[3] == n[0] && n[2] == previous(n[4]); }},
      {"thread # writes slot[#] of block (#, 0, 0), which block (#, 0, 0)'s thread # read: a "
       "race\n  read at [hand_on.read]\n  written at [hand_on.write]\n  missing: a cluster_sync() "
       "between the read and the write, which may be a turn of a loop later",
       [](const Numbers& n) {
         return n[0] == n[1] && n[4] == n[0] && n[2] == n[3] && n[2] == next(n[5]);
       }}}},
    {"through_global_memory",
     cudaErrorLaunchFailure,
     {{"thread # reads out[#], which block (#, 0, 0)'s thread # wrote: a race\n  written at "
       "[through_global_memory.write]\n  read at [through_global_memory.read]\n  missing: a "
       "cluster_sync() between the write and the read" +
           kOrLater,
       [](const Numbers& n) {
         return n[1] == n[2] * 64 + n[0] && n[3] == n[0] && n[2] == next(n[4]);
       }},
      {"thread # writes out[#], which block (#, 0, 0)'s thread # read: a race\n  read at "
       "[through_global_memory.read]\n  written at [through_global_memory.write]\n  missing: a "
       "cluster_sync() between the read and the write, which may be a turn of a loop later",
       [](const Numbers& n) {
         return n[1] == n[4] * 64 + n[0] && n[3] == n[0] && n[2] == previous(n[4]);
       }}}},
    {"count",
     cudaErrorLaunchFailure,
     {{"thread 0 reads total, which block (#, 0, 0)'s thread 0 wrote: a race\n  written at "
       "[count]\n  read at [count]\n  missing: a cluster_sync() between the write and the read" +
           kOrLater,
       [](const Numbers& n) { return n[0] / 4 == n[1] / 4 && n[1] % 4 == 0 && n[0] != n[1]; }},
      {"thread 0 reads total of block (#, 0, 0), which block (#, 0, 0)'s thread 0 wrote: a race\n  "
       "written at [count]\n  read at [count]\n  missing: a cluster_sync() between the write and "
       "the read" +
           kOrLater,
       [](const Numbers& n) {
         return n[0] == n[2] / 4 * 4 && n[1] / 4 == n[2] / 4 && n[1] != n[2];
       }}}},
    {"write_and_return",
     cudaErrorLaunchFailure,
     {{"thread # reads slots[#], which block (#, 0, 0)'s thread # wrote: a race\n  written at "
       "[write_and_return.write]\n  read at [write_and_return.read]\n  missing: a cluster_sync() "
       "between the write and the read",
       [](const Numbers& n) {
         return n[1] == n[0] + 32 && n[3] == n[1] && n[2] == previous(n[4]);
       }}}},
    {"write_and_return_in_a_warp",
     cudaErrorLaunchFailure,
     {{"thread 0 reads slot, which block (#, 0, 0)'s thread 31 wrote: a race\n  written at "
       "[write_and_return_in_a_warp.write]\n  read at [write_and_return_in_a_warp.read]\n  "
       "missing: a cluster_sync() between the write and the read",
       [](const Numbers& n) { return n[0] == previous(n[1]); }}}},
    {"late_arrival", cudaErrorLaunchFailure, written_by_other("slots", "late_arrival")},
    {"late_wait", cudaErrorLaunchFailure, written_by_other("slots", "late_wait")},
    {"last_cluster",
     cudaErrorLaunchFailure,
     {{"thread # reads out[#], which block (#, 0, 0)'s thread # wrote: a race\n  written at "
       "[last_cluster.write]\n  read at [last_cluster.read]\n" +
           kNoOrder,
       [](const Numbers& n) {
         return n[1] == n[2] * 64 + n[0] && n[3] == n[0] && n[2] / 4 != n[4] / 4;
       }},
      {"thread # reads out[#], which block (#, 0, 0)'s thread # wrote: a race\n  written at "
       "[last_cluster.write]\n  read at [last_cluster.read]\n  missing: a cluster_sync() between "
       "the write and the read" +
           kOrLater,
       [](const Numbers& n) {
         return n[1] == n[2] * 64 + n[0] && n[3] == n[0] && n[2] / 4 == n[4] / 4;
       }}}},
    {"told_to_all_blocks",
     cudaErrorLaunchFailure,
     {{"thread # reads out[#], which block (#, 0, 0)'s thread # wrote: a race\n  written at "
       "[told_to_all_blocks.write]\n  read at [told_to_all_blocks.read]\n" +
           kNoOrder,
       [](const Numbers& n) {
         return n[1] == n[2] * 64 + n[0] && n[3] == n[0] && n[2] == (n[4] + 4) % 8;
       }}}},
    {"wait_for_other_block",
     cudaErrorLaunchFailure,
     {{"thread # reads out[#], which block (#, 0, 0)'s thread # wrote: a race\n  written at "
       "[wait_for_other_block.write]\n  read at [wait_for_other_block.read]\n  missing: a "
       "cluster_sync() between the write and the read" +
           kOrLater,
       [](const Numbers& n) {
         return n[1] == n[2] * 64 + n[0] && n[3] == n[0] && n[2] == n[4] / 4 * 4;
       }}}},
    {"past_the_end",
     cudaErrorIllegalAddress,
     {{"thread 63 reads numbers[64] of block (#, 0, 0), past the end of numbers (64 elements)\n  "
       "at "
       "[past_the_end]",
       [](const Numbers& n) { return n[0] == next(n[1]); }}}},
    {"never_written",
     cudaErrorLaunchFailure,
     {{"thread 9 reads numbers[9] of block (#, 0, 0), which nothing has written\n  at "
       "[never_written]",
       [](const Numbers& n) { return n[0] == next(n[1]); }}}},
    {"rank_too_large",
     cudaErrorIllegalAddress,
     {{"thread # asks for an address in the block of rank 4; its cluster has 4 blocks\n  at "
       "[rank_too_large]\n  the address is @",
       [](const Numbers& n) { return n.back() % 4 == 3; }}}},
    {"copy_to_other_block",
     cudaErrorIllegalInstruction,
     {{"thread # writes numbers[#] of block (#, 0, 0) by cp.async, which writes shared memory of "
       "its "
       "own block only\n  at [copy_to_other_block]",
       [](const Numbers& n) { return n[0] == n[1] && n[2] == next(n[3]); }}}},
    {"read_before_wait", cudaErrorLaunchFailure, sent_by_other("read_before_wait")},
    {"sync_for_wait", cudaErrorLaunchFailure, sent_by_other("sync_for_wait")},
    {"wait_of_one", cudaErrorLaunchFailure, sent_by_other("wait_of_one")},
    {"send_at_once",
     cudaErrorIllegalAddress,
     {{"thread # writes slots[#] of block (#, 0, 0) by st.async, which may not have begun\n  at "
       "[send_at_once]\n  missing: a cluster_sync() before the write",
       [](const Numbers& n) { return n[0] == n[1] && n[2] == next(n[3]); }}}},
    {"init_after_sync",
     cudaErrorLaunchFailure,
     {{"thread # calls st.async with an mbarrier that is not initialised\n  at "
       "[init_after_sync.use]",
       [](const Numbers&) { return true; }},
      {"thread # uses barrier of block (#, 0, 0), which block (#, 0, 0)'s thread 0 wrote: a "
       "race\n  written at [init_after_sync.init]\n  used at [init_after_sync.use]\n  missing: a "
       "cluster_sync() between the write and the use",
       [](const Numbers& n) { return n[1] == n[2] && n[1] == next(n[3]); }}}},
    {"ready_without_fence",
     cudaErrorLaunchFailure,
     {{"thread # uses barrier of block (#, 0, 0), which block (#, 0, 0)'s thread 0 wrote: a "
       "race\n  written at [ready_without_fence.init]\n  used at "
       "[ready_without_fence.use]\n  missing: a cluster_sync() between the write and the use",
       [](const Numbers& n) { return n[1] == n[2] && n[1] == next(n[3]); }}}},
    {"use_at_once",
     cudaErrorLaunchFailure,
     {{"thread # calls mbarrier.arrive.expect_tx with an mbarrier that is not initialised\n  at "
       "[use_at_once.use]",
       [](const Numbers& n) { return n[0] != 0; }},
      {"thread # uses barrier, which thread 0 wrote: a race\n  written at [use_at_once.init]\n  "
       "used at [use_at_once.use]\n  both are in one warp, whose threads need not run in step; "
       "missing: a __syncwarp() or __syncthreads() between the write and the use",
       [](const Numbers& n) { return n[0] != 0 && n[0] < 32; }}}},
    {"use_after_use",
     cudaErrorLaunchFailure,
     {{"thread # calls mbarrier.try_wait.parity with an mbarrier that is not initialised\n  at "
       "[use_after_use.wait]",
       [](const Numbers& n) { return n[0] != 0; }},
      {"thread # uses barrier, which thread 0 wrote: a race\n  written at [use_after_use.init]\n  "
       "used at [use_after_use.wait]\n  missing: a __syncthreads() between the write and the use",
       [](const Numbers& n) { return n[0] >= 32; }}}},
    {"init_after_relaxed",
     cudaErrorLaunchFailure,
     {{"thread # uses barriers[0] of block (#, 0, 0), which block (#, 0, 0)'s thread 0 wrote: a "
       "race\n  written at [init_after_relaxed.init]\n  used at [init_after_relaxed.use]\n  "
       "missing: a cluster_sync() between the write and the use",
       [](const Numbers& n) { return n[1] == n[2] && n[1] == next(n[3]); }}}},
    {"relaxed_for_release",
     cudaErrorLaunchFailure,
     {{"thread # reads numbers[#] of block (#, 0, 0), which block (#, 0, 0)'s thread # wrote: a "
       "race\n  written at [relaxed_for_release.write]\n  read at [relaxed_for_release.read]\n  "
       "missing: a cluster_sync() between the write and the read" +
           kOnlyMbarriers,
       [](const Numbers& n) {
         return n[0] == n[1] && n[2] == n[3] && n[4] == n[0] && n[2] == next(n[5]);
       }}}},
    {"relaxed_in_the_block",
     cudaErrorLaunchFailure,
     {{"thread # reads numbers[#], which thread # wrote: a race\n  written at "
       "[relaxed_in_the_block.write]\n  read at [relaxed_in_the_block.read]\n  missing: a "
       "__syncthreads() between the write and the read" +
           kOnlyMbarriers,
       [](const Numbers& n) { return n[1] == n[2] && n[1] == (n[0] + 32) % 64; }}}},
    {"write_before_relaxed",
     cudaErrorLaunchFailure,
     {{"thread # reads numbers[#] of block (#, 0, 0), which block (#, 0, 0)'s thread # wrote: a "
       "race\n  written at [write_before_relaxed.write]\n  read at "
       "[write_before_relaxed.read]\n  missing: a cluster_sync() between the write and the read" +
           kOnlyMbarriers,
       [](const Numbers& n) {
         return n[0] == n[1] && n[2] == n[3] && n[4] == n[0] && n[2] == n[5] / 4 * 4;
       }}}},
    {"global_before_shared",
     cudaErrorLaunchFailure,
     {{"thread # reads out[#], which block (#, 0, 0)'s thread # wrote: a race\n  written at "
       "[global_before_shared.write]\n  read at [global_before_shared.read]\n  missing: a "
       "cluster_sync() between the write and the read" +
           kOrLater + kOnlyOwnShared,
       [](const Numbers& n) {
         return n[3] == (n[0] + 33) % 64 && n[1] == n[2] * 64 + n[3] && n[2] == next(n[4]);
       }}}},
    {"send_before_shared",
     cudaErrorLaunchFailure,
     {{"thread # reads slots[#], which block (#, 0, 0)'s thread # wrote: a race\n  written at "
       "[send_before_shared.write]\n  read at [send_before_shared.read]\n  missing: a "
       "cluster_sync() between the write and the read" +
           kOnlyOwnShared,
       [](const Numbers& n) { return n[0] == n[1] && n[3] == n[0] && n[2] == previous(n[4]); }}}},
    {"write_after_mbarrier",
     cudaErrorLaunchFailure,
     {{"thread # reads slots[#], which thread # wrote: a race\n  written at "
       "[write_after_mbarrier.write]\n  read at [write_after_mbarrier.read]\n  missing: a "
       "__syncthreads() between the write and the read",
       [](const Numbers& n) { return n[1] == n[2] && n[1] == (n[0] + 32) % 64; }}}},
    {"global_after_message",
     cudaErrorLaunchFailure,
     {{"thread # reads out[#], which block (#, 0, 0)'s thread # wrote: a race\n  written at "
       "[global_after_message.write]\n  read at [global_after_message.read]\n  missing: a "
       "cluster_sync() between the write and the read" +
           kOrLater + kOnlyShared,
       [](const Numbers& n) {
         return n[1] == n[2] * 64 + n[0] && n[3] == n[0] && n[2] == previous(n[4]);
       }}}},
    {"global_in_the_block",
     cudaErrorLaunchFailure,
     {{"thread # reads out[#], which thread # wrote: a race\n  written at "
       "[global_in_the_block.write]\n  read at [global_in_the_block.read]\n  missing: a "
       "__syncthreads() between the write and the read" +
           kOrLater + kOnlyShared,
       [](const Numbers& n) { return n[2] == (n[0] + 32) % 64 && n[1] == n[3] * 64 + n[2]; }}}},
    {"told_by_a_waiter",
     cudaErrorLaunchFailure,
     {{"thread 33 reads out[#], which thread 0 wrote: a race\n  written at "
       "[told_by_a_waiter.write]\n  read at [told_by_a_waiter.read]\n  missing: a "
       "__syncthreads() between the write and the read" +
           kOrLater + kOnlyShared,
       [](const Numbers& n) { return n[0] == n[1] * 64; }}}},
    {"two_buffers",
     cudaErrorLaunchFailure,
     {{"thread # writes slots[0][#][#] of block (#, 0, 0) by st.async, which thread # wrote by "
       "st.async: a race\n  written at [two_buffers.write]\n  written at [two_buffers.write]\n  "
       "missing: an mbarrier_wait() between the two writes",
       [](const Numbers& n) {
         return n[4] == n[0] && n[1] == n[5] % 4 && n[2] == n[0] / 32 && n[3] % 4 == n[0] % 32;
       }}}},
    {"tell_what_was_read",
     cudaErrorLaunchFailure,
     {{"thread # writes slots[#][#][#] of block (#, 0, 0) by st.async, which block (#, 0, 0)'s "
       "thread # read: a race\n  read at [tell_what_was_read.read]\n  written at "
       "[tell_what_was_read.write]\n  missing: an mbarrier_wait() or a cluster_sync() between the "
       "read and the write, which may be a turn of a loop later",
       [](const Numbers& n) {
         return n[2] == n.back() % 4 && n[3] == n[0] / 32 && n[4] == n[5] && n[4] % 4 == n[0] % 32;
       }},
      {"thread # writes slots[#][#][#] by st.async, which thread # read: a race\n  read at "
       "[tell_what_was_read.read]\n  written at [tell_what_was_read.write]\n  missing: an "
       "mbarrier_wait() or a __syncthreads() between the read and the write, which may be a turn "
       "of a loop later",
       [](const Numbers& n) {
         return n[2] == n.back() % 4 && n[3] == n[0] / 32 && n[2] == n[0] % 32;
       }}}},
    {"send_and_return",
     cudaErrorIllegalAddress,
     {{"thread # writes slots[#] of block (#, 0, 0) by st.async, which may have ended\n  at "
       "[send_and_return]\n  missing: an mbarrier_wait() in block (#, 0, 0) before its end",
       [](const Numbers& n) { return n[0] == n[1] && n[2] == n[3] && n[2] == next(n[4]); }}}},
};

}  // namespace

TEST_CASE("clusters that are right are silent in every order") {
  const OptionsGuard guard;
  for (const ClusterPair& pair : kClusterPairs) {
    for (const NamedOrder& order : kOrders) {
      CAPTURE(std::string(pair.kernel));
      CAPTURE(std::string(order.name));
      const KernelFailure failure = run(pair, false, order);
      CHECK_MESSAGE(failure.error == cudaSuccess, failure.report);
      CHECK(failure.report == "");
    }
  }
}

TEST_CASE("a line in a shared header is told with that of the kernel") {
  const OptionsGuard guard;
  for (const NamedOrder& order : kOrders) {
    CAPTURE(std::string(order.name));
    const ClusterPair reduce{"", [](bool, const ClusterMemory& m) { reduce_twice(m); }};
    const std::string report = run(reduce, true, order).report;
    const auto has = [&](const std::string& access, const std::string& mark) {
      const std::regex line("\n  " + access + R"( at tile/shared_slice\.cuh:\d+, called at )" +
                            marked(kFile, mark) + "\n");
      CHECK_MESSAGE(std::regex_search(report, line), report);
    };
    has("read", "reduce_twice.first");
    has("written", "reduce_twice.second");
  }
}

TEST_CASE("of each mistake with a cluster the whole report is known, in every order") {
  const OptionsGuard guard;
  REQUIRE(std::size(kCases) == kClusterPairs.size());
  for (std::size_t i = 0; i < kClusterPairs.size(); ++i) {
    const Case& c = kCases[i];
    REQUIRE(std::string(c.kernel) == kClusterPairs[i].kernel);
    for (const NamedOrder& order : kOrders) {
      CAPTURE(std::string(c.kernel));
      CAPTURE(std::string(order.name));
      const KernelFailure failure = run(kClusterPairs[i], true, order);
      CHECK(std::string(cudaGetErrorName(failure.error)) == cudaGetErrorName(c.error));
      bool is_expected = false;
      for (const Form& form : c.forms) is_expected |= has_form(failure.report, c.kernel, form);
      CHECK_MESSAGE(is_expected, failure.report);
    }
  }
}

// For cpu_device/README.md.
TEST_CASE("(table) of what the check build finds in clusters" * doctest::skip()) {
  const OptionsGuard guard;
  for (const ClusterPair& pair : kClusterPairs) {
    const std::string report = run(pair, true, kOrders[0]).report;
    const size_t begin = report.find(": ") + 2;
    std::printf("| `%s` | %s |\n", pair.kernel,
                report.substr(begin, report.find('\n') - begin).c_str());
    CHECK(report != "");
  }
}
