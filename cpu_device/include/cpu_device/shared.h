// Shared memory: an arena a block. The translator turns `__shared__ T x[n];` into a struct and a
// call of `shared`, and `extern __shared__ T x[];` into a call of `dynamic_shared`.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cpu_device/builtins.h"
#include "cpu_device/check.h"

namespace cpu_device {

/// A shared declaration: the names it declares and where it stands.
struct SharedName {
  const char* names;
  const char* file;
  int line;
};

/// Where a declaration lies in the arena: the launch in the upper half, the offset in the lower.
/// The first thread of a launch that reaches the declaration places it, for all blocks alike.
struct SharedSlot {
  std::atomic<uint64_t> launch_and_offset{0};
};

/// The arena of this OS thread's current block, and the number of the running launch.
extern CPU_DEVICE_THREAD_LOCAL char* shared_arena;
extern CPU_DEVICE_THREAD_LOCAL uint32_t launch_number;

/// Places a declaration, or ends the launch if it does not fit. Returns its offset.
uint32_t place_shared(SharedSlot& slot, size_t bytes, size_t alignment, const SharedName& name);

template <class Declaration>
Declaration& shared(const SharedName& name) {
  static_assert(std::is_trivially_default_constructible_v<Declaration>,
                "shared memory cannot run constructors");
  static constinit SharedSlot slot;
  const uint64_t where = slot.launch_and_offset.load(std::memory_order_relaxed);
  const uint32_t offset = (where >> 32) == launch_number
                              ? static_cast<uint32_t>(where)
                              : place_shared(slot, sizeof(Declaration), alignof(Declaration), name);
  return *reinterpret_cast<Declaration*>(shared_arena + offset);
}

/// In the check build, as many bytes more lie between two arrays of one declaration. A multiple of
/// every alignment that the arena allows.
inline constexpr size_t kApart = 1024;

/// The array number kIndex of a declaration, by its name.
template <size_t kIndex, class T>
T& shared_array(T& array, const char* name) {
  if constexpr (!kChecking) return array;
  T& apart = *reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(&array) + kIndex * kApart);
  check::name_shared(const_cast<const std::remove_cv_t<T>*>(&apart),
                     {name, check::shape_of<T>(), false});
  return apart;
}

/// The dynamic part, `bytes` of the launch's third parameter, begins the arena, which is aligned to
/// far more than any declaration asks for.
template <class T, size_t kAlignment>
T* dynamic_shared(const SharedName& name) {
  static_assert(kAlignment <= 1024, "the arena is not aligned to that");
  check::name_shared(shared_arena, {name.names, check::shape_of<T>(), true});
  return reinterpret_cast<T*>(shared_arena);
}

}  // namespace cpu_device
