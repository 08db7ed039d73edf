// Kernels with barriers, each of which can be left out; and kernels that record who runs when.
#pragma once

#include <cuda_runtime_api.h>

namespace device_test {

inline constexpr unsigned kTile = 8;   // of the matrix product: blocks of kTile x kTile
inline constexpr unsigned kRow = 256;  // elements, and threads, of each of the others' blocks

/// A kernel over whole numbers in float, so that its result is exact in any order; the number of
/// its barriers; and a launch without barrier number `without`, from 1, or with all for 0.
/// in is [size], out is [size].
struct Subject {
  const char* name;
  int barriers;
  void (*launch)(const float* in, float* out, int without);
  unsigned size;
};

// in is A [n, n] and below it B [n, n]; out is A·B, and the rest stays.
inline constexpr unsigned kMatrix = 3 * kTile;
inline constexpr unsigned kBlocks = 5;

extern const Subject kTiledMatmul;     // tiles of A and B in shared memory
extern const Subject kReverse;         // of each row
extern const Subject kBlockReduction;  // out[i] is the sum of i's row: by shuffles, then warps
extern const Subject kScan;            // out[i] is the sum of i's row up to i
extern const Subject kSoftmax;         // out[i] is exp2(in[i] - max) / sum, of i's row

/// The place of each thread in the order in which threads come by: starts[place] before a barrier
/// and resumed[place] after it, numbers of threads in the grid. One worker.
void record_order(int* starts, int* resumed, unsigned blocks, unsigned threads);

}  // namespace device_test
