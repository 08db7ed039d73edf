// Backward preprocess, from step 2 on: delta and the log-sum-exp of each query.
#include "tile/row_stats.cuh"
#include "windowed/windowed_rope.cuh"

namespace windowed_rope {
namespace {

constexpr int kThreads = 128;

template <class T>
__global__ void windowed_backward_preprocess(Heads<const T> o, Heads<const T> dout,
                                             const float* lse, RowStats* stats, BatchMasks masks,
                                             int heads, int rows, int dim) {
  tile::compute_stats<kThreads>(o, dout, lse, stats, masks, heads, rows, dim);
}

}  // namespace

tile::Status compute_stats(const BackwardProblem& p, const BackwardBuffers& buffers, void* stream) {
  const int rows = tiles_of(p.queries, kRowsOfTerms) * kRowsOfTerms;
  unsigned blocks = 0;
  if (tile::Status s = blocks_for_tiles(p, p.heads, rows, tile::kBlockTerms<kThreads>, &blocks);
      !s.ok() || blocks == 0) {
    return s;
  }
  return tile::with_element_type(p.type, [&](auto element) -> tile::Status {
    using T = decltype(element);
    return tile::launch(windowed_backward_preprocess<T>, "windowed_backward_preprocess", blocks,
                        kThreads, 0, stream, heads_of<const T>(buffers.o, p.o),
                        heads_of<const T>(buffers.dout, p.dout), buffers.lse,
                        static_cast<RowStats*>(buffers.workspace), masks_of(p, buffers), p.heads,
                        rows, p.head_dim);
  });
}

}  // namespace windowed_rope
