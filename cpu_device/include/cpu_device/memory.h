// Loads and stores with cache hints, fences, and what else a thread may say to the machine
// (CUDA C++ Programming Guide, "Read-Only Data Cache Load Function", "Memory Fence Functions").
#pragma once

#include <atomic>
#include <chrono>

#include "cpu_device/qualifiers.h"
#include "cpu_device/sync.h"

namespace cpu_device {
/// Ends the launch with cudaErrorLaunchFailure.
void trap();
}  // namespace cpu_device

// The hints mean nothing here.
#define CPU_DEVICE_LOAD(name)                \
  template <class T>                         \
  __forceinline__ T name(const T* address) { \
    return *address;                         \
  }
CPU_DEVICE_LOAD(__ldg)
CPU_DEVICE_LOAD(__ldca)
CPU_DEVICE_LOAD(__ldcg)
CPU_DEVICE_LOAD(__ldcs)
CPU_DEVICE_LOAD(__ldlu)
CPU_DEVICE_LOAD(__ldcv)
#undef CPU_DEVICE_LOAD

#define CPU_DEVICE_STORE(name)                     \
  template <class T>                               \
  __forceinline__ void name(T* address, T value) { \
    *address = value;                              \
  }
CPU_DEVICE_STORE(__stwb)
CPU_DEVICE_STORE(__stcg)
CPU_DEVICE_STORE(__stcs)
CPU_DEVICE_STORE(__stwt)
#undef CPU_DEVICE_STORE

// Threads of one block share an OS thread, so the block's fence only has to hold the compiler.
inline void __threadfence_block() { std::atomic_signal_fence(std::memory_order_seq_cst); }
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence_system() { std::atomic_thread_fence(std::memory_order_seq_cst); }

/// Lets other threads of the block run, whatever the duration.
inline void __nanosleep(unsigned) { cpu_device::yield(); }
[[noreturn]] inline void __trap() {
  cpu_device::trap();
  __builtin_unreachable();
}
inline long long clock64() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

#if !__has_builtin(__builtin_assume)  // clang has it
#define __builtin_assume(condition) ((condition) ? (void)0 : __builtin_unreachable())
#endif
