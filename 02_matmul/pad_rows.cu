// Copies of A and B whose rows begin at multiples of 16 bytes, for kernels that copy 16 bytes at a
// time: TMA refuses other rows, and threads would load them element by element.
#include "matmul.cuh"
#include "tile/host/launch.hpp"

namespace matmul {
namespace {

constexpr int kThreads = 256;

// snippet-begin kernel
/// Each thread writes 16 bytes of a row at a time, and reads them in words as large as the rows
/// allow: no word crosses the end of a row.
template <class Word>
__global__ void matmul_pad_rows(const Word* from,        // [rows][words], rows `ld` words apart
                                tile::Vector<Word>* to,  // [rows][chunks]
                                std::int64_t rows, std::int64_t words, std::int64_t ld,
                                std::int64_t chunks) {
  constexpr int kCount = tile::Vector<Word>::kCount;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (std::int64_t i = first; i < rows * chunks; i += gridDim.x * std::int64_t{kThreads}) {
    const std::int64_t row = i / chunks, word = i % chunks * kCount;
    tile::Vector<Word> chunk;
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      chunk.element[e] = word + e < words ? from[row * ld + word + e] : Word{0};
    }
    to[i] = chunk;
  }
}
// snippet-end kernel

struct Matrix {
  const void* data;
  std::int64_t rows, row_bytes, ld_bytes;
};

template <class Word>
tile::Status copy_words(const Matrix& x, void* to, void* stream) {
  constexpr std::int64_t kBytes = sizeof(Word);
  const std::int64_t chunks = (x.row_bytes + 15) / 16;
  int blocks = 0;
  TILE_TRY(tile::blocks_that_fit(x.rows * chunks, kThreads, &blocks));
  return tile::launch(matmul_pad_rows<Word>, "matmul_pad_rows", blocks, kThreads, 0, stream,
                      static_cast<const Word*>(x.data), static_cast<tile::Vector<Word>*>(to),
                      x.rows, x.row_bytes / kBytes, x.ld_bytes / kBytes, chunks);
}

tile::Status copy(const Matrix& x, void* to, void* stream) {
  const auto ends = reinterpret_cast<std::uintptr_t>(x.data) |
                    static_cast<std::uintptr_t>(x.row_bytes | x.ld_bytes);
  if (ends % 8 == 0) return copy_words<std::uint64_t>(x, to, stream);
  if (ends % 4 == 0) return copy_words<std::uint32_t>(x, to, stream);
  return copy_words<std::uint16_t>(x, to, stream);
}

}  // namespace

tile::Status pad_rows(Problem* p, Buffers* buffers, void* stream) {
  const auto element = static_cast<std::int64_t>(tile::size_bytes(p->type));
  const auto pad = [&](const void** data, std::int64_t* ld, std::int64_t rows, std::int64_t cols) {
    void* const to = buffers->workspace;
    TILE_TRY(copy({*data, rows, cols * element, *ld * element}, to, stream));
    *ld = (cols * element + 15) / 16 * 16 / element;
    *data = to;
    buffers->workspace = static_cast<unsigned char*>(to) + rows * *ld * element;
    buffers->workspace_bytes -= rows * *ld * element;
    return tile::Status{};
  };
  const bool b = pads_b(*p);
  if (pads_a(*p)) {
    TILE_TRY(pad(&buffers->a, &p->lda, p->transpose_a ? p->k : p->m, p->transpose_a ? p->m : p->k));
  }
  if (!b) return {};
  return pad(&buffers->b, &p->ldb, p->transpose_b ? p->n : p->k, p->transpose_b ? p->k : p->n);
}

}  // namespace matmul
