// Shared by a method's steps: the positions of queries, and the size of the workspace.
#include "method/method.cuh"

namespace windowed_rope {
namespace {

constexpr int kThreads = 256;

// snippet-begin positions
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
// snippet-end positions

template <class Ladder, class Problem>
std::int64_t all_bytes(const Ladder& ladder, const Problem& p) {
  if (is_empty(p)) return 0;
  std::int64_t all = rotated_rows(p, nullptr).bytes;
  const std::int64_t more = attention_bytes(ladder, attention_of(p));
  return __builtin_add_overflow(all, more, &all) ? INT64_MAX : all;
}

}  // namespace

tile::Status fill_positions(const BatchMasks& masks, std::int64_t batch,
                            std::int64_t table_positions, int* positions, void* stream) {
  unsigned blocks = 0;
  const std::int64_t all = batch * masks.queries;
  TILE_TRY(tile::blocks_for("batch and queries", all, kThreads, &blocks));
  if (blocks == 0) return {};
  return tile::launch(method_composed_positions, "method_composed_positions", blocks, kThreads, 0,
                      stream, positions, masks, all, static_cast<int>(table_positions));
}

std::int64_t workspace_bytes(const MethodProblem& p, std::string_view step) {
  if (step == "prologue") {
    return is_empty(p) ? 0 : tile::product({4, p.batch, p.keys, p.kv_heads, p.head_dim});
  }
  return all_bytes(kForwardLadder, p);
}
std::int64_t workspace_bytes(const MethodBackwardProblem& p, std::string_view) {
  return all_bytes(kBackwardLadder, p);
}

}  // namespace windowed_rope
