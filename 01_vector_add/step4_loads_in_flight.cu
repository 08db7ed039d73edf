// Step 4: several loads under way.
// Idea: memory answers after several hundred cycles, however much is asked. A thread that asks for
//       four vectors before it uses the first has four answers coming for one wait.
// Change: each thread loads kLoads vectors of a and of b into registers, then adds, then stores.
//         A block covers one stretch of the vectors and is done. There is no loop: the next block
//         starts loading while this one still stores.
// Limit: memory, at its full speed.
#include "tile/basics.cuh"
#include "tile/host/launch.hpp"
#include "vector_add.hpp"
#include "vectors.cuh"

namespace vector_add {
namespace {

constexpr int kThreads = 256;
// Vectors of a, and as many of b, that a thread has under way. Of 1, 2, 4 and 8, two were the
// fastest at 2^24 elements on an H200, where 2,048 threads a multiprocessor already ask for a lot.
constexpr int kLoads = 2;
constexpr std::int64_t kPerBlock = kThreads * kLoads;  // vectors

// snippet-begin kernel
template <class T>
__global__ void add_loads_in_flight(const T* a,  // [n]
                                    const T* b,  // [n]
                                    T* c,        // [n]
                                    std::int64_t n, Split split) {
  using Vector = tile::Vector<T>;
  const auto* a_vectors = reinterpret_cast<const Vector*>(a + split.head);  // [split.vectors]
  const auto* b_vectors = reinterpret_cast<const Vector*>(b + split.head);  // [split.vectors]
  auto* c_vectors = reinterpret_cast<Vector*>(c + split.head);              // [split.vectors]
  const std::int64_t first = blockIdx.x * kPerBlock + threadIdx.x;

  // All loads are issued before the first sum needs one. Neighbouring threads take neighbouring
  // vectors, so the loads of one thread lie a block's width apart.
  Vector a_frag[kLoads], b_frag[kLoads];
#pragma unroll
  for (int load = 0; load < kLoads; ++load) {
    const std::int64_t i = first + load * kThreads;
    if (i < split.vectors) {
      a_frag[load] = a_vectors[i];
      b_frag[load] = b_vectors[i];
    }
  }
#pragma unroll
  for (int load = 0; load < kLoads; ++load) {
    const std::int64_t i = first + load * kThreads;
    if (i < split.vectors) c_vectors[i] = add(a_frag[load], b_frag[load]);
  }

  // The single elements before and after the vectors, spread over the whole grid.
  const std::int64_t in_vectors = split.vectors * Vector::kCount;
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * kThreads;
  std::int64_t rest = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (; rest < n - in_vectors; rest += threads) {
    const std::int64_t i = rest < split.head ? rest : rest + in_vectors;
    c[i] = a[i] + b[i];
  }
}
// snippet-end kernel

}  // namespace

tile::Status loads_in_flight(const Problem& problem, const Buffers& buffers, void* stream) {
  return tile::with_element_type(problem.type, [&](auto element) {
    using T = decltype(element);
    const Split split = split_into_vectors<T>(problem, buffers);
    // Without vectors, a block's share of single elements is one a thread.
    const std::int64_t items = split.vectors > 0 ? split.vectors : problem.n * kLoads;
    unsigned blocks = 0;
    TILE_TRY(tile::blocks_for("n", items, kPerBlock, &blocks));
    return tile::launch(add_loads_in_flight<T>, "add_loads_in_flight", blocks, kThreads, 0, stream,
                        static_cast<const T*>(buffers.a), static_cast<const T*>(buffers.b),
                        static_cast<T*>(buffers.c), problem.n, split);
  });
}

}  // namespace vector_add
