// Atomic functions (CUDA C++ Programming Guide, "Atomic Functions"). All are relaxed, as CUDA's
// are, and return the old value. Blocks run on several OS threads, so they are real atomics. They
// are inlined, so that a report of the check build names the line that calls them.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cpu_device/check.h"
#include "cpu_device/qualifiers.h"

namespace cpu_device {

/// Replaces *address by change(*address) in one step, for any type of 2, 4 or 8 bytes.
template <class T, class Change>
__forceinline__ T atomic_change(T* address, Change change) {
  using Bits = std::conditional_t<sizeof(T) == 8, uint64_t,
                                  std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
  static_assert(sizeof(T) == sizeof(Bits));
  auto* bits = reinterpret_cast<Bits*>(address);
  Bits seen = __atomic_load_n(bits, __ATOMIC_RELAXED);
  for (;;) {
    const T old = std::bit_cast<T>(seen);
    const Bits wanted = std::bit_cast<Bits>(static_cast<T>(change(old)));
    if (__atomic_compare_exchange_n(bits, &seen, wanted, true, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED)) {
      return old;
    }
  }
}

// CUDA has each function for certain types only; the others are errors here too.
template <class T, class... Types>
concept OneOf = (std::is_same_v<T, Types> || ...);
using Long = unsigned long long;

}  // namespace cpu_device

template <cpu_device::OneOf<int, unsigned, cpu_device::Long> T>
__forceinline__ T atomicAdd(T* address, std::type_identity_t<T> value) {
  return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}
// Floating point, and the half types of cuda_fp16.h and cuda_bf16.h.
template <class T>
requires(!std::is_integral_v<T>) __forceinline__ T
    atomicAdd(T* address, std::type_identity_t<T> value) {
  return cpu_device::atomic_change(address, [value](T old) { return old + value; });
}
template <cpu_device::OneOf<int, unsigned> T>
__forceinline__ T atomicSub(T* address, std::type_identity_t<T> value) {
  return __atomic_fetch_sub(address, value, __ATOMIC_RELAXED);
}
template <cpu_device::OneOf<int, unsigned, cpu_device::Long, float> T>
__forceinline__ T atomicExch(T* address, std::type_identity_t<T> value) {
  return cpu_device::atomic_change(address, [value](T) { return value; });
}
template <cpu_device::OneOf<int, unsigned, long long, cpu_device::Long> T>
__forceinline__ T atomicMin(T* address, std::type_identity_t<T> value) {
  return cpu_device::atomic_change(address, [value](T old) { return value < old ? value : old; });
}
template <cpu_device::OneOf<int, unsigned, long long, cpu_device::Long> T>
__forceinline__ T atomicMax(T* address, std::type_identity_t<T> value) {
  return cpu_device::atomic_change(address, [value](T old) { return old < value ? value : old; });
}
/// ((old >= limit) ? 0 : old + 1)
__forceinline__ unsigned atomicInc(unsigned* address, unsigned limit) {
  return cpu_device::atomic_change(address,
                                   [limit](unsigned old) { return old >= limit ? 0u : old + 1; });
}
/// ((old == 0 || old > limit) ? limit : old - 1)
__forceinline__ unsigned atomicDec(unsigned* address, unsigned limit) {
  return cpu_device::atomic_change(
      address, [limit](unsigned old) { return old == 0 || old > limit ? limit : old - 1; });
}
template <cpu_device::OneOf<int, unsigned, cpu_device::Long, unsigned short> T>
__forceinline__ T atomicCAS(T* address, std::type_identity_t<T> expected,
                            std::type_identity_t<T> value) {
  // By this order the check build knows it from other functions that compare.
  constexpr int kOrder = cpu_device::kChecking ? __ATOMIC_ACQ_REL : __ATOMIC_RELAXED;
  __atomic_compare_exchange_n(address, &expected, value, false, kOrder, __ATOMIC_RELAXED);
  return expected;
}
template <cpu_device::OneOf<int, unsigned, cpu_device::Long> T>
__forceinline__ T atomicAnd(T* address, std::type_identity_t<T> value) {
  return __atomic_fetch_and(address, value, __ATOMIC_RELAXED);
}
template <cpu_device::OneOf<int, unsigned, cpu_device::Long> T>
__forceinline__ T atomicOr(T* address, std::type_identity_t<T> value) {
  return __atomic_fetch_or(address, value, __ATOMIC_RELAXED);
}
template <cpu_device::OneOf<int, unsigned, cpu_device::Long> T>
__forceinline__ T atomicXor(T* address, std::type_identity_t<T> value) {
  return __atomic_fetch_xor(address, value, __ATOMIC_RELAXED);
}

// All are atomic for every thread that can access the memory.
#define CPU_DEVICE_SCOPES(name)                                   \
  template <class T, class... Values>                             \
  __forceinline__ T name##_block(T* address, Values... values) {  \
    return name(address, values...);                              \
  }                                                               \
  template <class T, class... Values>                             \
  __forceinline__ T name##_system(T* address, Values... values) { \
    return name(address, values...);                              \
  }
CPU_DEVICE_SCOPES(atomicAdd)
CPU_DEVICE_SCOPES(atomicSub)
CPU_DEVICE_SCOPES(atomicExch)
CPU_DEVICE_SCOPES(atomicMin)
CPU_DEVICE_SCOPES(atomicMax)
CPU_DEVICE_SCOPES(atomicInc)
CPU_DEVICE_SCOPES(atomicDec)
CPU_DEVICE_SCOPES(atomicCAS)
CPU_DEVICE_SCOPES(atomicAnd)
CPU_DEVICE_SCOPES(atomicOr)
CPU_DEVICE_SCOPES(atomicXor)
#undef CPU_DEVICE_SCOPES
