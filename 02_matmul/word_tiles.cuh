// Of step 24: copies of a tile whose rows begin anywhere, float by float.
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

}  // namespace matmul
