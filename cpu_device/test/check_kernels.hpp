// Pairs of kernels: one that is right, and the same with a line changed or left out. Lines that a
// report names are marked in check_kernels.cu by a comment, `// [kernel.what]`.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <span>

namespace device_test {

inline constexpr unsigned kCount = 250;  // elements of `in` and `out`: no multiple of 4
inline constexpr int kRows = 5, kColumns = 7, kLd = 9;  // of `matrix`
inline constexpr unsigned kCounts = 64;

/// What the pairs compute with. All but `fresh` have names in reports: those of the members.
struct Memory {
  const float* in;
  float* out;           // not written yet
  const float* matrix;  // a row is followed by padding
  int* counts;          // all 0
  __half* halves;       // [kCounts], all 0
  unsigned char* letters;
  float* fresh;       // cudaMalloc's, kCount elements, not written
  const float* heap;  // the host's
};

struct Pair {
  const char* kernel;
  void (*launch)(bool mistake, const Memory& memory);
};
extern const std::span<const Pair> kPairs;

/// Half of the threads of two blocks store to `found`: all of them 1, or each its number.
void store_found(int* found, bool same);

}  // namespace device_test
