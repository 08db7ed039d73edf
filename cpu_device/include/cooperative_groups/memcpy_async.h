// The CPU device's stand-in for CUDA's header of the same name. The bytes are copied at once.
#pragma once

#include "cooperative_groups.h"

namespace cooperative_groups {

template <class Group, class To, class From>
void memcpy_async(const Group& group, To* to, const From* from, size_t bytes) {
  for (size_t i = group.thread_rank(); i < bytes; i += group.size()) {
    reinterpret_cast<char*>(to)[i] = reinterpret_cast<const char*>(from)[i];
  }
}
template <class Group>
void wait(const Group& group, Site site = Site::here()) {
  group.sync(site);
}
template <unsigned kStages, class Group>
void wait_prior(const Group& group, Site site = Site::here()) {
  group.sync(site);
}

}  // namespace cooperative_groups
