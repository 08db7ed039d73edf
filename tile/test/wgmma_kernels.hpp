// Kernels that multiply by wgmma what the host gives, for test_wgmma.cpp.
#pragma once

#include <cstdint>

#include "fragments_of.hpp"
#include "tile/host/status.hpp"

namespace ptx_test {

inline constexpr int kWgmmaRows = 64;       // of D
inline constexpr int kWgmmaRowBytes = 128;  // of a tile: four instructions of 32 bytes of k
inline constexpr int kWgmmaWarpgroups = 2;  // with the same A and B, each with its C

struct WgmmaForm {
  Number operands;  // fp16, bf16 or e4m3
  int columns;      // of D
  bool a_along_m = false, b_along_n = false;
  bool a_in_registers = false;  // then its tile is along k

  int depth() const { return kWgmmaRowBytes * 8 / bits_of(operands); }
};

/// d = a b, or if `accumulate` d += a b, of each warpgroup. d is by rows. a and b are tiles: rows
/// of 128 bytes, without the swizzle. Along k a row is one m or n; along m or n it is one k, with
/// 64 of these, and the next 64 follow the last k.
tile::Status multiply_by_wgmma(const WgmmaForm& form, bool accumulate, const std::uint32_t* a,
                               const std::uint32_t* b, float* d);

/// The same along k in bf16 with 64 columns. The first half of the depth goes to d, the other half,
/// by a group that is still under way when d is read, to d_second.
tile::Status multiply_in_two_groups(const std::uint32_t* a, const std::uint32_t* b, float* d,
                                    float* d_second);

/// d = a b in bf16 with 64 columns, of a warpgroup; a and b along k. A comes from registers, and B
/// lies in eights of rows of 16 bytes, without a swizzle.
tile::Status multiply_in_eights(const std::uint32_t* a, const std::uint32_t* b, float* d);

}  // namespace ptx_test
