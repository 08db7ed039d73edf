// Forward, step 14: the sums of tiles in fp32.
// Idea: a sum that begins anew with each tile of keys is cut off four times, however long the text.
// Change: tensor cores overwrite the sums of a tile, and threads add these to the output in fp32.
// Limit: 64 additions beside 64 exponentials; and the bits that weights keep.
#include "attention_e4m3.cuh"

namespace flash_attention {
namespace {

template <int kDim>
__global__ void __launch_bounds__(TilePlan<kDim>::kThreads, 1)
    attention_tile_sums(const __grid_constant__ CallE4m3 call) {
  extern __shared__ __align__(1024) unsigned char dynamic_smem[];
  __shared__ Mailboxes<TilePlan<kDim>> mail;
  attend_e4m3<kDim, true>(call, mail, SharedAddress(dynamic_smem));
}

}  // namespace

tile::Status tile_sums(const AttentionForward& p, void* stream) {
  return launch_e4m3(p, attention_tile_sums<64>, attention_tile_sums<128>, "attention_tile_sums",
                     stream);
}

}  // namespace flash_attention
