// How many threads and blocks a multiprocessor holds, for a kernel's __launch_bounds__.
// https://docs.nvidia.com/cuda/cuda-c-programming-guide/#features-and-technical-specifications
#pragma once

namespace tile {

/// What each card of the capability for which this is compiled holds at least. ptxas ends with an
/// error where __launch_bounds__ ask for more.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
inline constexpr int kResidentThreads = 1536;
#else
inline constexpr int kResidentThreads = 1024;
#endif
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 800 || __CUDA_ARCH__ >= 890
inline constexpr int kResidentBlocks = 24;
#else
inline constexpr int kResidentBlocks = 16;
#endif

/// So many blocks of `threads` threads, or as many as a multiprocessor holds.
constexpr int resident_blocks(int blocks, int threads) {
  const int most = kResidentThreads / threads;
  const int fit = most < kResidentBlocks ? most : kResidentBlocks;
  return blocks < fit ? blocks : fit;
}

}  // namespace tile
