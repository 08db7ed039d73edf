// The descriptor that tells wgmma where an operand lies in shared memory: 64 bits, made from an
// address, two distances and the swizzle.
// PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions: Matrix Descriptor Format":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-shared-memory-layout
//
//     bits 0-13    address / 16             bits 49-51   where in the swizzle's pattern the tile
//     bits 16-29   leading distance / 16                 begins: 0, at its beginning
//     bits 32-45   stride distance / 16     bits 62-63   swizzle: 0 none, 1 128, 2 64, 3 32 bytes
//
// A tile with the swizzle of 128 bytes is what TMA makes of a box of 64 elements of two bytes (128
// of one byte) by any number of rows: rows of 128 bytes, eight of them the pattern's 1,024 bytes,
// where tiles begin.
//
// Along k (Major::k) a row is one m or n, and has 128 bytes of k. The stride distance leads to the
// next eight rows, 1,024 bytes. The next 32 bytes of k, one wgmma further, begin 32 bytes on; the
// hardware applies the swizzle to the whole address. The leading distance is not used.
//
// Along m and n (Major::mn) a row is one k, and has 64 m or n. The stride distance leads to the
// next eight k, 1,024 bytes; the leading distance to the next 64 m or n, a box further. The next 16
// k begin 2,048 bytes on.
//
// Without a swizzle, along k, eight rows of 16 bytes of k lie together, 128 bytes. The leading
// distance leads to the next 16 bytes of k, the stride distance to the next eight rows.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "tile/ptx/shared_address.cuh"

#ifdef CPU_DEVICE
#include "cpu_device/wgmma_address.h"
#endif

namespace tile::ptx {

/// 18 bits of an address in shared memory, as wgmma counts: from the beginning of the block's.
__device__ __forceinline__ std::uint32_t wgmma_address(SharedAddress address) {
#ifdef CPU_DEVICE
  return cpu_device::wgmma_address(address);
#else
  return address.value();
#endif
}

class WgmmaDescriptor {
 public:
  /// An operand of 16 or 8 bits along k, with the swizzle of 128 bytes.
  static __device__ __forceinline__ WgmmaDescriptor along_k(SharedAddress tile) {
    return WgmmaDescriptor(tile, kUnused, kPattern);
  }
  /// An operand of 16 bits along m or n, with the swizzle of 128 bytes. `box_bytes` is from 64 of m
  /// or n to the next 64: the rows of a box, one for each k, times 128 bytes.
  static __device__ __forceinline__ WgmmaDescriptor along_mn(SharedAddress tile, int box_bytes) {
    return WgmmaDescriptor(tile, box_bytes, kPattern);
  }
  /// An operand along k in eights of rows of 16 bytes, without a swizzle. `leading_bytes` is from
  /// the first 16 bytes of k to the other 16, `stride_bytes` from eight rows to the next.
  static __device__ __forceinline__ WgmmaDescriptor along_k_in_eights(SharedAddress tile,
                                                                      int leading_bytes,
                                                                      int stride_bytes) {
    return WgmmaDescriptor(WgmmaDescriptor(tile, leading_bytes, stride_bytes).bits_ ^ kSwizzle128);
  }
  /// The operand so many bytes further, a multiple of 16.
  __device__ __forceinline__ WgmmaDescriptor operator+(int bytes) const {
    return WgmmaDescriptor(bits_ + static_cast<std::uint64_t>(bytes / 16));
  }
  __device__ __forceinline__ std::uint64_t bits() const { return bits_; }

 private:
  static constexpr int kPattern = 1024;  // 8 rows of 128 bytes
  static constexpr int kUnused = 16;     // CUTLASS has 1 here, too
  static constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;

  __device__ __forceinline__ WgmmaDescriptor(SharedAddress tile, int leading, int stride)
      : bits_(kSwizzle128 | static_cast<std::uint64_t>(stride / 16) << 32 |
              static_cast<std::uint64_t>(leading / 16) << 16 |
              (wgmma_address(tile) & 0x3ffff) / 16) {}
  explicit __device__ __forceinline__ WgmmaDescriptor(std::uint64_t bits) : bits_(bits) {}

  std::uint64_t bits_;
};

}  // namespace tile::ptx
