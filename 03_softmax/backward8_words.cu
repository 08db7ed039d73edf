// Backward, step 8: rows that begin anywhere, in words.
// Idea: as in forward step 10, all but two of a row's elements at most move in words of 4 bytes.
// Change: from step 4, words of y and of dy in the place of chunks (tile/words.cuh).
// Limit: memory, at the speed of a copy, for rows of up to 16 KiB. Step 5 takes longer ones.
#include "softmax.cuh"
#include "tile/host/launch.hpp"
#include "tile/words.cuh"

namespace softmax {
namespace {

constexpr int kMostThreads = 512;  // of a row
constexpr int kMaxWords = 8;       // of a thread, of y and of dy; 9 if a warp or less has a row

template <class T, int kThreads, int kWords, bool kPlain>
__global__ void __launch_bounds__(tile::RowWords<T, kThreads, kWords>::kBlock,
                                  tile::RowWords<T, kThreads, kWords>::blocks_with(1024))
    softmax_backward_words(tile::Rows<const T> y,   // [rows][cols]
                           tile::Rows<const T> dy,  // [rows][cols]
                           tile::Rows<T> dx,        // [rows][cols]
                           Params params) {         // sizes, scale, options
  using Words = tile::RowWords<T, kThreads, kWords>;
  __shared__ float sum_smem[tile::kWarp];
  const std::int64_t row = Words::row();
  // Lanes without a row still take part in shuffles.
  const int cols = row < params.rows ? static_cast<int>(params.cols) : 0;
  const int visible = cols == 0 ? 0 : static_cast<int>(params.visible<kPlain>(row));
  const T *y_row = y[row], *dy_row = dy[row];
  T* dx_row = dx[row];
  // Before y is loaded, since later this would take registers. dx may be y or dy: their hidden
  // columns are never read.
  for (int col = visible + static_cast<int>(threadIdx.x); !kPlain && col < cols; col += kThreads) {
    dx_row[col] = static_cast<T>(0.f);
  }
  const Words words(y_row, visible);
  const int end = words.end();

  typename Words::Word y_word[kWords], dy_word[kWords];
  words.load(y_row, 0, y_word);
  words.load(dy_row, 0, dy_word);
  const float y_end = end >= 0 ? static_cast<float>(y_row[end]) : 0;
  const float dy_end = end >= 0 ? static_cast<float>(dy_row[end]) : 0;
  float value[Words::kWidth], dvalue[Words::kWidth];  // a word of y and of dy

  const Gradient<kPlain> gradient(params);
  // sum y dy, first of this thread's own elements
  float sum = end >= 0 ? gradient.term(y_end, dy_end) : 0;
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    y_word[i].to_floats(value);
    dy_word[i].to_floats(dvalue);
#pragma unroll
    for (int e = 0; e < Words::kWidth; ++e) sum += gradient.term(value[e], dvalue[e]);
  }
  sum = Words::reduce(sum, tile::Add{}, sum_smem);
  // dx = scale y (dy - sum)
  if (end >= 0) dx_row[end] = static_cast<T>(gradient(y_end, dy_end, sum));
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    if (!words.has(i)) continue;
    y_word[i].to_floats(value);
    dy_word[i].to_floats(dvalue);
#pragma unroll
    for (int e = 0; e < Words::kWidth; ++e) value[e] = gradient(value[e], dvalue[e], sum);
    Words::Word::from_floats(value).store(words.at(dx_row, i));
  }
}

}  // namespace

tile::Status takes_words(const BackwardProblem& p, const BackwardBuffers& b, const tile::Device&) {
  if (check_chunks(p, b).ok()) {
    return tile::unsupported("cols", std::to_string(p.cols) + " fill chunks of 16 bytes");
  }
  TILE_TRY(tile::check_words_alike(p.type, b.y, p.ldy, "dy", b.dy, "lddy", p.lddy));
  TILE_TRY(tile::check_words_alike(p.type, b.y, p.ldy, "dx", b.dx, "lddx", p.lddx));
  return tile::check_word_plan<kMaxWords, kMostThreads>(p.type, p.cols);
}

tile::Status words(const BackwardProblem& p, const BackwardBuffers& b, void* stream) {
  return tile::with_element_type(p.type, [&](auto element) {
    using T = decltype(element);
    return tile::with_word_plan<kMaxWords, kMostThreads>(
        p.type, p.cols, is_plain(p), [&](auto threads, auto of_thread, auto plain) {
          constexpr int kThreads = threads, kBlock = tile::RowWords<T, kThreads, of_thread>::kBlock;
          unsigned blocks = 0;
          TILE_TRY(tile::blocks_for("rows", p.rows, kBlock / kThreads, &blocks));
          return tile::launch(softmax_backward_words<T, kThreads, of_thread, plain>,
                              "softmax_backward_words", blocks, dim3(kThreads, kBlock / kThreads),
                              0, stream, tile::Rows<const T>{static_cast<const T*>(b.y), p.ldy},
                              tile::Rows<const T>{static_cast<const T*>(b.dy), p.lddy},
                              tile::Rows<T>{static_cast<T*>(b.dx), p.lddx}, params_of(p));
        });
  });
}

}  // namespace softmax
