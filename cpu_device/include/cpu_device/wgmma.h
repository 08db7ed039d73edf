// wgmma (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions"), for tile/ptx/wgmma.cuh: on a
// card of compute capability 9.0 (Options::capability) and no other. The 128 threads of a warpgroup
// call each function at one place.
//
// An instruction is done when the warpgroup waits for its group, and not before. Then it reads its
// operands in shared memory; the sums come into their registers with the wait that names them.
// Until then these hold a NaN. So who reuses a slot or reads sums too early sees it.
//
// Sums of fp16 and bf16 are those of mma (cpu_device/tensor.h). With e4m3 a GPU keeps 14 bits of
// the largest addend of an instruction, of the others what is at these places, and 14 bits of the
// sum: that is what is computed here, and an H200 loses bits at the same sums
// (tile/test/test_wgmma.cpp).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "cpu_device/qualifiers.h"
#include "cpu_device/site.h"
#include "tile/ptx/wgmma_descriptor.cuh"

namespace cpu_device {

enum class Major : std::uint8_t { k, mn };
enum class WgmmaType : std::uint8_t { fp16, bf16, e4m3 };

/// What a thread brings.
struct WgmmaOperands {
  WgmmaType type;
  int columns;  // of D
  float* d;
  const std::uint32_t* a_registers;  // or null
  bool a_may_change;                 // after the call: no one else has these registers
  std::uint64_t a, b;                // descriptors
  Major major_a, major_b;
  bool accumulate;
  Site site;
};
void issue_wgmma(const WgmmaOperands& operands);

void wgmma_fence(Site site = Site::here());
void wgmma_commit(Site site = Site::here());
void wait_for_wgmma(int groups, float* d, int count, Site site);

template <int kGroups, int kCount>
__forceinline__ void wgmma_wait(float (&d)[kCount], Site site = Site::here()) {
  static_assert(kGroups >= 0, "a number of groups");
  wait_for_wgmma(kGroups, d, kCount, site);
}

template <class T>
constexpr WgmmaType wgmma_type() {
  if constexpr (std::is_same_v<T, __half>) return WgmmaType::fp16;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return WgmmaType::bf16;
  if constexpr (std::is_same_v<T, __nv_fp8_e4m3>) return WgmmaType::e4m3;
}

template <class T, int kN, Major kMajorA = Major::k, Major kMajorB = Major::k>
__forceinline__ void wgmma(float (&d)[kN / 2], tile::ptx::WgmmaDescriptor a,
                           tile::ptx::WgmmaDescriptor b, bool accumulate,
                           Site site = Site::here()) {
  static_assert(kN % 16 == 0 && kN >= 16 && kN <= 256, "D has 16, 32, … 256 columns");
  static_assert(sizeof(T) == 2 || (kMajorA == Major::k && kMajorB == Major::k),
                "wgmma reads fp8 along k only");
  issue_wgmma({wgmma_type<T>(), kN, d, nullptr, false, a.bits(), b.bits(), kMajorA, kMajorB,
               accumulate, site});
}

template <class T, int kN, Major kMajorB = Major::k>
__forceinline__ void wgmma(float (&d)[kN / 2], const std::uint32_t (&a)[4],
                           tile::ptx::WgmmaDescriptor b, bool accumulate, Site site = Site::here(),
                           bool a_may_change = false) {
  static_assert(kN % 16 == 0 && kN >= 16 && kN <= 256, "D has 16, 32, … 256 columns");
  static_assert(sizeof(T) == 2 || kMajorB == Major::k, "wgmma reads fp8 along k only");
  issue_wgmma(
      {wgmma_type<T>(), kN, d, a, a_may_change, 0, b.bits(), Major::k, kMajorB, accumulate, site});
}
/// A is a temporary, which the program cannot change before the wait.
template <class T, int kN, Major kMajorB = Major::k>
__forceinline__ void wgmma(float (&d)[kN / 2], const std::uint32_t (&&a)[4],
                           tile::ptx::WgmmaDescriptor b, bool accumulate,
                           Site site = Site::here()) {
  wgmma<T, kN, kMajorB>(d, a, b, accumulate, site, true);
}

}  // namespace cpu_device
