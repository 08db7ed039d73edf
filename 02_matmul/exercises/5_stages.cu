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

  // TODO: Which copies must have begun before the first tile is multiplied? How many groups may a
  // wait leave under way, so that the tile that is multiplied next is not among them? And near the
  // end, when there is nothing left to copy? A thread waits for its own copies only: what does it
  // take to see those of the others? When may the slot that was multiplied last be filled again?
  ring.copy(0);
  ring.commit();
  for (int tile = 0; tile < ring.tiles(); ++tile) {
    ring.wait<0>();
    ring.barrier();
    ring.multiply(tile % kSlots);
    if (tile + 1 < ring.tiles()) {
      ring.copy((tile + 1) % kSlots);
      ring.commit();
    }
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
