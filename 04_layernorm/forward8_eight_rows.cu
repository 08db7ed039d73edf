// Forward, step 8: eight neighbouring rows are whole chunks together.
// Idea: rows of 2-byte elements that follow one another without gaps begin anywhere, but every
//       eighth of them begins with a chunk. A block copies eight such rows or more to shared memory
//       as one piece. There a thread has words of four rows that begin alike, as it has columns of
//       four rows in step 4, and loads gamma and beta once for all four. It stores y over x, and
//       the block copies all of y to global memory as one piece.
// Change: from step 7, the copies, and four rows in the place of one.
// Limit: a block computes nothing before all of its rows have landed. If rows are long, few other
//        blocks fit on the multiprocessor that could compute meanwhile.
#include "four_sums.cuh"
#include "layernorm.hpp"
#include "tile/host/chunks.hpp"
#include "tile/host/launch.hpp"
#include "tile/ptx/async_proxy.cuh"
#include "tile/ptx/tma.cuh"
#include "tile/words.cuh"

namespace layernorm {
namespace {

/// A block's rows: each group of kLanes threads has kRows rows. From one of these to the next it is
/// as many rows as there are groups, an even number, so all of them begin at a word or none does.
/// The number of a block's rows is a multiple of eight.
template <int kLanes, int kWords>
struct BlockRows {
  static constexpr int kGroups = kLanes > 64 ? 2 : tile::kThreadsOfSeveralRows / kLanes;
  static constexpr int kThreads = kGroups * kLanes, kCount = kGroups * kRows;
  // A thread keeps 4 x 7 words of x with 64 registers, and more with 72 or 80.
  static constexpr int kBlocks =
      tile::resident_blocks((kWords > 7 ? 896 : 1024) / kThreads, kThreads);
};

/// Copies elements `begin`, where a chunk begins, to `count`: in chunks, the last few one by one.
template <class T, int kThreads>
__device__ __forceinline__ void copy(const T* from, T* to, int begin, int count, int thread) {
  constexpr int kWidth = 16 / sizeof(T);
  const int whole = count / kWidth * kWidth, other = whole + thread;
#pragma unroll 4
  for (int i = begin + thread * kWidth; i < whole; i += kThreads * kWidth) {
    tile::Chunk<T, kWidth>::load(from + i).store(to + i);
  }
  if (thread < kWidth && other < count) to[other] = from[other];
}

// snippet-begin load
/// Copies the block's rows to shared memory: the first `by_tma` elements by one bulk copy, the
/// others by all threads. Elements `count` to `all`, of rows that do not exist, become zeros.
template <class T, int kThreads>
__device__ __forceinline__ void load_rows(const T* x, T* rows_smem, int by_tma, int count, int all,
                                          int thread, tile::ptx::Mbarrier* landed) {
  if (by_tma > 0 && thread == 0) {
    tile::ptx::mbarrier_init(landed, 1);
    tile::ptx::mbarrier_arrive_expect(landed, by_tma * sizeof(T));
    tile::ptx::bulk_load(rows_smem, x, by_tma * sizeof(T), landed);
  }
  copy<T, kThreads>(x, rows_smem, by_tma, count, thread);
  for (int i = count + thread; i < all; i += kThreads) rows_smem[i] = static_cast<T>(0.0f);
  __syncthreads();  // the mbarrier is initialized, and all threads have stored
  if (by_tma > 0) tile::ptx::mbarrier_wait(landed, 0);
}
// snippet-end load

template <class T, int kLanes, int kWords>
__global__ void __launch_bounds__(BlockRows<kLanes, kWords>::kThreads,
                                  BlockRows<kLanes, kWords>::kBlocks)
    layernorm_eight_rows(const T* x,      // [rows][cols], without gaps
                         const T* gamma,  // [cols], or null: all ones
                         const T* beta,   // [cols], or null: all zeros
                         T* y,            // [rows][cols], without gaps
                         float* mean,     // [rows], or null
                         float* rstd,     // [rows], or null
                         std::int64_t rows, int cols,
                         float per_col,  // 1 / cols: a division takes ten instructions
                         float eps,
                         bool centred,    // RMSNorm is not: its mean is 0
                         bool has_tma) {  // the card
  using Block = BlockRows<kLanes, kWords>;
  using Words = tile::RowWords<T, kLanes, kWords>;
  using Word = tile::Word<T>;
  constexpr bool kParts = kLanes <= tile::kWarp;         // a row has a part of a warp
  extern __shared__ __align__(16) unsigned char smem[];  // a block's rows of x, then of y
  __shared__ float partial_smem[2][kParts ? 1 : Block::kGroups][tile::kWarp];  // sums, squares
  __shared__ tile::ptx::Mbarrier landed;
  T* rows_smem = reinterpret_cast<T*>(smem);
  const int lane = static_cast<int>(threadIdx.x), group = static_cast<int>(threadIdx.y);
  const int thread = group * kLanes + lane, partial = kParts ? 0 : group;
  const std::int64_t first = std::int64_t{blockIdx.x} * Block::kCount;
  const int here = static_cast<int>(min(rows - first, std::int64_t{Block::kCount}));  // rows
  const int count = here * cols;                   // elements of these rows
  const int by_tma = has_tma ? count / 8 * 8 : 0;  // elements that one bulk copy moves

  x += first * cols, y += first * cols;
  load_rows<T, Block::kThreads>(x, rows_smem, by_tma, count, Block::kCount * cols, thread, &landed);

  T* row = rows_smem + group * cols;        // the first of the group
  const int apart = Block::kGroups * cols;  // elements from one of its rows to the next
  const Words columns(row, cols);
  Word word[kRows][kWords];  // number kWords is the single element that a thread may have
  const auto has = [&](int i) { return i < kWords ? columns.has(i) : columns.end() >= 0; };
  const auto at = [&](auto* begin, int i) {
    return i < kWords ? columns.at(begin, i) : begin + columns.end();
  };
  const auto load = [&](int r, int i) {
    const T* x_at = at(row + r * apart, i);
    return Word{i < kWords ? *reinterpret_cast<const unsigned*>(x_at)
                           : *reinterpret_cast<const unsigned short*>(x_at)};
  };

  // mean = x_0 + sum (x - x_0) / n; row_mean is the second term
  float origin[kRows] = {}, row_mean[kRows] = {}, row_rstd[kRows] = {};
#pragma unroll
  for (int r = 0; centred && r < kRows; ++r) origin[r] = static_cast<float>(row[r * apart]);
#pragma unroll
  for (int i = 0; i <= kWords; ++i) {
    if (!has(i)) continue;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const Word own = load(r, i);
      if (i < kWords) word[r][i] = own;
      const float2 value = tile::floats_of<T>(own.bits);
      row_mean[r] += value.x - origin[r];
      if (i < kWords) row_mean[r] += value.y - origin[r];
    }
  }
  if (centred) add_up<kParts>(row_mean, kLanes, partial_smem[0][partial]);
#pragma unroll
  for (float& m : row_mean) m = centred ? m * per_col : 0;
    // rstd = 1 / sqrt(sum (x - mean)^2 / n + eps)
#pragma unroll
  for (int i = 0; i <= kWords; ++i) {
    if (!has(i)) continue;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const Word own = i < kWords ? word[r][i % kWords] : load(r, i);
      const float2 value = tile::floats_of<T>(own.bits);
      const float a = value.x - origin[r] - row_mean[r], b = value.y - origin[r] - row_mean[r];
      row_rstd[r] += a * a;
      if (i < kWords) row_rstd[r] += b * b;
    }
  }
  add_up<kParts>(row_rstd, kLanes, partial_smem[1][partial]);
  float saved_mean = 0, saved_rstd = 0;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    row_rstd[r] = rsqrtf(row_rstd[r] * per_col + eps);
    if (lane == r) saved_mean = origin[r] + row_mean[r], saved_rstd = row_rstd[r];
  }
  const int saved = group + lane * Block::kGroups;  // row, of each of the first lanes
  if (lane < kRows && saved < here) {
    if (mean) mean[first + saved] = saved_mean;
    if (rstd) rstd[first + saved] = saved_rstd;
  }

  // snippet-begin finish
  // y = gamma xhat + beta
  if (kParts) __syncwarp();  // all lanes have read x_0, which y replaces
#pragma unroll
  for (int i = 0; i <= kWords; ++i) {
    if (!has(i)) continue;
    const auto column_of = [&](const T* all, int e, float otherwise) {
      return all && e < (i < kWords ? 2 : 1) ? static_cast<float>(at(all, i)[e]) : otherwise;
    };
    const float2 weight{column_of(gamma, 0, 1), column_of(gamma, 1, 1)};
    const float2 shift{column_of(beta, 0, 0), column_of(beta, 1, 0)};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const Word own = i < kWords ? word[r][i % kWords] : load(r, i);
      const float2 value = tile::floats_of<T>(own.bits);
      const float a = weight.x * ((value.x - origin[r] - row_mean[r]) * row_rstd[r]) + shift.x;
      const float b = weight.y * ((value.y - origin[r] - row_mean[r]) * row_rstd[r]) + shift.y;
      T* y_at = at(row + r * apart, i);
      if (i < kWords) Word{tile::word_of<T>(a, b)}.store(y_at);
      if (i == kWords) *y_at = static_cast<T>(a);
    }
  }
  // snippet-end finish

  if (by_tma > 0) tile::ptx::fence_async_proxy();
  __syncthreads();  // all of y is in shared memory
  copy<T, Block::kThreads>(rows_smem, y, by_tma, count, thread);
  if (by_tma == 0 || thread != 0) return;
  tile::ptx::bulk_store(y, rows_smem, by_tma * sizeof(T));
  tile::ptx::bulk_commit();
  tile::ptx::bulk_wait_read<0>();
}

/// Calls `launch` with the threads of a row of `cols` columns and the words of each.
template <class Launch>
tile::Status with_lanes(std::int64_t cols, Launch launch) {
  const auto plan = [&]<int kLanes, int kWords>() {
    return launch(std::integral_constant<int, kLanes>{}, std::integral_constant<int, kWords>{});
  };
  const std::int64_t words = cols / 2;
  if (words <= 8 * 7) return plan.template operator()<8, 7>();
  if (words <= 16 * 8) return plan.template operator()<16, 8>();
  if (words <= 32 * 9) return plan.template operator()<32, 9>();
  if (words <= 64 * 7) return plan.template operator()<64, 7>();
  if (words <= 128 * 8) return plan.template operator()<128, 8>();
  if (words <= 256 * 7) return plan.template operator()<256, 7>();
  return tile::unsupported("cols", std::to_string(cols) + " are more than 256 threads have words");
}

}  // namespace

tile::Status takes_eight_rows(const ForwardProblem& p, const ForwardBuffers& b,
                              const tile::Device&) {
  if (check_chunks(p, b).ok()) {
    return tile::unsupported("cols", std::to_string(p.cols) + " fill chunks of 16 bytes");
  }
  if (p.rows > 1 && (p.ldx != p.cols || p.ldy != p.cols)) {
    return tile::unsupported(p.ldx != p.cols ? "ldx" : "ldy", "leaves gaps between the rows");
  }
  TILE_TRY(tile::check_chunks(p.type, 8 * p.cols, "x", b.x, "", 0));
  TILE_TRY(tile::check_chunks(p.type, 8 * p.cols, "y", b.y, "", 0));
  // Eight rows of these take 56 KiB at most, which every card has.
  return with_lanes(p.cols, [](auto...) { return tile::Status{}; });
}

tile::Status eight_rows(const ForwardProblem& p, const ForwardBuffers& b, void* stream) {
  const bool has_tma = tile::has_feature(tile::device().capability, tile::Feature::tma);
  return with_lanes(p.cols, [&](auto lanes, auto count) {
    using Block = BlockRows<lanes, count>;
    const auto bytes = static_cast<std::size_t>(Block::kCount * p.cols * 2);
    unsigned blocks = 0;
    TILE_TRY(tile::blocks_for("rows", p.rows, Block::kCount, &blocks));
    const auto launch = [&](auto element) {
      using T = decltype(element);
      return tile::launch(layernorm_eight_rows<T, lanes, count>, "layernorm_eight_rows", blocks,
                          dim3(lanes, Block::kGroups), bytes, stream, static_cast<const T*>(b.x),
                          static_cast<const T*>(b.gamma), static_cast<const T*>(b.beta),
                          static_cast<T*>(b.y), b.mean, b.rstd, p.rows, p.cols,
                          static_cast<float>(1 / static_cast<double>(p.cols)), p.eps,
                          p.norm == Norm::layer, has_tma);
    };
    return p.type == tile::DType::fp16 ? launch(__half{}) : launch(__nv_bfloat16{});
  });
}

}  // namespace layernorm
