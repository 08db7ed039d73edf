// Kernels that show when copies by TMA happen, and kernels that go wrong with them.
#pragma once

#include <cuda_runtime_api.h>

#include "tile/host/tensor_map.hpp"

namespace device_test {

/// What 64 threads see of a load of 64 floats: out[t] before any has waited, out[64 + t] after.
void look_at_load(const float* in, float* out);
/// Stores 64 ones, and writes twos over them before it waits for the read. seen[0]: global memory
/// after that wait; seen[1]: when the store is done.
void overwrite_source(float* out, float* seen);
/// Four blocks, each when the one before has said that it is done, add 2^24, 1, 1 and -2^24 to four
/// sums by a bulk reduction: in this order 0, in others 1 or 2.
void add_in_turn(bool waits_until_done, unsigned* counters, float* sums);

enum class TmaMisuse {
  none,
  misaligned_box,
  misaligned_run,
  misaligned_global,
  odd_bytes,
  not_in_shared,
  past_shared,
  from_shared,
  no_map,
  three_coordinates,
  odd_column,
  store_in_front,
  no_ranks,
  rank_too_large,
  mbarrier_in_global,
  load_under_way,  // at the block's end
  store_under_way,
  store_in_no_group,
  too_few_bytes,  // expected
  too_many_bytes,
  barrier_0,
  odd_threads,
  more_threads,
  other_threads,
  second_arrival,
  half_warp,
  waits_alone,
  registers_of_half,  // a warpgroup
  fewer_by_inc,
  more_by_dec,
  too_many_registers,
  one_of_warpgroup,
};
/// Thread 3, or those that its name says, of a block of 320 threads.
void misuse_tma(TmaMisuse what, const tile::TensorMap& map, float* out);

/// Two blocks in a cluster, of which 0 has ended when 1 arrives there, or loads for it.
cudaError_t reach_the_ended(bool loads, const tile::TensorMap& map);

}  // namespace device_test
