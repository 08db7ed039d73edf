// Kernels that call instructions of tile/ptx wrongly, and right ones beside them.
#pragma once

namespace ptx_test {

enum class Call {
  right,
  unused_addresses,  // of lanes whose rows ldmatrix.x1 does not read
  short_warp,
  half_of_the_warp,
  different_places,
  instruction_and_syncwarp,
  misaligned_row,
  row_in_global_memory,
  row_past_shared_memory,
  fp8,
  stmatrix,
  pack_fp8,
  pack_fp16,
  // What only the check build finds.
  row_past_array,
  unwritten_row,
  load_without_barrier,
  store_without_barrier,
};

void make_call(Call call, float* global);

/// The line of the call that was made last.
int line_of_call();

}  // namespace ptx_test
