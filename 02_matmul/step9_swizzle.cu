// Step 9: no padding.
// Idea: chunks that would share banks lie in one column. If each row puts its chunks in another
//       order, a column is spread over all banks, and no memory is lost.
// Change: the layout alone, Swizzled instead of Padded (tensor_tiles.cuh). The copy engine of
//         Hopper and its instruction wgmma know this very layout, and none with padding.
// Limit: nobody multiplies while the block loads.
#include "tensor_single_stage.cuh"

namespace matmul {
namespace {

template <class T, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(kTensorThreads) matmul_swizzle(Product<T> p) {
  using ATile = OperandTile<Swizzled, kAAlongK, kBlockM, kBlockK>;
  using BTile = OperandTile<Swizzled, kBAlongK, kBlockN, kBlockK>;
  __shared__ tile::Vector<T> a_smem[ATile::kChunks];
  __shared__ tile::Vector<T> b_smem[BTile::kChunks];
  multiply_single_stage<ATile, BTile, kAAlongK, kBAlongK>(p, a_smem, b_smem);
}

}  // namespace

tile::Status swizzle(const Problem& problem, const Buffers& buffers, void* stream) {
  return with_16_bits(problem.type, [&](auto element) {
    using T = decltype(element);
    const auto launch = [&](unsigned blocks, const Product<T>& p) {
      return with_directions(problem, [&](auto a_along_k, auto b_along_k) {
        matmul_swizzle<T, a_along_k.value, b_along_k.value>
            <<<blocks, kTensorThreads, 0, static_cast<cudaStream_t>(stream)>>>(p);
        return tile::launch_status("matmul_swizzle");
      });
    };
    return launch_on_tiles<T>(problem, buffers, k16Bits, kBlockM, kBlockN, stream, launch);
  });
}

}  // namespace matmul
