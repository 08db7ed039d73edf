// Threads that fail to meet: the kernel ends, the report says who waits where, and the next kernel
// runs. CPU device only.
#include <doctest/doctest.h>

#include <unistd.h>

#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "block_kernels.hpp"
#include "divergent_kernels.hpp"
#include "group_kernels.hpp"
#include "report.hpp"

using namespace device_test;
using cpu_device::options;
using cpu_device::Order;

namespace {

size_t volume(dim3 v) { return size_t{v.x} * v.y * v.z; }

std::string text(dim3 v) {
  return "(" + std::to_string(v.x) + ", " + std::to_string(v.y) + ", " + std::to_string(v.z) + ")";
}

std::string thread_name(unsigned t, dim3 block) {
  if (block.y == 1 && block.z == 1) return std::to_string(t);
  return text(dim3(t % block.x, t / block.x % block.y, t / block.x / block.y));
}

/// The line of a report for the threads that `is_in` picks; `singular` and `plural` tell what they
/// do.
std::string line(dim3 block, const std::function<bool(unsigned)>& is_in,
                 const std::string& singular, const std::string& plural) {
  std::string names;
  unsigned count = 0;
  for (unsigned t = 0; t < volume(block); ++t) {
    if (!is_in(t)) continue;
    if (count < 3) names += (count > 0 ? ", " : "") + thread_name(t, block);
    if (count == 3) names += ", …";
    ++count;
  }
  if (count == 0) return "";
  return "  " + std::to_string(count) + (count == 1 ? " thread (" : " threads (") + names + ") " +
         (count == 1 ? singular : plural) + "\n";
}

std::string waiting(dim3 block, const std::function<bool(unsigned)>& is_in,
                    const std::string& where, int source_line) {
  const std::string place =
      " at " + where + ", " + divergent_file() + ":" + std::to_string(source_line);
  return line(block, is_in, "waits" + place, "wait" + place);
}

std::string returned(dim3 block, const std::function<bool(unsigned)>& is_in) {
  return line(block, is_in, "returned", "returned");
}

/// The lines of the report about the threads, in any order of the lines.
std::vector<std::string> expected_lines(Divergence kind, dim3 block, const Lines& at) {
  const auto n = static_cast<unsigned>(volume(block));
  auto odd = [](unsigned t) { return t % 2 == 1; };
  auto even = [](unsigned t) { return t % 2 == 0; };
  auto last = [n](unsigned t) { return t == n - 1; };
  // A short warp may lack the lane that stays away from the others. Then they go on.
  auto waits_for = [n](unsigned lane) {
    return [=](unsigned t) { return t % 32 != lane && t / 32 * 32 + lane < n; };
  };
  auto low = [=](unsigned t) { return t % 32 < 16 && waits_for(16)(t); };
  const std::string full = ", mask 0xffffffff";
  switch (kind) {
    case Divergence::half_block:
      return {waiting(
                  block, [n](unsigned t) { return t < n / 2; }, "__syncthreads()", at.first),
              returned(block, [n](unsigned t) { return t >= n / 2; })};
    case Divergence::two_barriers:
      return {waiting(block, even, "__syncthreads()", at.first),
              waiting(block, odd, "__syncthreads()", at.second)};
    case Divergence::two_kinds:
      return {waiting(block, even, "__syncthreads()", at.first),
              waiting(block, odd, "__syncthreads_count()", at.second)};
    case Divergence::early_return:
      return {waiting(block, std::not_fn(last), "__syncthreads_or()", at.first),
              returned(block, last)};
    case Divergence::trip_counts:
      return {waiting(block, odd, "__syncthreads()", at.first), returned(block, even)};
    case Divergence::missing_lane:
      return {waiting(block, waits_for(3), "__shfl_down_sync()" + full, at.first),
              waiting(block, std::not_fn(waits_for(3)), "__syncthreads()", at.second)};
    case Divergence::exited_lane:
      return {waiting(block, waits_for(5), "__shfl_xor_sync()" + full, at.first),
              returned(block, std::not_fn(waits_for(5)))};
    case Divergence::disjoint_starts:
      return {waiting(block, low, "__syncwarp()" + full, at.first),
              returned(block, std::not_fn(low))};
    // These fail as soon as they are seen, with the first warp that comes.
    case Divergence::own_bit:
      return {waiting(
          block, [](unsigned t) { return t == 0; }, "__shfl_sync(), mask 0xfffffffe", at.first)};
    case Divergence::different_masks:
      return {
          waiting(
              block, [](unsigned t) { return t < 16; }, "__any_sync(), mask 0x0001ffff", at.first),
          waiting(
              block, [](unsigned t) { return t == 16; }, "__any_sync()" + full, at.second)};
    case Divergence::different_calls:
      return {waiting(
                  block, [](unsigned t) { return t == 0; }, "__ballot_sync()" + full, at.first),
              waiting(
                  block, [](unsigned t) { return t == 1; }, "__any_sync()" + full, at.second)};
    case Divergence::kinds: break;
  }
  return {};
}

std::string reason(Divergence kind) {
  switch (kind) {
    case Divergence::two_barriers:
    case Divergence::two_kinds: return "its threads wait at different barriers";
    case Divergence::different_masks:
    case Divergence::different_calls: return "lanes of one warp do not agree on a call or its mask";
    case Divergence::own_bit: return "calls a collective with a mask that lacks its own lane";
    default: return "its threads wait for each other";
  }
}

/// A kernel with barriers, whose result shows that the device works as before.
void check_next_kernel() {
  for (const unsigned threads : {64u, 1024u}) {
    std::vector<int> data(3 * threads);
    for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<int>(i);
    const DeviceArray<int> device_data(data);
    reverse_blocks(device_data.data(), 3, threads);
    reverse_blocks(device_data.data(), 3, threads);
    REQUIRE(device_data.download() == data);
  }
}

const dim3 kBlocks[] = {17, 32, 48, 1024, dim3(4, 3, 2), dim3(16, 2, 32), dim3(1, 1, 33)};

}  // namespace

TEST_CASE("every kind of divergence is reported, in blocks of every shape") {
  const OptionsGuard guard;
  options().same_stores = true;  // all of them store the line where they wait
  options().order = Order::forward;
  for (int k = 0; k < static_cast<int>(Divergence::kinds); ++k) {
    for (const dim3 block : kBlocks) {
      CAPTURE(k);
      CAPTURE(volume(block));
      const auto kind = static_cast<Divergence>(k);
      Lines at;
      diverge(kind, block, &at);
      const KernelFailure failure = take_failure();
      const std::string& report = failure.report;
      CHECK(failure.error == cudaErrorLaunchFailure);
      INFO(report);
      size_t length = 0;
      for (int newline = 0; newline < 2; ++newline) length = report.find('\n', length) + 1;
      const std::string head = report.substr(0, length);
      CHECK(head.find(reason(kind) + "\n") != std::string::npos);
      CHECK(head.find(":" + std::to_string(at.launch) + ", grid (2, 1, 1), block " + text(block) +
                      "; this is block (0, 0, 0)\n") != std::string::npos);
      for (const std::string& expected : expected_lines(kind, block, at)) {
        CAPTURE(expected);
        CHECK(report.find(expected, head.size() - 1) != std::string::npos);
        length += expected.size();
      }
      CHECK(report.size() == length);  // there is nothing else in it
      check_next_kernel();
    }
  }
}

TEST_CASE("reports, word for word") {
  const OptionsGuard guard;
  options().same_stores = true;  // all of them store the line where they wait
  options().order = Order::forward;
  const std::string file = divergent_file();
  CHECK(file == "cpu_device/test/divergent_kernels.cu");
  Lines at;
  auto place = [&](int source_line) { return file + ":" + std::to_string(source_line); };

  diverge(Divergence::half_block, 33, &at);
  CHECK(take_failure().report ==
        "kernel half_block failed: its threads wait for each other\n"
        "  launched at " +
            place(at.launch) +
            ", grid (2, 1, 1), block (33, 1, 1); this is block (0, 0, 0)\n"
            "  16 threads (0, 1, 2, …) wait at __syncthreads(), " +
            place(at.first) +
            "\n"
            "  17 threads (16, 17, 18, …) returned\n");

  diverge(Divergence::missing_lane, dim3(4, 2), &at);
  CHECK(take_failure().report ==
        "kernel missing_lane failed: its threads wait for each other\n"
        "  launched at " +
            place(at.launch) +
            ", grid (2, 1, 1), block (4, 2, 1); this is block (0, 0, 0)\n"
            "  7 threads ((0, 0, 0), (1, 0, 0), (2, 0, 0), …) wait at __shfl_down_sync(), mask "
            "0xffffffff, " +
            place(at.first) +
            "\n"
            "  1 thread ((3, 0, 0)) waits at __syncthreads(), " +
            place(at.second) + "\n");

  diverge(Divergence::own_bit, 2, &at);
  CHECK(take_failure().report ==
        "kernel own_bit failed: thread 0 calls a collective with a mask that lacks its own lane\n"
        "  launched at " +
            place(at.launch) +
            ", grid (2, 1, 1), block (2, 1, 1); this is block (0, 0, 0)\n"
            "  1 thread (0) waits at __shfl_sync(), mask 0xfffffffe, " +
            place(at.first) + "\n");
  CHECK(cpu_device::take_report().empty());
}

TEST_CASE("divergence is found in every order, by every number of workers") {
  const OptionsGuard guard;
  options().same_stores = true;  // all of them store the line where they wait
  for (const Order order : {Order::forward, Order::reverse, Order::random}) {
    for (const int workers : {1, 3}) {
      options().order = order;
      options().workers = workers;
      for (int k = 0; k < static_cast<int>(Divergence::kinds); ++k) {
        for (const dim3 block : {dim3(17), dim3(96), dim3(5, 5, 5)}) {
          ++options().seed;
          Lines at;
          diverge(static_cast<Divergence>(k), block, &at);
          const auto [error, report] = take_failure();
          CHECK(error == cudaErrorLaunchFailure);
          CHECK(report.find(reason(static_cast<Divergence>(k))) != std::string::npos);
        }
      }
      check_next_kernel();
    }
  }
}

// AddressSanitizer keeps freed memory for a while.
TEST_CASE("a thousand failures leave no trace" * doctest::skip(cpu_device::kAsan)) {
  const OptionsGuard guard;
  options().same_stores = true;  // all of them store the line where they wait
  auto resident_pages = [] {
    std::ifstream statm("/proc/self/statm");
    long total = 0, resident = 0;
    statm >> total >> resident;
    return resident;
  };
  long before = 0;
  for (int i = 0; i < 1200; ++i) {
    if (i == 200) before = resident_pages();
    Lines at;
    const auto kind = static_cast<Divergence>(i % static_cast<int>(Divergence::kinds));
    diverge(kind, i % 100 == 0 ? 1024 : 64, &at);
    REQUIRE(take_failure().error == cudaErrorLaunchFailure);
  }
  check_next_kernel();
  const long grown = (resident_pages() - before) * sysconf(_SC_PAGESIZE);
  CHECK(grown < 8 << 20);  // all stacks together are 64 MB
}

TEST_CASE("a failed assert ends the kernel and not the program") {
  fail_an_assert();
  const auto [error, report] = take_failure();
  CHECK(error == cudaErrorAssert);
  CHECK(report.find("thread 5 assert(threadIdx.x != 5) failed") != std::string::npos);
  CHECK(report.find("cpu_device/test/group_kernels.cu:") != std::string::npos);
  check_next_kernel();
}
