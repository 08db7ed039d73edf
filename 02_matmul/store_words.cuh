// C whose rows may begin anywhere, stored by way of shared memory, a word of two columns at a time.
#pragma once

#include "hopper_output.cuh"
#include "tile/ptx/convert.cuh"

namespace matmul {

/// Stores a warp's part of C, 16 rows from (row, col) on, whose rows may begin anywhere. The sums
/// go through a box in shared memory, so that 32 lanes store 32 neighbouring words, 128 bytes.
/// Straight from registers an instruction would store 8 or 16 bytes of each of eight rows, and L2
/// takes as long for a part of a sector as for all of it.
template <class T, int kSums>
__device__ void store_words(const float (&sums)[kSums], const Output<T>& c,
                            unsigned char* box_smem,  // OutputBox::kBytes of this warp
                            std::int64_t row, std::int64_t col, std::int64_t m, std::int64_t n) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto rows = static_cast<int>(min(m - row, std::int64_t{OutputBox::kRows}));
#pragma unroll
  for (int part = 0; part < 2 * kSums / kBoxElements; ++part, col += kBoxElements) {
    std::uint32_t pairs[kBoxElements / 4];
#pragma unroll
    for (int i = 0; i < kBoxElements / 4; ++i) {
      const float* sum = sums + part * kBoxElements / 2 + 2 * i;
      pairs[i] = tile::ptx::pack<T>(sum[0], sum[1]);
    }
    OutputBox::put(tile::ptx::SharedAddress(box_smem), pairs);
    __syncwarp();  // all lanes have stored theirs
    const auto cols = static_cast<int>(min(n - col, std::int64_t{kBoxElements}));
#pragma unroll 4
    for (int y = 0; y < rows; ++y) {
      auto* const to = reinterpret_cast<std::uint16_t*>(c.data + (row + y) * c.ld + col);
      const int place = y * 128 + tile::swizzle_128B(y, lane / 4) * 16 + lane % 4 * 4;
      auto word = *reinterpret_cast<const std::uint32_t*>(box_smem + place);  // columns x and x + 1
      const std::uint32_t next = __shfl_down_sync(~0u, word, 1);
      int x = 2 * lane;
      if (reinterpret_cast<std::uintptr_t>(to) % 4 != 0) {  // words begin at odd columns
        if (x == 0 && cols > 0) to[0] = static_cast<std::uint16_t>(word);
        word = word >> 16 | next << 16, ++x;
      }
      if (x + 1 < cols) {
        *reinterpret_cast<std::uint32_t*>(to + x) = word;
      } else if (x < cols) {
        to[x] = static_cast<std::uint16_t>(word);
      }
    }
    __syncwarp();  // all lanes have read them
  }
}

}  // namespace matmul
