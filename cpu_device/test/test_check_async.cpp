// The check build on kernels that copy by TMA or meet at named barriers, as in test_check.cpp.
#include <doctest/doctest.h>

#include <regex>
#include <string>
#include <vector>

#include "check_async_kernels.hpp"
#include "marks.hpp"
#include "report.hpp"
#include "tile/host/device.hpp"

using namespace device_test;
using cpu_device::options;

namespace {

constexpr int kRows = 32, kColumns = 32;

tile::TensorMap map_of(const float* data) {
  tile::TensorMap map;
  const tile::Status status = tile::make_tensor_map(
      "matrix", {tile::DType::fp32, data, 2, {kColumns, kRows}, {kColumns}, {kColumns, 4}, 0},
      &map);
  if (!status.ok()) throw std::runtime_error(status.message);
  return map;
}

KernelFailure run(const AsyncPair& pair, bool mistake, const NamedOrder& order) {
  options().order = order.order;
  options().seed = order.seed;
  const DeviceArray<float> in(kRows * kColumns), out(kRows * kColumns);
  const auto name = [](const char* text, const DeviceArray<float>& array) {
    tile::name_array(
        {text, array.data(), sizeof(float), 1, kRows * kColumns, kRows * kColumns, true});
  };
  name("in", in);
  name("out", out);
  pair.launch(mistake, {in.data(), out.data(), map_of(in.data()), map_of(out.data())});
  return take_failure();
}

/// The report begins with one of these, up to the line about the launch. In the text # is any
/// number.
struct Case {
  const char* kernel;
  std::vector<std::string> texts;
};

const std::string kFence =
    "  missing: a fence_async_proxy() in thread # between the write and the barrier after it";

const Case kCases[] = {
    {"load_without_wait",
     {"thread # reads box[#], which thread 0 wrote by TMA: a race\n"
      "  written at #\n  read at #\n"
      "  missing: an mbarrier_wait() between the write and the read",
      "thread 0 writes box[#] by TMA, which thread # read before anything was written there: a "
      "race\n"
      "  read at #\n  written at #\n"
      "  missing: an mbarrier_wait() between the write and the read, which came too early"}},
    {"barrier_for_wait",
     {"thread # reads box[#], which thread 0 wrote by TMA: a race\n"
      "  written at #\n  read at #\n"
      "  missing: an mbarrier_wait() between the write and the read"}},
    {"slot_reused",
     {"thread 0 writes box[#] by TMA, which thread # read: a race\n"
      "  read at #\n  written at #\n"
      "  missing: an mbarrier_wait() or a __syncthreads() between the read and the write, which "
      "may "
      "be a turn of a loop later",
      "thread # reads box[#], which thread 0 wrote by TMA: a race\n"
      "  written at #\n  read at #\n"
      "  missing: an mbarrier_wait() between the write and the read"}},
    {"wait_for_other_slot",
     {"thread # reads boxes[0][#], which a load of thread 0 is still to write\n"
      "  issued at #\n  read at #\n"
      "  missing: an mbarrier_wait() between the load and the read",
      "thread # reads boxes[0][#], which thread 0 wrote by TMA: a race\n"
      "  written at #\n  read at #\n"
      "  missing: an mbarrier_wait() between the write and the read"}},
    {"load_over_load",
     {"thread 0 writes boxes[0][0] by TMA, which thread 0 wrote by TMA: a race\n"
      "  written at #\n  written at #\n"
      "  missing: an mbarrier_wait() between the two writes"}},
    {"write_over_load",
     {"thread 0 writes box[5], which thread 0 wrote by TMA: a race\n"
      "  written at #\n  written at #\n"
      "  missing: an mbarrier_wait() between the two writes"}},
    {"store_without_fence",
     {"thread 0 reads box[0] by TMA, which thread 0 wrote without a fence for that\n"
      "  written at #\n  read at #\n" +
      kFence}},
    {"fence_of_one_thread",
     {"thread 0 reads box[1] by TMA, which thread 1 wrote without a fence for that\n"
      "  written at #\n  read at #\n" +
      kFence}},
    {"fence_after_barrier",
     {"thread 0 reads box[#] by TMA, which thread # wrote without a fence for that\n"
      "  written at #\n  read at #\n" +
      kFence}},
    {"fence_for_barrier",
     {"thread 63 reads box[#] by TMA, which thread # wrote: a race\n"
      "  written at #\n  read at #\n"
      "  missing: a __syncthreads() between the write and the read",
      "thread # writes box[#], which thread 63 read by TMA before anything was written there: a "
      "race\n"
      "  read at #\n  written at #\n"
      "  missing: a __syncthreads() between the write and the read, which came too early"}},
    {"write_under_store",
     {"thread # writes box[#], which thread 0 read by TMA: a race\n"
      "  read at #\n  written at #\n"
      "  missing: a bulk_wait_read<0>() in that thread, and a barrier after it, between the store "
      "and the write",
      "thread 0 writes box[#], which thread 0 read by TMA: a race\n"
      "  read at #\n  written at #\n"
      "  missing: a bulk_wait_read<0>() between the store and the write"}},
    {"read_under_store",
     {"thread 0 reads out[#], which thread 0 wrote by TMA: a race\n"
      "  written at #\n  read at #\n"
      "  missing: a bulk_wait<0>() between the store and the read"}},
    {"add_and_store",
     {"thread 0 writes out[0] by TMA, which block (#, 0, 0)'s thread 0 wrote by TMA: a race\n"
      "  written at #\n  written at #\n"
      "  two blocks write the same element; let one of them write it, or both update it by an "
      "atomic",
      "thread 0 updates atomically out[0] by TMA, which block (#, 0, 0)'s thread 0 wrote by TMA: a "
      "race\n"
      "  written at #\n  written at #\n"
      "  two blocks write the same element; let one of them write it, or both update it by an "
      "atomic"}},
    {"named_barrier",
     {"thread # reads numbers[#], which thread # wrote: a race\n"
      "  written at #\n  read at #\n"
      "  missing: a __syncthreads() between the write and the read",
      "thread # writes numbers[#], which thread # read before anything was written there: a race\n"
      "  read at #\n  written at #\n"
      "  missing: a __syncthreads() between the write and the read, which came too early"}},
    {"arrive_and_read",
     {"thread # reads numbers[#], which thread # wrote: a race\n"
      "  written at #\n  read at #\n"
      "  missing: a __syncthreads() between the write and the read",
      "thread # writes numbers[#], which thread # read before anything was written there: a race\n"
      "  read at #\n  written at #\n"
      "  missing: a __syncthreads() between the write and the read, which came too early"}},
    {"multicast",
     {"thread 0 writes box[#] of block (1, 0, 0) by TMA, which thread 0 wrote by TMA: a race\n"
      "  written at #\n  written at #\n"
      "  missing: an mbarrier_wait() between the two writes",
      "thread 0 writes box[#] of block (1, 0, 0) by TMA, which block (1, 0, 0)'s thread # read: a "
      "race\n"
      "  read at #\n  written at #\n"
      "  missing: an mbarrier_wait() or a cluster_sync() between the read and the write, which may "
      "be a turn of a loop later"}},
    {"arrive_at_last",
     {"thread # uses empty[0] of block (0, 0, 0), which may have ended\n"
      "  at #\n"
      "  missing: a cluster_sync() between the use and the end of block (0, 0, 0)"}},
};

bool begins_with(const std::string& report, const std::string& text) {
  std::string pattern;
  for (const char c : text) {
    if (c == '#') {
      pattern += "\\d+";
    } else {
      if (std::string("()[].+*?{}|^$\\").find(c) != std::string::npos) pattern += '\\';
      pattern += c;
    }
  }
  // After "at" it is a place.
  pattern = std::regex_replace(pattern, std::regex(" at \\\\d\\+"),
                               " at cpu_device/test/check_async_kernels.cu:\\d+");
  return std::regex_search(
      report, std::regex("^kernel \\w+<true> failed: " + pattern + "\n  launched at "));
}

}  // namespace

TEST_CASE("mistakes with TMA and named barriers are found in every order") {
  const OptionsGuard guard;
  REQUIRE(std::size(kCases) == kAsyncPairs.size());
  for (std::size_t i = 0; i < kAsyncPairs.size(); ++i) {
    CAPTURE(std::string(kAsyncPairs[i].kernel));
    REQUIRE(std::string(kAsyncPairs[i].kernel) == kCases[i].kernel);
    for (const NamedOrder& order : kOrders) {
      CAPTURE(std::string(order.name));
      const KernelFailure right = run(kAsyncPairs[i], false, order);
      CHECK_MESSAGE(right.error == cudaSuccess, right.report);
      const KernelFailure wrong = run(kAsyncPairs[i], true, order);
      CHECK(wrong.error != cudaSuccess);
      bool found = false;
      for (const std::string& text : kCases[i].texts)
        found = found || begins_with(wrong.report, text);
      CHECK_MESSAGE(found, wrong.report);
    }
  }
}
