// Step 3: 16 bytes with one instruction.
// Idea: a thread loads four floats, or eight halves, at once. A quarter of the instructions fetch
//       the same bytes, and each waiting load holds more of them under way.
// Change: the loop counts vectors instead of elements. The ends that fill no vector are added one
//         by one.
// Limit: memory. One pair of loads a thread is still all that is under way.
#include "tile/basics.cuh"
#include "tile/host/launch.hpp"
#include "vector_add.hpp"
#include "vectors.cuh"

namespace vector_add {
namespace {

constexpr int kThreads = 256;

// snippet-begin kernel
template <class T>
__global__ void add_vectors(const T* a,  // [n]
                            const T* b,  // [n]
                            T* c,        // [n]
                            std::int64_t n, Split split) {
  using Vector = tile::Vector<T>;
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;

  const auto* a_vectors = reinterpret_cast<const Vector*>(a + split.head);  // [split.vectors]
  const auto* b_vectors = reinterpret_cast<const Vector*>(b + split.head);  // [split.vectors]
  auto* c_vectors = reinterpret_cast<Vector*>(c + split.head);              // [split.vectors]
  for (std::int64_t i = first; i < split.vectors; i += threads) {
    c_vectors[i] = add(a_vectors[i], b_vectors[i]);
  }

  // The elements before the first vector and after the last one: fewer than two vectors' worth, or
  // all of them if the pointers are aligned differently.
  const std::int64_t in_vectors = split.vectors * Vector::kCount;
  for (std::int64_t rest = first; rest < n - in_vectors; rest += threads) {
    const std::int64_t i = rest < split.head ? rest : rest + in_vectors;
    c[i] = a[i] + b[i];
  }
}
// snippet-end kernel

}  // namespace

tile::Status vectors(const Problem& problem, const Buffers& buffers, void* stream) {
  return tile::with_element_type(problem.type, [&](auto element) {
    using T = decltype(element);
    const Split split = split_into_vectors<T>(problem, buffers);
    const std::int64_t items =
        std::max(split.vectors, problem.n - split.vectors * tile::Vector<T>::kCount);
    int blocks = 0;
    TILE_TRY(tile::blocks_that_fit(items, kThreads, &blocks));
    return tile::launch(add_vectors<T>, "add_vectors", blocks, kThreads, 0, stream,
                        static_cast<const T*>(buffers.a), static_cast<const T*>(buffers.b),
                        static_cast<T*>(buffers.c), problem.n, split);
  });
}

}  // namespace vector_add
