// For kernels whose warpgroups (four warps, the first a multiple of four) do different work:
// barriers for some of a block's threads, and registers moved from one warpgroup to another.
#pragma once

#include <cuda_runtime.h>

#include <cstring>

namespace tile {
inline constexpr int kWarpgroup = 128;  // threads

/// The number of the thread's warp in its block, for all lanes of the warp at one place. Each lane
/// could compute it, but nvcc knows that a value shuffled from lane 0 is the same in all lanes: it
/// keeps it, and the addresses and descriptors made of it, in uniform registers, where wgmma and
/// TMA expect them.
__device__ __forceinline__ int warp_in_block() {
  return __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
}

/// The same for its warpgroup.
__device__ __forceinline__ int warpgroup_in_block() { return warp_in_block() * 32 / kWarpgroup; }

/// What the first lane of the warp reads, for all lanes of it: the others do not read. Shuffled, so
/// that ptxas knows that a warp which branches by it stays together, as wgmma must have it.
template <class T>
__device__ __forceinline__ T read_by_first_lane(const T& shared) {
  int words[sizeof(T) / sizeof(int)] = {};
  static_assert(sizeof words == sizeof(T));
  if (threadIdx.x % 32 == 0) std::memcpy(words, &shared, sizeof words);
  for (int& word : words) word = __shfl_sync(~0u, word, 0);
  T copy;
  std::memcpy(&copy, words, sizeof copy);
  return copy;
}
}  // namespace tile

#ifdef CPU_DEVICE

#include "cpu_device/warpgroup.h"

namespace tile::ptx {
using cpu_device::barrier_arrive;
using cpu_device::barrier_sync;
using cpu_device::setmaxnreg_dec;
using cpu_device::setmaxnreg_inc;
}  // namespace tile::ptx

#else

namespace tile::ptx {

/// Waits until `threads` threads, a multiple of 32, have come to barrier `id`, 1 to 15, here or at
/// barrier_arrive(). After it all see what they did before. Barrier 0 is __syncthreads().
///     barrier.sync.aligned id, threads;
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-bar
__device__ __forceinline__ void barrier_sync(int id, int threads) {
  asm volatile("barrier.sync.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Comes to the barrier and goes on: for a thread that publishes something and does not wait.
///     barrier.arrive.aligned id, threads;
__device__ __forceinline__ void barrier_arrive(int id, int threads) {
  asm volatile("barrier.arrive.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// A block starts with the same number of registers for each thread, 65,536 for all of a
/// multiprocessor. A warpgroup that copies needs few, one that multiplies many. kRegisters is a
/// multiple of 8 from 24 to 256. All threads of the warpgroup call it at one place; the new ones
/// hold anything. inc waits until other warpgroups of the block have given up enough registers, for
/// ever if they never do. The kernel has __launch_bounds__ with both numbers, threads and blocks,
/// or nvcc ignores it.
///     setmaxnreg.inc.sync.aligned.u32 registers;
/// Compute capability 9.0 with its own features (sm_90a).
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#miscellaneous-instructions-setmaxnreg
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_inc() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#else
  __trap();
#endif
}

/// Gives up all registers of a thread above kRegisters.
///     setmaxnreg.dec.sync.aligned.u32 registers;
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_dec() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#else
  __trap();
#endif
}

}  // namespace tile::ptx

#endif

namespace tile {

/// Warpgroups 1 to kCount of a block take turns at something, in this order and round again. All
/// take as many turns. kFirstBarrier and the next kCount - 1 are theirs. If not kOn, nothing waits.
template <int kCount, int kFirstBarrier, bool kOn>
class Turns {
 public:
  __device__ __forceinline__ explicit Turns(int warpgroup) : own_(warpgroup) {
    if (own_ == kCount) pass();  // the first one begins
  }
  /// Waits until the warpgroup before has passed the turn on.
  __device__ __forceinline__ void take() const {
    if (kOn) ptx::barrier_sync(kFirstBarrier + own_ - 1, 2 * kWarpgroup);
  }
  __device__ __forceinline__ void pass() const {
    if (kOn) ptx::barrier_arrive(kFirstBarrier + own_ % kCount, 2 * kWarpgroup);
  }
  /// After the last turn of all: the barrier that it was passed on by is left as it began.
  __device__ __forceinline__ void end() const {
    if (own_ == 1) take();
  }

 private:
  int own_;
};

}  // namespace tile
