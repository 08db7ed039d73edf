// What the check build counts of the smallest kernels: the numbers that a GPU's rules give. Check
// build only.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "cpu_device/xray.h"
#include "marks.hpp"
#include "report.hpp"
#include "xray_kernels.hpp"

using namespace device_test;

namespace {

constexpr const char* kFile = "cpu_device/test/xray_kernels.cu";

struct Golden {
  const char* kernel;
  const char* mark;
  const char* access;
  uint64_t requests, cost, least, used;
};
constexpr Golden kGolden[] = {
    {"coalesced", "coalesced", "global load", 1, 4, 4, 128},
    {"coalesced", "coalesced", "global store", 1, 4, 4, 128},
    {"misaligned", "misaligned", "global load", 1, 5, 4, 128},
    {"broadcast", "broadcast", "global load", 1, 1, 1, 4},
    {"stride_2", "stride_2", "global load", 1, 8, 4, 128},
    {"strided", "strided", "global load", 1, 32, 4, 128},
    {"strided", "strided", "global store", 1, 32, 4, 128},
    {"vectors", "vectors.load", "global load", 1, 16, 16, 512},
    {"vectors", "vectors.store", "global store", 1, 16, 16, 512},
    {"copies", "copies", "global load", 1, 16, 16, 512},
    {"copies", "copies", "shared store", 1, 4, 4, 512},
    {"atomics", "atomics", "global atomic", 1, 1, 1, 16},
    {"branches", "branches.even", "global load", 1, 4, 2, 64},
    {"branches", "branches.odd", "global load", 1, 4, 2, 64},
    {"turns", "turns", "global load", 32, 80, 80, 2112},
    {"meetings", "meetings", "global load", 32, 80, 80, 2112},
    {"banks<0>", "banks", "shared load", 1, 1, 1, 4},
    {"banks<1>", "banks", "shared load", 1, 1, 1, 128},
    {"banks<2>", "banks", "shared load", 1, 2, 1, 128},
    {"banks<4>", "banks", "shared load", 1, 4, 1, 128},
    {"banks<8>", "banks", "shared load", 1, 8, 1, 128},
    {"banks<16>", "banks", "shared load", 1, 16, 1, 128},
    {"banks<32>", "banks", "shared load", 1, 32, 1, 128},
    {"banks<33>", "banks", "shared load", 1, 1, 1, 128},
    {"stores<1>", "stores", "shared store", 1, 1, 1, 128},
    {"stores<32>", "stores", "shared store", 1, 32, 1, 128},
    {"stores<33>", "stores", "shared store", 1, 1, 1, 128},
    {"wide<1>", "wide", "shared load", 1, 4, 4, 512},
    {"wide<2>", "wide", "shared load", 1, 2, 2, 256},
    {"wide<32>", "wide", "shared load", 1, 2, 2, 16},
    {"matrices<16>", "matrices", "shared load", 1, 4, 4, 512},
    {"matrices<64>", "matrices", "shared load", 1, 16, 4, 512},
    {"matrices<128>", "matrices", "shared load", 1, 32, 4, 512},
    {"matrices<144>", "matrices", "shared load", 1, 4, 4, 512},
    // As Nsight Compute counts them on an H200; but for the last, which were not measured as one.
    {"copied_rows<16, 128, 256, 128>", "copied_rows", "shared store", 1, 4, 4, 512},
    {"copied_rows<16, 64, 256, 64>", "copied_rows", "shared store", 1, 8, 4, 512},
    {"copied_rows<16, 64, 256, 80>", "copied_rows", "shared store", 1, 15, 4, 512},
    {"copied_rows<16, 32, 256, 32>", "copied_rows", "shared store", 1, 16, 4, 512},
    {"copied_rows<16, 16, 16, 32>", "copied_rows", "shared store", 1, 32, 4, 512},
    {"copied_rows<16, 16, 0, 16>", "copied_rows", "shared store", 1, 32, 4, 512},
    {"copied_rows<8, 64, 256, 64>", "copied_rows", "shared store", 1, 4, 2, 256},
    {"copied_rows<8, 8, 8, 16>", "copied_rows", "shared store", 1, 4, 2, 256},
    {"copied_rows<4, 32, 128, 32>", "copied_rows", "shared store", 1, 4, 1, 128},
    {"filled_copies", "filled_copies", "shared store", 1, 18, 4, 512},
};

std::vector<cpu_device::XrayLine> counted(const XrayKernel& kernel) {
  const DeviceArray<float> in(kXrayElements), out(kXrayElements);
  cpu_device::take_xray();
  kernel.launch(in.data(), out.data());
  require_kernels_ran();
  return cpu_device::take_xray();
}

}  // namespace

TEST_CASE("counts of the smallest kernels, in every order of threads") {
  const OptionsGuard guard;
  cpu_device::options().xray = true;
  for (const NamedOrder& order : kOrders) {
    cpu_device::options().order = order.order;
    cpu_device::options().seed = order.seed;
    CAPTURE(std::string(order.name));
    for (const XrayKernel& kernel : xray_kernels()) {
      const std::vector<cpu_device::XrayLine> lines = counted(kernel);
      bool any = false;
      for (const Golden& golden : kGolden) {
        if (golden.kernel != std::string(kernel.name)) continue;
        any = true;
        CAPTURE(std::string(golden.kernel));
        CAPTURE(std::string(golden.access));
        const auto line = std::ranges::find_if(lines, [&](const cpu_device::XrayLine& l) {
          return l.place == marked(kFile, golden.mark) && l.access.starts_with(golden.access);
        });
        const bool is_counted = line != lines.end();
        REQUIRE(is_counted);
        CHECK(line->requests == golden.requests);
        CHECK(line->cost == golden.cost);
        CHECK(line->least == golden.least);
        CHECK(line->used == golden.used);
      }
      CHECK_MESSAGE(any, kernel.name << " has no counts to compare with");
    }
  }
}

TEST_CASE("nothing is counted unless it is asked for") {
  const OptionsGuard guard;
  CHECK(counted(xray_kernels().front()).empty());
}
