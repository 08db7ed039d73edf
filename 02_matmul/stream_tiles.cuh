// For step 24: copies of a tile float by float, and sums that one block leaves for another.
#pragma once

#include "tile/ptx/cp_async.cuh"
#include "tiles.cuh"

namespace matmul {

/// Like TileLoader, but copies each float in the background straight to its place, k first.
template <bool kAlongK, int kExtent, int kBlockThreads>
class WordLoader {
 public:
  __device__ WordLoader(const float* data, std::int64_t ld, std::int64_t x0, std::int64_t count,
                        std::int64_t k)
      : x_left_(static_cast<int>(min(count - x0, std::int64_t{kExtent}))),
        k_left_(static_cast<int>(k)),
        ld_(ld) {
    x_ = kAlongK ? threadIdx.x / kTileK : threadIdx.x % kExtent;
    k_ = kAlongK ? threadIdx.x % kTileK : threadIdx.x / kExtent;
    next_ = data + (kAlongK ? (x0 + x_) * ld + k_ : k_ * ld + x0 + x_);
  }

  // snippet-begin fetch
  /// Begins to copy the next tile. Elements outside of the matrix count as zero.
  __device__ void fetch(TileOf<kExtent>& tile) {
    const tile::ptx::SharedAddress to(&tile[k_][x_]);
    if (x_left_ >= kExtent && k_left_ >= kTileK) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) tile::ptx::cp_async<4>(to + bytes(i), from(i));
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const bool inside = x_ + dx(i) < x_left_ && k_ + dk(i) < k_left_;
        tile::ptx::cp_async<4>(to + bytes(i), inside ? from(i) : next_, inside ? 4 : 0);
      }
    }
    next_ += kAlongK ? kTileK : kTileK * ld_;
    k_left_ -= kTileK;
  }
  // snippet-end fetch
  /// Waits until this thread's copies have landed.
  __device__ void put(const TileOf<kExtent>&) const { tile::ptx::cp_async_wait_all(); }

 private:
  static constexpr int kCount = kTileK * kExtent / kBlockThreads;
  static_assert(kBlockThreads % kTileK == 0 && kExtent % kBlockThreads == 0);
  // From a thread's first element to its i-th: along x, along k, and in bytes of the tile.
  static constexpr __device__ int dx(int i) {
    return kAlongK ? i * (kBlockThreads / kTileK) : i % (kExtent / kBlockThreads) * kBlockThreads;
  }
  static constexpr __device__ int dk(int i) { return kAlongK ? 0 : i / (kExtent / kBlockThreads); }
  static constexpr __device__ int bytes(int i) { return (dk(i) * (kExtent + kVector) + dx(i)) * 4; }
  __device__ const float* from(int i) const {
    return kAlongK ? next_ + dx(i) * ld_ : next_ + dk(i) * ld_ + dx(i);
  }

  int x_left_, k_left_;  // elements from the tile's corner to the matrix's end
  std::int64_t ld_;
  int x_, k_;  // in the tile, of this thread's first element
  const float* next_;
};

template <bool kWords, bool kAlongK, int kExtent, int kBlockThreads>
using Loader = std::conditional_t<kWords, WordLoader<kAlongK, kExtent, kBlockThreads>,
                                  TileLoader<kAlongK, kExtent, kBlockThreads>>;

constexpr int kSumVectors = kThreadM * kThreadN / kVector;  // of a thread
/// Stores a thread's sums, four at a time: neighbouring threads store neighbouring vectors.
__device__ inline void leave_sums(const float* sum, float4* part, int threads) {
#pragma unroll
  for (int i = 0; i < kSumVectors; ++i, sum += kVector) {
    part[i * threads + threadIdx.x] = {sum[0], sum[1], sum[2], sum[3]};
  }
}
__device__ inline void add_sums(float* sum, const float4* part, int threads) {
  constexpr int kTogether = 8;  // loads that are under way at one time
#pragma unroll
  for (int i = 0; i < kSumVectors; i += kTogether) {
    float4 found[kTogether];
#pragma unroll
    for (int e = 0; e < kTogether; ++e) found[e] = part[(i + e) * threads + threadIdx.x];
#pragma unroll
    for (int e = 0; e < kTogether; ++e, sum += kVector) {
      sum[0] += found[e].x, sum[1] += found[e].y, sum[2] += found[e].z, sum[3] += found[e].w;
    }
  }
}

}  // namespace matmul
