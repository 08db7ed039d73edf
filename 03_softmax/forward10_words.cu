// Forward, step 10: rows that begin anywhere, in words.
// Idea: a row of 777 elements of 2 bytes begins 1,554 bytes after the one before, at no multiple of
//       16. But it begins at a word of 4 bytes, or one element before one. So all but two of its
//       elements at most move in words. The words of a warp are 128 neighbouring bytes, so memory
//       moves no more bytes for them than for chunks.
// Change: from step 5, words in the place of chunks (tile/words.cuh), up to 16 of a thread: four
//         chunks have as many.
// Limit: memory, at the speed of a copy, for rows of up to 16 KiB. Step 6 takes longer ones.
#include "softmax.cuh"
#include "tile/host/launch.hpp"
#include "tile/words.cuh"

namespace softmax {
namespace {

constexpr int kMostThreads = 256;  // of a row
constexpr int kMaxWords = 16;      // of a thread
/// With more words a thread computes exponentials twice: then registers hold 1,280 threads.
constexpr int kKept = 9;

// snippet-begin kernel
template <class T, int kThreads, int kWords, bool kPlain>
__global__ void __launch_bounds__(
    tile::RowWords<T, kThreads, kWords>::kBlock,
    tile::RowWords<T, kThreads, kWords>::blocks_with(kPlain&& kWords > kKept ? 1280 : 1024))
    softmax_words(tile::Rows<const T> x,  // [rows][cols]
                  tile::Rows<T> y,        // [rows][cols]
                  Params params) {        // sizes, scale, options
  using Words = tile::RowWords<T, kThreads, kWords>;
  constexpr int kWidth = Words::kWidth;
  __shared__ float max_smem[tile::kWarp], sum_smem[tile::kWarp];
  const std::int64_t row = Words::row();
  // Lanes without a row still take part in shuffles.
  const int cols = row < params.rows ? static_cast<int>(params.cols) : 0;
  const int visible = cols == 0 ? 0 : static_cast<int>(params.visible<kPlain>(row));
  const T* x_row = x[row];
  T* y_row = y[row];
  // Before x is loaded, since later this would take registers. y may be x: its hidden columns are
  // never read.
  for (int col = visible + static_cast<int>(threadIdx.x); !kPlain && col < cols; col += kThreads) {
    y_row[col] = static_cast<T>(params.hidden());
  }
  const Words words(x_row, visible);
  const int end = words.end();

  typename Words::Word word[kWords];
  words.load(x_row, -INFINITY, word);
  const float x_end = end >= 0 ? static_cast<float>(x_row[end]) : -INFINITY;
  auto greatest = word[0];
#pragma unroll
  for (const auto& each : word) greatest = Words::Word::max(greatest, each);
  float value[kWidth], max = x_end;  // a word of x, then of y
  greatest.to_floats(value);
#pragma unroll
  for (const float v : value) max = fmaxf(max, v);
  max = Words::reduce(max, tile::Max{}, max_smem);

  const float reference = finite_reference(max);
  const auto power = [&](float v) {
    return tile::ptx::exp2_approx(params.factor * (v - reference));
  };
  constexpr bool kKeeps = kPlain && kWords <= kKept;
  float power_of[kKeeps ? kWords : 1][kWidth], sum = power(x_end);
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    auto& powers = power_of[kKeeps ? i : 0];
    word[i].to_floats(powers);
#pragma unroll
    for (float& v : powers) sum += v = power(v);
  }
  sum = Words::reduce(sum, tile::Add{}, sum_smem);

  if (!kKeeps) Words::hide(word);
  const Normalize<kPlain> normalize(params, {max, sum});
  const auto finish = [&](float v) {
    return kPlain || !params.log ? power(v) * normalize.last : normalize(v);
  };
  if (end >= 0) y_row[end] = static_cast<T>(finish(x_end));
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    if (!words.has(i)) continue;
    word[i].to_floats(value);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      value[e] = kKeeps ? power_of[kKeeps ? i : 0][e] * normalize.last : finish(value[e]);
    }
    Words::Word::from_floats(value).store(words.at(y_row, i));
  }
}
// snippet-end kernel

}  // namespace

tile::Status takes_words(const ForwardProblem& p, const ForwardBuffers& b, const tile::Device&) {
  if (check_chunks(p, b).ok()) {
    return tile::unsupported("cols", std::to_string(p.cols) + " fill chunks of 16 bytes");
  }
  TILE_TRY(tile::check_words_alike(p.type, b.x, p.ldx, "y", b.y, "ldy", p.ldy));
  return tile::check_word_plan<kMaxWords, kMostThreads>(p.type, p.cols);
}

tile::Status words(const ForwardProblem& p, const ForwardBuffers& b, void* stream) {
  return tile::with_element_type(p.type, [&](auto element) {
    using T = decltype(element);
    return tile::with_word_plan<kMaxWords, kMostThreads>(
        p.type, p.cols, is_plain(p), [&](auto threads, auto of_thread, auto plain) {
          constexpr int kThreads = threads, kBlock = tile::RowWords<T, kThreads, of_thread>::kBlock;
          unsigned blocks = 0;
          TILE_TRY(tile::blocks_for("rows", p.rows, kBlock / kThreads, &blocks));
          return tile::launch(softmax_words<T, kThreads, of_thread, plain>, "softmax_words", blocks,
                              dim3(kThreads, kBlock / kThreads), 0, stream,
                              tile::Rows<const T>{static_cast<const T*>(b.x), p.ldx},
                              tile::Rows<T>{static_cast<T*>(b.y), p.ldy}, params_of(p));
        });
  });
}

}  // namespace softmax
