// Exercise 02.5: stages
//
// C = A * B on tensor cores, with asynchronous copies: cp.async starts one, and the thread goes
// on. Tiles lie in a ring of kSlots slots, and what a thread can do has a name each: copy, commit,
// wait, barrier, multiply (class Ring in exercises/5_stages.cuh). The kernel below is right, but
// the copies gain nothing: while the block multiplies no copy is under way, and while a copy is
// under way the block waits.
// Keep the ring busy: whenever the block multiplies a tile, the next kSlots - 1 tiles are under
// way, as long as there are so many. The kernel is compiled for 2, 3 and 4 slots.
// The check reads what the first thread did, and says which rule it broke, and when.
// Check it with: ./tour exercise 02.5
#include "exercises/5_stages.cuh"
#include "matmul_launch.hpp"

namespace matmul {
namespace {

template <int kSlots>
__global__ void __launch_bounds__(Ring::kThreads)
    matmul_stages(Operand<__half> a,  // [m][k]
                  Operand<__half> b,  // [k][n]
                  Output<__half> c,   // [m][n]
                  std::int64_t m, std::int64_t n, std::int64_t k, Logged* log) {
  extern __shared__ __align__(128) unsigned char smem[];  // [slot]{A's tile, B's tile}
  Ring ring(a, b, c, m, n, k, smem, kSlots, log);

  for (int tile = 0; tile < kSlots - 1; ++tile) {
    ring.copy(tile);
    ring.commit();
  }
  for (int tile = 0; tile < ring.tiles(); ++tile) {
    // kSlots - 1 groups are under way, and the oldest has this tile.
    ring.wait<kSlots - 2>();
    // All threads' copies to it have landed. And all have multiplied the tile before, whose slot
    // is filled next.
    ring.barrier();
    ring.copy((tile + kSlots - 1) % kSlots);
    ring.commit();  // also where there was nothing to copy, so that waits can count
    ring.multiply(tile % kSlots);
  }
  ring.store();
}

}  // namespace

tile::Status stages(const Problem& problem, const Buffers& buffers, int slots, Logged* log) {
  TILE_TRY(validate(problem, buffers));
  if (is_empty(problem)) return {};
  unsigned blocks = 0;
  TILE_TRY(blocks_for_tiles(problem, Ring::kBlock, Ring::kBlock, &blocks));
  const auto kernel = slots == 2   ? matmul_stages<2>
                      : slots == 3 ? matmul_stages<3>
                                   : matmul_stages<4>;
  kernel<<<blocks, Ring::kThreads, slots * Ring::kSlotBytes>>>(
      op_a<__half>(problem, buffers), op_b<__half>(problem, buffers),
      output_c<__half>(problem, buffers), problem.m, problem.n, terms(problem), log);
  return tile::launch_status("matmul_stages");
}

}  // namespace matmul
