// What is said of wgmma that goes wrong, and what a result shows of it. CPU device only.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "cpu_device/check.h"
#include "marks.hpp"
#include "report.hpp"
#include "wgmma_kernels.hpp"

using namespace device_test;
using cpu_device::kChecking;
using cpu_device::options;

namespace {

using Misuse = WgmmaMisuse;

struct Mistake {
  Misuse misuse;
  cudaError_t error;
  // Parts of the report in this order. Of "[mark]" the line is meant.
  std::vector<std::string> parts;
};

void in_all_orders(void (*check)()) {
  const OptionsGuard guard;
  for (const NamedOrder& order : kOrders) {
    options().order = order.order;
    options().seed = order.seed;
    CAPTURE(std::string(order.name));
    check();
  }
}

KernelFailure run(Misuse misuse, std::vector<float>* result = nullptr) {
  const DeviceArray<float> out(4096);
  multiply_ones(misuse, out.data());
  const KernelFailure failure = take_failure();
  if (result && failure.error == cudaSuccess) *result = out.download();
  if (result) result->resize(128);
  return failure;
}

std::string with_lines(std::string text) {
  for (size_t begin; (begin = text.find("[:")) != std::string::npos;) {
    const size_t end = text.find(']', begin);
    const std::string mark = text.substr(begin + 2, end - begin - 2);
    text.replace(begin, end + 1 - begin, marked("cpu_device/test/wgmma_kernels.cu", mark));
  }
  return text;
}

void check(const Mistake& mistake) {
  CAPTURE(static_cast<int>(mistake.misuse));
  const KernelFailure failure = run(mistake.misuse);
  CHECK(std::string(cudaGetErrorName(failure.error)) == cudaGetErrorName(mistake.error));
  size_t from = 0;
  for (const std::string& part : mistake.parts) {
    const std::string text = with_lines(part);
    const size_t at = failure.report.find(text, from);
    const bool found = at != std::string::npos;
    CHECK_MESSAGE(found, failure.report, "has no \"", text, "\" here");
    if (found) from = at + text.size();
  }
}

constexpr cudaError_t kFailure = cudaErrorLaunchFailure;

}  // namespace

TEST_CASE("wgmma: a right kernel is silent") {
  in_all_orders([] {
    for (const Misuse right : {Misuse::none, Misuse::overwritten_when_told}) {
      std::vector<float> result;
      const KernelFailure failure = run(right, &result);
      CHECK_MESSAGE(failure.error == cudaSuccess, failure.report);
      CHECK(failure.report.empty());
      CHECK(result == std::vector<float>(128, 16.0f));
    }
  });
}

TEST_CASE("wgmma: what every build reports") {
  in_all_orders([] {
    check({Misuse::short_warpgroup,
           kFailure,
           {"calls wgmma_fence() in a warpgroup of 96 threads; it takes 128\n  at "}});
    check({Misuse::half_of_the_warpgroup,
           kFailure,
           {"its threads wait for each other", "64 threads (0, 1, 2, …) wait at wgmma_fence(), ",
            "64 threads (64, 65, 66, …) returned"}});
    check({Misuse::different_places,
           kFailure,
           {"threads of one warpgroup are at different places; all 128 must call the same\n"}});
    check({Misuse::different_descriptors,
           kFailure,
           {"calls wgmma with other descriptors than the rest of its warpgroup, or does not agree "
            "whether D counts\n  at [:descriptors]"}});
    check({Misuse::misaligned_tile,
           cudaErrorMisalignedAddress,
           {"calls wgmma with a descriptor of A that is not aligned to 1,024 bytes, the swizzle's "
            "pattern\n  at [:multiply]"}});
    check({Misuse::past_shared_memory,
           cudaErrorIllegalAddress,
           {kChecking ? "reads b[512] by wgmma, past the end of b (512 elements)\n  at [:multiply]"
                      : "calls wgmma with a descriptor of B that goes past the end of shared "
                        "memory\n  at [:multiply]"}});
    check({Misuse::tile_in_global_memory,
           cudaErrorIllegalAddress,
           {"makes a wgmma descriptor of what is not in shared memory\n  the address is 0x"}});
    check({Misuse::no_wait,
           kFailure,
           {"ends before the wgmma of its warpgroup is done\n  wgmma at [:multiply]\n  missing: a "
            "wgmma_commit() and a wgmma_wait<0>()\n"}});
    if (kChecking) {
      check({Misuse::no_commit,
             kFailure,
             {"reads d[31] of a wgmma that is under way\n  wgmma at [:multiply]\n  read at "
              "[:read_uncommitted]\n  wgmma_wait<0>() at [:wait] passes over it, because it was in "
              "no group; missing: a wgmma_commit() between the two\n"}});
      check({Misuse::write_before_wait,
             kFailure,
             {"writes d[3] of a wgmma that is under way\n  wgmma at [:multiply]\n  written at "
              "[:write_before_wait]\n  missing: a wgmma_wait<0>() before the write\n"}});
    } else {
      check({Misuse::no_commit, kFailure, {"ends before the wgmma of its warpgroup is done"}});
      check({Misuse::write_before_wait,
             kFailure,
             {"has changed d[3], sums of a wgmma, before they were there\n  wgmma at "
              "[:multiply]\n  waited for at [:wait]"}});
    }
  });
}

TEST_CASE("wgmma: who is too early sees it" * doctest::skip(kChecking)) {
  in_all_orders([] {
    for (const Misuse early :
         {Misuse::read_before_wait, Misuse::wait_for_less, Misuse::wait_for_other_sums}) {
      std::vector<float> result;
      CHECK(run(early, &result).error == cudaSuccess);
      for (const float sum : result) CHECK(std::isnan(sum));
    }
    std::vector<float> result;
    CHECK(run(Misuse::overwritten_too_early, &result).error == cudaSuccess);
    CHECK(result != std::vector<float>(128, 16.0f));
  });
}

TEST_CASE("wgmma: what the check build reports" * doctest::skip(!kChecking)) {
  in_all_orders([] {
    check({Misuse::read_before_wait,
           kFailure,
           {"reads d[31] of a wgmma that is under way\n  wgmma at [:multiply]\n  read at "
            "[:read_before_wait]\n  missing: a wgmma_wait<0>() before the read\n"}});
    check(
        {Misuse::wait_for_less,
         kFailure,
         {"reads d[31] of a wgmma that is under way\n", "read at [:read_less]\n",
          "wgmma_wait<1>() at [:wait_for_less] leaves it under way, as the latest group; missing: "
          "a wgmma_wait<0>()\n"}});
    check({Misuse::wait_for_other_sums,
           kFailure,
           {"reads d[31] of a wgmma whose sums are not there\n", "read at [:read_other]\n",
            "no wait has named these sums"}});
    check({Misuse::overwritten_too_early,
           kFailure,
           {"writes a[",
            "], which a wgmma of the warpgroup of thread 0 may not have read yet\n  "
            "wgmma at [:multiply]",
            "\n  written at [:overwritten]\n  missing: a wgmma_wait() "
            "between the two\n"}});
    check({Misuse::overwritten_by_others,
           kFailure,
           {"writes a[", "], which a wgmma of the warpgroup of thread 0 may not have read yet\n",
            "\n  written at [:overwritten_by_others]\n  missing: a wgmma_wait() of that warpgroup, "
            "and after it a barrier before the write\n"}});
    check({Misuse::told_before_wait,
           kFailure,
           {"writes a[", "], which a wgmma of the warpgroup of thread 0 may not have read yet\n"}});
    check({Misuse::no_fence,
           kFailure,
           {"calls wgmma without a wgmma_fence() before it\n  wgmma at [:no_fence]\n  missing: a "
            "wgmma_fence() before the first wgmma of a group\n"}});
    check({Misuse::touch_after_fence,
           kFailure,
           {"calls wgmma with sums that thread ",
            " has touched after the last wgmma_fence()\n  touched at [:touch]\n  wgmma at "
            "[:touched]\n  missing: a wgmma_fence() between the two\n"}});
    check(
        {Misuse::change_of_a,
         kFailure,
         {"writes a[2] of a wgmma that is under way\n  wgmma at [:registers]\n  written at "
          "[:change_of_a]\n  missing: a wgmma_commit() and a wgmma_wait<0>() before the write\n"}});
    check({Misuse::unwritten_tile,
           kFailure,
           {"reads b[256] by wgmma, which nothing has written\n  at [:multiply]"}});
    check({Misuse::no_barrier,
           kFailure,
           {"] by wgmma, which thread ", " wrote: a race\n",
            "missing: a __syncthreads() between "
            "the write and the read\n"}});
  });
}

TEST_CASE("wgmma: only a card of 9.0 has it") {
  const OptionsGuard guard;
  options().capability = 89;
  CHECK(run(Misuse::lesser_card)
            .report.find(
                "calls wgmma_fence(), which compute capability 9.0 has and no other; this card has "
                "8.9\n") != std::string::npos);
}
