// Refused: 3 slots: the product is right, but.*yours +1  1
#include "exercises/5_stages.cuh"

namespace matmul {
namespace {

template <int kSlots>
__global__ void __launch_bounds__(Ring::kThreads) matmul_stages(Product<__half> p, Logged* log) {
  extern __shared__ __align__(128) unsigned char smem[];  // [slot]{A's tile, B's tile}
  Ring ring(p, smem, kSlots, log);

  ring.copy(0);
  ring.commit();
  for (int tile = 0; tile < ring.tiles(); ++tile) {
    ring.wait<0>();
    ring.barrier();
    ring.copy((tile + 1) % kSlots);
    ring.commit();
    ring.multiply(tile % kSlots);
  }
  ring.store();
}

}  // namespace

tile::Status stages(const Problem& problem, const Buffers& buffers, int slots, Logged* log) {
  unsigned blocks = 0;
  tile::Status status =
      blocks_for_tiles(problem, buffers, k16Bits, Ring::kBlock, Ring::kBlock, &blocks);
  if (!status.ok() || blocks == 0) return status;
  const auto kernel = slots == 2   ? matmul_stages<2>
                      : slots == 3 ? matmul_stages<3>
                                   : matmul_stages<4>;
  kernel<<<blocks, Ring::kThreads, slots * Ring::kSlotBytes>>>(Product<__half>(problem, buffers),
                                                               log);
  return tile::launch_status("matmul_stages");
}

}  // namespace matmul
