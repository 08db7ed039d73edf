// Copies of A and B whose rows begin at multiples of 16 bytes, for kernels that copy 16 bytes at a
// time: TMA refuses other rows, and threads would load them element by element.
#include "matmul.hpp"
#include "tile/basics.cuh"
#include "tile/host/launch.hpp"

namespace matmul {
namespace {

constexpr int kThreads = 256;

/// A matrix and its copy.
template <class Word>
struct Copied {
  const Word* from;        // [rows][words], rows `ld` words apart
  tile::Vector<Word>* to;  // [rows][chunks]
  std::int64_t rows, words, ld, chunks;
};

// snippet-begin kernel
/// Copies A, and B in the second row of blocks; of these one may have no rows. Each thread writes
/// 16 bytes of a row at a time, and reads them in words as large as the rows allow: no word crosses
/// the end of a row.
template <class Word>
__global__ void matmul_pad_rows(Copied<Word> a, Copied<Word> b) {
  constexpr int kCount = tile::Vector<Word>::kCount;
  const Copied<Word> x = blockIdx.y == 0 ? a : b;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (std::int64_t i = first; i < x.rows * x.chunks; i += gridDim.x * std::int64_t{kThreads}) {
    const std::int64_t row = i / x.chunks, word = i % x.chunks * kCount;
    tile::Vector<Word> chunk;
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      chunk.element[e] = word + e < x.words ? x.from[row * x.ld + word + e] : Word{0};
    }
    x.to[i] = chunk;
  }
}
// snippet-end kernel

/// Without rows it need not be copied.
struct Matrix {
  const void* data;
  void* to;
  std::int64_t rows, row_bytes, ld_bytes;

  std::int64_t chunks() const { return (row_bytes + 15) / 16; }
  std::uintptr_t ends() const {
    return rows == 0 ? 0
                     : reinterpret_cast<std::uintptr_t>(data) |
                           static_cast<std::uintptr_t>(row_bytes | ld_bytes);
  }
};

template <class Word>
tile::Status copy_words(const Matrix& a, const Matrix& b, void* stream) {
  constexpr std::int64_t kBytes = sizeof(Word);
  const auto copied = [](const Matrix& x) {
    return Copied<Word>{static_cast<const Word*>(x.data),
                        static_cast<tile::Vector<Word>*>(x.to),
                        x.rows,
                        x.row_bytes / kBytes,
                        x.ld_bytes / kBytes,
                        x.chunks()};
  };
  int blocks = 0;
  TILE_TRY(
      tile::blocks_that_fit(std::max(a.rows * a.chunks(), b.rows * b.chunks()), kThreads, &blocks));
  return tile::launch(matmul_pad_rows<Word>, "matmul_pad_rows", dim3(blocks, 2), kThreads, 0,
                      stream, copied(a), copied(b));
}

}  // namespace

tile::Status pad_rows(Problem* p, Buffers* buffers, void* stream) {
  const auto element = static_cast<std::int64_t>(tile::size_bytes(p->type));
  // What is to be copied, which then is the copy.
  const auto pad = [&](bool pads, const void** data, std::int64_t* ld, std::int64_t rows,
                       std::int64_t cols) {
    if (!pads) return Matrix{};
    const Matrix x{*data, buffers->workspace, rows, cols * element, *ld * element};
    *ld = x.chunks() * 16 / element;
    *data = x.to;
    buffers->workspace = static_cast<unsigned char*>(x.to) + rows * x.chunks() * 16;
    buffers->workspace_bytes -= rows * x.chunks() * 16;
    return x;
  };
  const bool pads[] = {pads_a(*p), pads_b(*p)};
  const Matrix a = pad(pads[0], &buffers->a, &p->lda, p->transpose_a ? p->k : p->m,
                       p->transpose_a ? p->m : p->k),
               b = pad(pads[1], &buffers->b, &p->ldb, p->transpose_b ? p->n : p->k,
                       p->transpose_b ? p->k : p->n);
  if (a.rows == 0 && b.rows == 0) return {};
  const std::uintptr_t ends = a.ends() | b.ends();
  if (ends % 8 == 0) return copy_words<std::uint64_t>(a, b, stream);
  if (ends % 4 == 0) return copy_words<std::uint32_t>(a, b, stream);
  return copy_words<std::uint16_t>(a, b, stream);
}

}  // namespace matmul
