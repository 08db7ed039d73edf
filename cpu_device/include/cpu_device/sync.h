// Barriers and warp-level primitives (CUDA C++ Programming Guide, "Synchronization Functions",
// "Warp Vote / Match / Reduce / Shuffle Functions"). They may be called from device code only.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cpu_device/builtins.h"
#include "cpu_device/qualifiers.h"
#include "cpu_device/site.h"

namespace cpu_device {

/// What the lanes of one warp bring to a collective call and what they take away. `argument` is
/// the shuffle_argument() of a shuffle.
struct WarpExchange {
  uint64_t value[32];
  uint32_t argument[32];
  uint64_t result[32];
};

/// One collective. The last lane to arrive runs `body` for all lanes of `lanes`.
struct WarpCall {
  const char* name;
  void (*body)(WarpExchange& exchange, uint32_t lanes);
};

/// Waits until every lane of `mask` has called with the same mask and collective, then returns
/// this lane's result. A lane that does not exist (the block's last warp may be short) is not
/// waited for; one that has returned is, so that the launch ends with a report.
uint64_t warp_collective(const WarpCall& call, uint32_t mask, uint64_t value, uint32_t argument,
                         Site site);

struct BarrierCall {
  const char* name;
};

struct BarrierResult {
  int count;  // threads whose predicate was not 0
  bool all;
};

BarrierResult block_barrier(const BarrierCall& call, bool predicate, Site site);

/// Lets the other threads of the block run.
void yield();

/// Lanes of this warp that reach the same call while all others wait or have returned.
uint32_t active_mask(Site site);

/// This thread's number in its warp.
uint32_t lane_id();

extern const BarrierCall kSyncthreads, kSyncthreadsCount, kSyncthreadsAnd, kSyncthreadsOr;
extern const WarpCall kSyncwarp, kShfl, kShflUp, kShflDown, kShflXor, kAll, kAny, kBallot,
    kMatchAny, kMatchAll, kReduceAddInt, kReduceMinInt, kReduceMaxInt, kReduceAddUnsigned,
    kReduceMinUnsigned, kReduceMaxUnsigned, kReduceAnd, kReduceOr, kReduceXor;

/// A value of up to 8 bytes as an integer, and back.
template <class T>
__forceinline__ uint64_t to_bits(T value) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

template <class T>
__forceinline__ T from_bits(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

/// A shuffle works inside sections of `width` lanes, a power of two, and takes the low five bits of
/// its argument; PTX ISA, `shfl.sync`.
constexpr uint32_t shuffle_argument(int width, uint32_t argument) {
  return static_cast<uint32_t>(width) << 5 | argument % 32;
}

}  // namespace cpu_device

__forceinline__ void __syncthreads(cpu_device::Site site = cpu_device::Site::here()) {
  cpu_device::block_barrier(cpu_device::kSyncthreads, true, site);
}
__forceinline__ int __syncthreads_count(int predicate,
                                        cpu_device::Site site = cpu_device::Site::here()) {
  return cpu_device::block_barrier(cpu_device::kSyncthreadsCount, predicate != 0, site).count;
}
__forceinline__ int __syncthreads_and(int predicate,
                                      cpu_device::Site site = cpu_device::Site::here()) {
  return cpu_device::block_barrier(cpu_device::kSyncthreadsAnd, predicate != 0, site).all;
}
__forceinline__ int __syncthreads_or(int predicate,
                                     cpu_device::Site site = cpu_device::Site::here()) {
  return cpu_device::block_barrier(cpu_device::kSyncthreadsOr, predicate != 0, site).count > 0;
}

__forceinline__ void __syncwarp(unsigned mask = 0xffffffffu,
                                cpu_device::Site site = cpu_device::Site::here()) {
  cpu_device::warp_collective(cpu_device::kSyncwarp, mask, 0, 0, site);
}

template <class T>
__forceinline__ T __shfl_sync(unsigned mask, T value, int source, int width = 32,
                              cpu_device::Site site = cpu_device::Site::here()) {
  return cpu_device::from_bits<T>(cpu_device::warp_collective(
      cpu_device::kShfl, mask, cpu_device::to_bits(value),
      cpu_device::shuffle_argument(width, static_cast<uint32_t>(source)), site));
}

template <class T>
__forceinline__ T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                                 cpu_device::Site site = cpu_device::Site::here()) {
  return cpu_device::from_bits<T>(
      cpu_device::warp_collective(cpu_device::kShflUp, mask, cpu_device::to_bits(value),
                                  cpu_device::shuffle_argument(width, delta), site));
}

template <class T>
__forceinline__ T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                                   cpu_device::Site site = cpu_device::Site::here()) {
  return cpu_device::from_bits<T>(
      cpu_device::warp_collective(cpu_device::kShflDown, mask, cpu_device::to_bits(value),
                                  cpu_device::shuffle_argument(width, delta), site));
}

template <class T>
__forceinline__ T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32,
                                  cpu_device::Site site = cpu_device::Site::here()) {
  return cpu_device::from_bits<T>(cpu_device::warp_collective(
      cpu_device::kShflXor, mask, cpu_device::to_bits(value),
      cpu_device::shuffle_argument(width, static_cast<uint32_t>(lane_mask)), site));
}

__forceinline__ int __all_sync(unsigned mask, int predicate,
                               cpu_device::Site site = cpu_device::Site::here()) {
  return cpu_device::warp_collective(cpu_device::kAll, mask, predicate != 0, 0, site) != 0;
}
__forceinline__ int __any_sync(unsigned mask, int predicate,
                               cpu_device::Site site = cpu_device::Site::here()) {
  return cpu_device::warp_collective(cpu_device::kAny, mask, predicate != 0, 0, site) != 0;
}
__forceinline__ unsigned __ballot_sync(unsigned mask, int predicate,
                                       cpu_device::Site site = cpu_device::Site::here()) {
  return static_cast<unsigned>(
      cpu_device::warp_collective(cpu_device::kBallot, mask, predicate != 0, 0, site));
}
__forceinline__ unsigned __activemask(cpu_device::Site site = cpu_device::Site::here()) {
  return cpu_device::active_mask(site);
}

/// Lanes of `mask` that hold the same value as this one.
template <class T>
__forceinline__ unsigned __match_any_sync(unsigned mask, T value,
                                          cpu_device::Site site = cpu_device::Site::here()) {
  return static_cast<unsigned>(cpu_device::warp_collective(cpu_device::kMatchAny, mask,
                                                           cpu_device::to_bits(value), 0, site));
}

/// `mask` if all its lanes hold the same value, else 0; `*predicate` says which.
template <class T>
__forceinline__ unsigned __match_all_sync(unsigned mask, T value, int* predicate,
                                          cpu_device::Site site = cpu_device::Site::here()) {
  const uint64_t same =
      cpu_device::warp_collective(cpu_device::kMatchAll, mask, cpu_device::to_bits(value), 0, site);
  *predicate = same != 0;
  return static_cast<unsigned>(same);
}

#define CPU_DEVICE_REDUCE(function, T, call)                                                       \
  __forceinline__ T function(unsigned mask, T value,                                               \
                             cpu_device::Site site = cpu_device::Site::here()) {                   \
    return cpu_device::from_bits<T>(                                                               \
        cpu_device::warp_collective(cpu_device::call, mask, cpu_device::to_bits(value), 0, site)); \
  }
CPU_DEVICE_REDUCE(__reduce_add_sync, int, kReduceAddInt)
CPU_DEVICE_REDUCE(__reduce_min_sync, int, kReduceMinInt)
CPU_DEVICE_REDUCE(__reduce_max_sync, int, kReduceMaxInt)
CPU_DEVICE_REDUCE(__reduce_add_sync, unsigned, kReduceAddUnsigned)
CPU_DEVICE_REDUCE(__reduce_min_sync, unsigned, kReduceMinUnsigned)
CPU_DEVICE_REDUCE(__reduce_max_sync, unsigned, kReduceMaxUnsigned)
CPU_DEVICE_REDUCE(__reduce_and_sync, unsigned, kReduceAnd)
CPU_DEVICE_REDUCE(__reduce_or_sync, unsigned, kReduceOr)
CPU_DEVICE_REDUCE(__reduce_xor_sync, unsigned, kReduceXor)
#undef CPU_DEVICE_REDUCE
