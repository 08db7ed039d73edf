// Of step 24: copies of a tile whose rows begin anywhere, float by float; and sums that one block
// leaves in memory and another adds to its own.
#pragma once

#include "tile/ptx/cp_async.cuh"
#include "tiles.cuh"

namespace matmul {

/// As TileLoader, but copies of 4 bytes in the background take each float to its place, k first:
/// they need no alignment, and no registers in which a vector along k would be turned.
template <bool kAlongK, int kExtent, int kBlockThreads>
class WordLoader {
 public:
  __device__ WordLoader(const float* data, std::int64_t ld, std::int64_t x0, std::int64_t count,
                        std::int64_t k)
      : x_left_(count - x0), k_left_(k), ld_(ld) {
    // Neighbouring threads take neighbouring elements of the contiguous direction.
    x_ = kAlongK ? threadIdx.x / kTileK : threadIdx.x % kExtent;
    k_ = kAlongK ? threadIdx.x % kTileK : threadIdx.x / kExtent;
    next_ = data + (kAlongK ? (x0 + x_) * ld + k_ : k_ * ld + x0 + x_);
  }

  /// Begins to copy the next tile. Elements outside of the matrix count as zero.
  __device__ void fetch(TileOf<kExtent>& tile) {
    const tile::ptx::SharedAddress to(&tile[k_][x_]);
    const bool whole = x_left_ >= kExtent && k_left_ >= kTileK;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float* from = next_ + (kAlongK ? dx(i) * ld_ : dk(i) * ld_ + dx(i));
      const int bytes = (dk(i) * kPitch + dx(i)) * static_cast<int>(sizeof(float));
      if (whole) {
        tile::ptx::cp_async<4>(to + bytes, from);
      } else {
        const bool inside = x_ + dx(i) < x_left_ && k_ + dk(i) < k_left_;
        tile::ptx::cp_async<4>(to + bytes, inside ? from : next_, inside ? 4 : 0);
      }
    }
    next_ += kAlongK ? kTileK : kTileK * ld_;
    k_left_ -= kTileK;
  }

  /// The copies of this thread are there.
  __device__ void put(const TileOf<kExtent>&) const { tile::ptx::cp_async_wait_all(); }

 private:
  static constexpr int kPitch = kExtent + kVector;
  static constexpr int kCount = kTileK * kExtent / kBlockThreads;
  static_assert(kBlockThreads % kTileK == 0 && kExtent % kBlockThreads == 0);
  // How far a thread's i-th element lies from its first, along x and along k.
  static constexpr __device__ int dx(int i) {
    return kAlongK ? i * (kBlockThreads / kTileK) : i % (kExtent / kBlockThreads) * kBlockThreads;
  }
  static constexpr __device__ int dk(int i) { return kAlongK ? 0 : i / (kExtent / kBlockThreads); }

  std::int64_t x_left_, k_left_;  // elements from the tile's corner to the matrix's end
  std::int64_t ld_;
  int x_, k_;  // in the tile, of this thread's first element
  const float* next_;
};

template <bool kWords, bool kAlongK, int kExtent, int kBlockThreads>
using Loader = std::conditional_t<kWords, WordLoader<kAlongK, kExtent, kBlockThreads>,
                                  TileLoader<kAlongK, kExtent, kBlockThreads>>;

// Of a thread's sums, four neighbours of a row each. A block's threads leave them side by side.
constexpr int kSumVectors = kThreadM * kThreadN / kVector;

template <int kBlockThreads>
__device__ void leave_sums(Sums& sums, float4* part) {
  const float* sum = &sums.sum[0][0];
#pragma unroll
  for (int i = 0; i < kSumVectors; ++i) {
    part[i * kBlockThreads + threadIdx.x] = load_vector(sum + i * kVector);
  }
}

template <int kBlockThreads>
__device__ void add_sums(Sums& sums, const float4* part) {
  constexpr int kTogether = 8;  // so many loads are under way at a time
  float* sum = &sums.sum[0][0];
#pragma unroll
  for (int i = 0; i < kSumVectors; i += kTogether) {
    float4 found[kTogether];
#pragma unroll
    for (int e = 0; e < kTogether; ++e) found[e] = part[(i + e) * kBlockThreads + threadIdx.x];
#pragma unroll
    for (int e = 0; e < kTogether; ++e) {
      float* to = sum + (i + e) * kVector;
      to[0] += found[e].x, to[1] += found[e].y, to[2] += found[e].z, to[3] += found[e].w;
    }
  }
}

}  // namespace matmul
