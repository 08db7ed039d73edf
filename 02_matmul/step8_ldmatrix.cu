// Step 8: fragments by one instruction.
// Idea: ldmatrix loads four times 8 x 8 elements and hands them to the lanes in the order that mma
//       wants, transposed if that is needed. A lane names an address; it does not gather.
// Change: tiles are made of chunks of 16 bytes, eight elements. A chunk of padding behind each row
//         keeps the chunks of a column out of each other's banks.
// Limit: the padding is memory that holds nothing; and nobody multiplies while the block loads.
#include "tensor_single_stage.cuh"

namespace matmul {
namespace {

// snippet-begin padded
/// A chunk more to each row. A tile's rows have four chunks or sixteen, so that from row to row it
/// is an odd number; the 32 banks hold eight chunks, and eight steps of an odd number meet all
/// eight.
template <int kRows_, int kCols>
struct Padded {
  static constexpr int kRows = kRows_, kRowChunks = kCols / 8, kPitch = kRowChunks + 1;
  static constexpr int kChunks = kRows * kPitch;
  static_assert(kPitch % 2 == 1);
  static __device__ int place(int row, int chunk) { return row * kPitch + chunk; }
};
// snippet-end padded

template <class T, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(kTensorThreads) matmul_ldmatrix(Product<T> p) {
  using ATile = OperandTile<Padded, kAAlongK, kBlockM, kBlockK>;
  using BTile = OperandTile<Padded, kBAlongK, kBlockN, kBlockK>;
  __shared__ tile::Vector<T> a_smem[ATile::kChunks];
  __shared__ tile::Vector<T> b_smem[BTile::kChunks];
  multiply_single_stage<ATile, BTile, kAAlongK, kBAlongK>(p, a_smem, b_smem);
}

}  // namespace

tile::Status ldmatrix(const Problem& problem, const Buffers& buffers, void* stream) {
  return with_16_bits(problem.type, [&](auto element) {
    using T = decltype(element);
    const auto launch = [&](unsigned blocks, const Product<T>& p) {
      return with_directions(problem, [&](auto a_along_k, auto b_along_k) {
        matmul_ldmatrix<T, a_along_k.value, b_along_k.value>
            <<<blocks, kTensorThreads, 0, static_cast<cudaStream_t>(stream)>>>(p);
        return tile::launch_status("matmul_ldmatrix");
      });
    };
    return launch_on_tiles<T>(problem, buffers, k16Bits, kBlockM, kBlockN, stream, launch);
  });
}

}  // namespace matmul
