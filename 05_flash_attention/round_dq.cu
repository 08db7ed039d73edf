// Backward postprocess, after the steps that add to sums of dQ: these are scaled and rounded.
#include "tile/round_dq.cuh"

#include "launch.hpp"

namespace flash_attention {

tile::Status round_dq(const AttentionBackward& p, const float4* sums, const tile::TensorView& dq,
                      void* stream) {
  return tile::launch_round_dq(p, sums, dq, stream);
}

}  // namespace flash_attention
