// Shared by a method's steps: the positions of queries.
#include "method/method.cuh"

namespace windowed_rope::method {
namespace {

constexpr int kThreads = 256;

/// The position of the key beside which a query stands. A query that stands beside none sees no
/// key, and any position will do.
__global__ void method_composed_positions(int* positions,  // [batch][queries]
                                          BatchMasks masks, std::int64_t all, int count) {
  const std::int64_t at = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= all) return;
  const int batch = static_cast<int>(at / masks.queries),
            query = static_cast<int>(at % masks.queries);
  positions[at] = max(0, min(masks.of(batch).position(query), count - 1));
}

}  // namespace

tile::Status fill_positions(const tile::Attention& p, int* positions, void* stream) {
  unsigned blocks = 0;
  const std::int64_t all = p.batch * p.queries;
  TILE_TRY(tile::blocks_for("batch and queries", all, kThreads, &blocks));
  return tile::launch(method_composed_positions, "method_composed_positions", blocks, kThreads, 0,
                      stream, positions, masks_of(p), all, p.rotary.table_positions);
}

}  // namespace windowed_rope::method
