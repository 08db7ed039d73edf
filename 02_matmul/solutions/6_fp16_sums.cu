// Exercise 02.6: sums in fp16
//
// mma multiplies two numbers of fp16 exactly and adds in fp32. There is another one that adds in
// fp16: half as many registers for the sums, and on GeForce cards twice the speed (NVIDIA's white
// paper "NVIDIA Ampere GA102 GPU Architecture"). Use it, and see what it costs: each time an
// instruction is done, a sum is rounded to 11 bits. The larger it has become, the less remains of
// what is added. From 2048 on fp16 has even numbers only, from 4096 on multiples of four.
// The kernel below takes the type of the sums as a parameter. HalfSums has the interface of
// WarpSums (tensor_tiles.cuh), and as yet it does what WarpSums does.
// The check prints the errors of both, and what can be promised for both: in the end the errors in
// fp16 must be beyond what is promised for fp32. How large can a bound be and still mean something?
// And how much of the error would remain if the sums were moved to fp32 after each tile?
// Check it with: ./tour exercise 02.6
// When it is solved, the program 02_matmul_exercise_6_fp16_sums in the build folder still prints.
#include "exercises/exercises.hpp"
#include "matmul_launch.hpp"
#include "tensor_tiles.cuh"

namespace matmul {
namespace {

constexpr int kBlock = 64;  // rows and columns of C that a block computes, each warp 32 x 32
constexpr int kWarp = 32, kThreads = 128;

/// A warp's part of C as it grows.
template <int kWarpM, int kWarpN>
struct HalfSums {
  static constexpr int kM = kWarpM / kMmaM, kN = kWarpN / kMmaN;
  std::uint32_t sum[kM][kN][2] = {};  // in each register two neighbours of a row, lower half first

  template <class T>
  __device__ void add_products(const WarpFragments<kWarpM, kWarpN>& f) {
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int j = 0; j < kN; ++j) tile::ptx::mma_m16n8k16_f16(sum[i][j], f.a[i], f.b[j]);
    }
  }

  /// The warp's part of C begins at (row, col).
  template <class T>
  __device__ void store(const Output<T>& c, std::int64_t row, std::int64_t col, std::int64_t m,
                        std::int64_t n) {
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int j = 0; j < kN; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const tile::ptx::Element at = tile::ptx::element_of_d(threadIdx.x % 32, e);
          const std::uint32_t pair = sum[i][j][e / 2] >> e % 2 * 16;
          const float x = __half2float(__ushort_as_half(static_cast<unsigned short>(pair)));
          const std::int64_t r = row + i * kMmaM + at.row, l = col + j * kMmaN + at.col;
          if (r < m && l < n) c.store(r, l, x);
        }
      }
    }
  }
};

template <class Sums>
__global__ void __launch_bounds__(kThreads)
    matmul_sums(Operand<__half> a,  // [m][k]
                Operand<__half> b,  // [k][n]
                Output<__half> c,   // [m][n]
                std::int64_t m, std::int64_t n, std::int64_t k) {
  using ATile = OperandTile<Swizzled, true, kBlock, kBlockK>;
  using BTile = OperandTile<Swizzled, false, kBlock, kBlockK>;
  __shared__ tile::Vector<__half> a_smem[ATile::kChunks];
  __shared__ tile::Vector<__half> b_smem[BTile::kChunks];
  const Corner corner = corner_of_block(n, kBlock, kBlock);
  const auto warp = corner_of_warp<kBlock, kWarp, kWarp>();
  ChunkLoader<__half, ATile, true, false, kThreads> a_loader(a, m, k, a_smem);
  ChunkLoader<__half, BTile, false, false, kThreads> b_loader(b, n, k, b_smem);
  a_loader.begin(corner.row);
  b_loader.begin(corner.col);
  const FragmentReader<ATile, true, true, kWarp> a_reader(a_smem, warp.row);
  const FragmentReader<BTile, false, false, kWarp> b_reader(b_smem, warp.col);

  Sums sums;
  WarpFragments<kWarp, kWarp> fragments;
  for (std::int64_t k0 = 0; k0 < k; k0 += kBlockK) {
    a_loader.load();
    b_loader.load();
    __syncthreads();  // both tiles are complete before a thread reads them
#pragma unroll
    for (int part = 0; part < kBlockK / kMmaK; ++part) {
      fragments.load(a_reader, b_reader, 0, part);
      sums.template add_products<__half>(fragments);
    }
    __syncthreads();  // every thread has read them before one loads the next
  }
  sums.store(c, corner.row + warp.row, corner.col + warp.col, m, n);
}

template <class Sums>
tile::Status launch(const Problem& problem, const Buffers& buffers) {
  TILE_TRY(validate(problem, buffers));
  if (is_empty(problem)) return {};
  unsigned blocks = 0;
  TILE_TRY(blocks_for_tiles(problem, kBlock, kBlock, &blocks));
  matmul_sums<Sums><<<blocks, kThreads>>>(
      op_a<__half>(problem, buffers), op_b<__half>(problem, buffers),
      output_c<__half>(problem, buffers), problem.m, problem.n, terms(problem));
  return tile::launch_status("matmul_sums");
}

}  // namespace

tile::Status sums_in_fp32(const Problem& problem, const Buffers& buffers) {
  return launch<WarpSums<kWarp, kWarp>>(problem, buffers);
}
tile::Status sums_in_fp16(const Problem& problem, const Buffers& buffers) {
  return launch<HalfSums<kWarp, kWarp>>(problem, buffers);
}

}  // namespace matmul
