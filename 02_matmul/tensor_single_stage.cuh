// What steps 8 and 9 share: all but where the chunks of a tile lie.
#pragma once

#include "tensor_tiles.cuh"

namespace matmul {

// snippet-begin kernel
/// A block computes its part of C from one tile of each operand at a time.
template <class ATile, class BTile, bool kAAlongK, bool kBAlongK, class T>
__device__ void multiply_single_stage(const Product<T>& p,
                                      tile::Vector<T>* a_smem,  // 128 rows of C by 32 of k
                                      tile::Vector<T>* b_smem   // 32 of k by 128 columns of C
) {
  const Corner corner = corner_of_block(p.n, kBlockM, kBlockN);
  const auto warp = corner_of_warp<kBlockN, kTensorWarpM, kTensorWarpN>();
  ChunkLoader<T, ATile, kAAlongK, false, kTensorThreads> a_loader(p.a, p.m, p.k, a_smem);
  ChunkLoader<T, BTile, kBAlongK, false, kTensorThreads> b_loader(p.b, p.n, p.k, b_smem);
  a_loader.begin(corner.row);
  b_loader.begin(corner.col);
  const FragmentReader<ATile, true, kAAlongK, kTensorWarpM> a_reader(a_smem, warp.row);
  const FragmentReader<BTile, false, kBAlongK, kTensorWarpN> b_reader(b_smem, warp.col);

  WarpSums<kTensorWarpM, kTensorWarpN> sums;
  WarpFragments<kTensorWarpM, kTensorWarpN> fragments;
  for (std::int64_t k0 = 0; k0 < p.k; k0 += kBlockK) {
    a_loader.load();
    b_loader.load();
    __syncthreads();  // the tiles are complete before anybody reads them
#pragma unroll
    for (int part = 0; part < kBlockK / kMmaK; ++part) {
      fragments.load(a_reader, b_reader, 0, part);
      sums.template add_products<T>(fragments);
    }
    __syncthreads();  // everybody has read them before anybody loads the next
  }
  sums.store(p.c, corner.row + warp.row, corner.col + warp.col, p.m, p.n);
}
// snippet-end kernel

}  // namespace matmul
