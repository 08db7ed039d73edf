#pragma once

namespace device_test {

enum class AsanMistake {
  none,
  past_local,
  after_free,
  past_global,
  past_shared,
  past_dynamic,
  // In a cluster, with the shared memory of block 0.
  none_in_cluster,
  past_shared_in_cluster,
  ended_in_cluster
};

inline constexpr int kElements = 101;  // their 404 bytes end in the middle of a word of 8

/// A launch of 2 blocks of 64 threads, of which thread 3 of block 1 makes the mistake with the
/// array of kElements elements.
void make_asan_mistake(AsanMistake mistake, float* array);

}  // namespace device_test
