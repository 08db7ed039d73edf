// Forward, step 13: 8 bits.
// Idea: tensor cores multiply twice as many e4m3 as bf16, and these are half of the bytes. wgmma
//       reads 8 bits along the sum only, so two warps transpose the values on their way.
// Change: from step 12: values come into a ring of their own, and transposed into another. Keys are
//         permuted within a tile, so that sums of the scores become weights without a shuffle.
//         Weights are up to 448, since e4m3 has few exponents, and are made before it is known
//         whether they fit. Consumers store the output themselves. Scales.
// Limit: tensor cores keep 14 bits of a sum, and cut the rest off: with 100,000 keys an eighth of
//        the output may be missing.
#include <string>

#include "attention_e4m3.cuh"

namespace flash_attention {
namespace {

template <int kDim>
__global__ void __launch_bounds__(TilePlan<kDim>::kThreads, 1)
    attention_e4m3(const __grid_constant__ CallE4m3 call) {
  extern __shared__ __align__(1024) unsigned char dynamic_smem[];
  __shared__ Mailboxes<TilePlan<kDim>> mail;
  attend_e4m3<kDim, false>(call, mail, SharedAddress(dynamic_smem));
}

}  // namespace

tile::Status takes_e4m3(const AttentionForward& p, const tile::Device&) {
  if (p.head_dim != 64 && p.head_dim != 128) {
    return tile::unsupported("head_dim", std::to_string(p.head_dim) + " is neither 64 nor 128");
  }
  return tile::check_boxes(p, false);
}

tile::Status e4m3(const AttentionForward& p, void* stream) {
  return launch_e4m3(p, attention_e4m3<64>, attention_e4m3<128>, "attention_e4m3", stream);
}

}  // namespace flash_attention
