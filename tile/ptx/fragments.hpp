// Which lane of a warp holds which element of a matrix that a tensor-core instruction reads or
// writes. The wrappers beside this file refer to it, the CPU device computes with it, tests and
// figures are made from it.
//
// PTX ISA, "Matrix Fragments for mma.m16n8k8", ".m16n8k16" and ".m16n8k32", and "ldmatrix":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions
//
// Its tables have a formula for each shape and type. One rule gives them all. A 32-bit register of
// a warp is a tile of 8 rows of 16 bytes: the lanes 4r to 4r + 3 share row r, four bytes each.
//
//                 bytes 0-3  4-7  8-11  12-15
//         row 0     lane 0     1     2      3
//         row 1          4     5     6      7
//           …
//         row 7         28    29    30     31
//
// Four bytes are two elements of 16 bits, four of 8 or one of 32; the first lies in the lowest
// bits. A fragment is one to four such tiles: A has a tile's rows as its own, and B, which is read
// by columns, has its columns as a tile's rows.
#pragma once

#include <cuda_runtime_api.h>  // __host__ and __device__

namespace tile::ptx {

/// A place in a matrix.
struct Element {
  int row, col;
  friend constexpr bool operator==(const Element&, const Element&) = default;
};

/// Elements of this width in a register, and in the 16 bytes of a tile's row.
template <int kBits>
inline constexpr int kPerRegister = 32 / kBits;
template <int kBits>
inline constexpr int kPerTileRow = 128 / kBits;

/// Element `i` of what `lane` holds of a tile.
template <int kBits>
__host__ __device__ constexpr Element element_of_tile(int lane, int i) {
  return {lane / 4, lane % 4 * kPerRegister<kBits> + i};
}

// In the following functions i counts the elements of all registers of a lane: the PTX ISA's a0,
// a1, …; element i is in register i / kPerRegister.

/// ldmatrix and stmatrix of tiles of 16 bits. Register j of a lane belongs to tile j, and its
/// element i, 0 or 1, to this place in it. With .trans each tile is transposed on its way.
__host__ __device__ constexpr Element element_of_ldmatrix(int lane, int i) {
  return element_of_tile<16>(lane, i);
}
__host__ __device__ constexpr Element element_of_ldmatrix_trans(int lane, int i) {
  const Element element = element_of_tile<16>(lane, i);
  return {element.col, element.row};
}

/// A, m16 by k: its tiles in the order upper left, lower left, upper right, lower right. m16n8k8 of
/// 16 bits has the first two, all others have four: k16 of 16 bits, k32 of 8 bits, k8 of tf32.
template <int kBits>
__host__ __device__ constexpr Element element_of_a(int lane, int i) {
  const int tile = i / kPerRegister<kBits>;
  const Element element = element_of_tile<kBits>(lane, i % kPerRegister<kBits>);
  return {element.row + tile % 2 * 8, element.col + tile / 2 * kPerTileRow<kBits>};
}

/// B, k by n8: a tile holds 16 bytes of each column, the second tile the rows that follow. m16n8k8
/// of 16 bits has one tile, all others have two.
template <int kBits>
__host__ __device__ constexpr Element element_of_b(int lane, int i) {
  const int tile = i / kPerRegister<kBits>;
  const Element element = element_of_tile<kBits>(lane, i % kPerRegister<kBits>);
  return {element.col + tile * kPerTileRow<kBits>, element.row};
}

/// C and D, m16 by n8. fp16 accumulators, two in a register, are two tiles, the upper and the
/// lower. fp32 accumulators stand at the same places, one in a register.
__host__ __device__ constexpr Element element_of_d(int lane, int i) {
  const Element element = element_of_tile<16>(lane, i % 2);
  return {element.row + i / 2 * 8, element.col};
}

/// D of wgmma, 64 by any number of columns: warp w of the warpgroup has rows 16 w to 16 w + 15, and
/// of each 8 columns what element_of_d has.
__host__ __device__ constexpr Element element_of_wgmma(int thread, int i) {
  const Element element = element_of_d(thread % 32, i % 4);
  return {element.row + thread / 32 * 16, element.col + i / 4 * 8};
}

/// Whether 32 lanes of kCount elements each hold every element of a kRows x kCols matrix once.
template <int kRows, int kCols, int kCount>
constexpr bool holds_each_element_once(Element (*element)(int lane, int i)) {
  bool held[kRows][kCols] = {};
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < kCount; ++i) {
      const Element e = element(lane, i);
      if (e.row < 0 || e.row >= kRows || e.col < 0 || e.col >= kCols || held[e.row][e.col]) {
        return false;
      }
      held[e.row][e.col] = true;
    }
  }
  return 32 * kCount == kRows * kCols;
}

static_assert(holds_each_element_once<8, 8, 2>(element_of_ldmatrix));
static_assert(holds_each_element_once<8, 8, 2>(element_of_ldmatrix_trans));
static_assert(holds_each_element_once<16, 8, 4>(element_of_a<16>));   // m16n8k8, 16 bits
static_assert(holds_each_element_once<16, 16, 8>(element_of_a<16>));  // m16n8k16
static_assert(holds_each_element_once<16, 8, 4>(element_of_a<32>));   // m16n8k8, tf32
static_assert(holds_each_element_once<16, 32, 16>(element_of_a<8>));  // m16n8k32
static_assert(holds_each_element_once<8, 8, 2>(element_of_b<16>));
static_assert(holds_each_element_once<16, 8, 4>(element_of_b<16>));
static_assert(holds_each_element_once<8, 8, 2>(element_of_b<32>));
static_assert(holds_each_element_once<32, 8, 8>(element_of_b<8>));
static_assert(holds_each_element_once<16, 8, 4>(element_of_d));

}  // namespace tile::ptx
