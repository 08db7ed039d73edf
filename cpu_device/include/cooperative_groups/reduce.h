// The CPU device's stand-in for CUDA's header of the same name.
#pragma once

#include "cooperative_groups.h"

namespace cooperative_groups {

#define CPU_DEVICE_OPERATION(name, result)                        \
  template <class T = void>                                       \
  struct name {                                                   \
    T operator()(const T& a, const T& b) const { return result; } \
  };                                                              \
  template <>                                                     \
  struct name<void> {                                             \
    template <class T>                                            \
    T operator()(const T& a, const T& b) const {                  \
      return result;                                              \
    }                                                             \
  };
CPU_DEVICE_OPERATION(plus, a + b)
CPU_DEVICE_OPERATION(less, b < a ? b : a)
CPU_DEVICE_OPERATION(greater, a < b ? b : a)
CPU_DEVICE_OPERATION(bit_and, a& b)
CPU_DEVICE_OPERATION(bit_or, a | b)
CPU_DEVICE_OPERATION(bit_xor, a ^ b)
#undef CPU_DEVICE_OPERATION

/// The combination of all threads' values, for each of them: by halves, as CUDA does it.
template <class Group, class T, class Operation>
T reduce(const Group& group, T value, Operation operation, Site site = Site::here()) {
  for (unsigned count = group.size(); count > 1; count = (count + 1) / 2) {
    const T other = group.shfl_down(value, (count + 1) / 2, site);
    if (group.thread_rank() + (count + 1) / 2 < count) value = operation(value, other);
  }
  return group.shfl(value, 0, site);
}

}  // namespace cooperative_groups
