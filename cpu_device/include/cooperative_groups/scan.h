// The CPU device's stand-in for CUDA's header of the same name.
#pragma once

#include "cooperative_groups/reduce.h"

namespace cooperative_groups {

/// The combination of the values of all threads up to this one.
template <class Group, class T, class Operation = plus<T>>
T inclusive_scan(const Group& group, T value, Operation operation = {}, Site site = Site::here()) {
  for (unsigned distance = 1; distance < group.size(); distance *= 2) {
    const T other = group.shfl_up(value, distance, site);
    if (group.thread_rank() >= distance) value = operation(other, value);
  }
  return value;
}
/// Without this one's; the first thread gets T{}.
template <class Group, class T, class Operation = plus<T>>
T exclusive_scan(const Group& group, T value, Operation operation = {}, Site site = Site::here()) {
  const T before = group.shfl_up(inclusive_scan(group, value, operation, site), 1, site);
  return group.thread_rank() == 0 ? T{} : before;
}

}  // namespace cooperative_groups
