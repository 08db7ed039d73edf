// Forward, step 7: rows that begin anywhere, in words.
// Idea: as in chapter 03, all but two at most of the elements of a row that begins anywhere lie in
//       words of 4 bytes. gamma and beta do not begin as every row does, so their elements are
//       loaded one by one, from the L1.
// Change: from step 3, words in the place of chunks (tile/words.cuh).
// Limit: gamma and beta: two loads of 2 bytes for each word of either.
#include "layernorm.hpp"
#include "tile/host/launch.hpp"
#include "tile/words.cuh"

namespace layernorm {
namespace {

// snippet-begin kernel
template <class T, int kThreads, int kWords>
__global__ void __launch_bounds__(tile::RowWords<T, kThreads, kWords>::kBlock,
                                  tile::RowWords<T, kThreads, kWords>::blocks_with(1024))
    layernorm_words(tile::Rows<const T> x,  // [rows][cols]
                    const T* gamma,         // [cols], or null: all ones
                    const T* beta,          // [cols], or null: all zeros
                    tile::Rows<T> y,        // [rows][cols]
                    float* mean,            // [rows], or null
                    float* rstd,            // [rows], or null
                    std::int64_t rows, std::int64_t cols,
                    float per_col,  // 1 / cols: a division takes ten instructions
                    float eps,
                    bool centred) {  // RMSNorm is not: its mean is 0
  using Words = tile::RowWords<T, kThreads, kWords>;
  __shared__ float sum_smem[tile::kWarp], squares_smem[tile::kWarp];
  const std::int64_t row = Words::row();
  const T* x_row = x[row];  // lanes without a row still take part in shuffles
  const Words words(x_row, row < rows ? static_cast<int>(cols) : 0);

  typename Words::Word word[kWords];
  words.load(x_row, 0, word);
  const float origin = centred && row < rows ? static_cast<float>(x_row[0]) : 0;
  float x_end = words.end() >= 0 ? static_cast<float>(x_row[words.end()]) - origin : 0;
  float value[Words::kWidth];  // a word of x, then of y

  // mean = x_0 + sum (x - x_0) / n; row_mean is the second term
  float row_mean = 0;
  if (centred) {
    float sum = x_end;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if (!words.has(i)) continue;
      word[i].to_floats(value);
#pragma unroll
      for (const float v : value) sum += v - origin;
    }
    row_mean = Words::reduce(sum, tile::Add{}, sum_smem) * per_col;
  }
  // rstd = 1 / sqrt(sum (x - mean)^2 / n + eps)
  x_end -= row_mean;
  float squares = words.end() >= 0 ? x_end * x_end : 0;
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    if (!words.has(i)) continue;
    word[i].to_floats(value);
#pragma unroll
    for (const float v : value) {
      const float distance = v - origin - row_mean;
      squares += distance * distance;
    }
  }
  squares = Words::reduce(squares, tile::Add{}, squares_smem);
  const float row_rstd = rsqrtf(squares * per_col + eps);
  if (threadIdx.x == 0 && row < rows) {
    if (mean) mean[row] = origin + row_mean;
    if (rstd) rstd[row] = row_rstd;
  }

  // snippet-begin finish
  // y = gamma xhat + beta
  if (Words::kSeveralRows) __syncwarp();  // all lanes have read x_0, and y may be x
  T* y_row = y[row];
  const auto finish = [&](auto has_both) {  // gamma and beta
    constexpr bool kBoth = decltype(has_both)::value;
    const auto scaled = [&](float distance, const T* weight, const T* shift) {
      return (kBoth || gamma ? static_cast<float>(*weight) : 1) * (distance * row_rstd) +
             (kBoth || beta ? static_cast<float>(*shift) : 0);
    };
    if (words.end() >= 0)
      y_row[words.end()] = static_cast<T>(scaled(x_end, gamma + words.end(), beta + words.end()));
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if (!words.has(i)) continue;
      const T *weight = words.at(gamma, i), *shift = words.at(beta, i);
      word[i].to_floats(value);
#pragma unroll
      for (int e = 0; e < Words::kWidth; ++e) {
        value[e] = scaled(value[e] - origin - row_mean, weight + e, shift + e);
      }
      Words::Word::from_floats(value).store(words.at(y_row, i));
    }
  };
  (gamma && beta) ? finish(std::true_type{}) : finish(std::false_type{});
  // snippet-end finish
}
// snippet-end kernel

}  // namespace

tile::Status takes_words(const ForwardProblem& p, const ForwardBuffers& b, const tile::Device&) {
  if (check_chunks(p, b).ok()) {
    return tile::unsupported("cols", std::to_string(p.cols) + " fill chunks of 16 bytes");
  }
  TILE_TRY(tile::check_words_alike(p.type, b.x, p.ldx, "y", b.y, "ldy", p.ldy));
  return tile::check_word_plan<16, 512>(p.type, p.cols);
}

tile::Status words(const ForwardProblem& p, const ForwardBuffers& b, void* stream) {
  return tile::with_element_type(p.type, [&](auto element) {
    using T = decltype(element);
    return tile::with_word_plan<16, 512>(p.type, p.cols, true, [&](auto threads, auto count, auto) {
      constexpr int kThreads = threads, kBlock = tile::RowWords<T, kThreads, count>::kBlock;
      unsigned blocks = 0;
      TILE_TRY(tile::blocks_for("rows", p.rows, kBlock / kThreads, &blocks));
      return tile::launch(layernorm_words<T, kThreads, count>, "layernorm_words", blocks,
                          dim3(kThreads, kBlock / kThreads), 0, stream,
                          tile::Rows<const T>{static_cast<const T*>(b.x), p.ldx},
                          static_cast<const T*>(b.gamma), static_cast<const T*>(b.beta),
                          tile::Rows<T>{static_cast<T*>(b.y), p.ldy}, b.mean, b.rstd, p.rows,
                          p.cols, static_cast<float>(1 / static_cast<double>(p.cols)), p.eps,
                          p.norm == Norm::layer);
    });
  });
}

}  // namespace layernorm
