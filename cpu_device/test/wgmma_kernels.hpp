// A kernel that uses wgmma rightly, and the same with mistakes. Lines that a report names are
// marked in wgmma_kernels.cu by a comment, `// [what]`. CPU device only.
#pragma once

namespace device_test {

enum class WgmmaMisuse {
  none,
  lesser_card,            // whose first instruction that it lacks is to be one of wgmma
  overwritten_when_told,  // right, too: by another warpgroup, after a wait at an mbarrier
  // What every build reports.
  short_warpgroup,
  half_of_the_warpgroup,
  different_places,
  different_descriptors,
  misaligned_tile,
  past_shared_memory,
  tile_in_global_memory,
  no_wait,
  no_commit,
  write_before_wait,
  // What the check build reports, and what every build shows in a result.
  read_before_wait,
  wait_for_less,
  wait_for_other_sums,
  overwritten_too_early,
  // What the check build reports.
  overwritten_by_others,
  told_before_wait,
  no_fence,
  touch_after_fence,
  change_of_a,
  unwritten_tile,
  no_barrier
};

/// A and B are all ones, and the depth is 16. out[128] gets one of each thread's sums, 16.
void multiply_ones(WgmmaMisuse misuse, float* out);

}  // namespace device_test
