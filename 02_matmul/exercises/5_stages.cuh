// The ring of exercise 02.5: what one thread can do in a pipeline. Not to be changed.
#pragma once

#include "exercises/exercises.hpp"
#include "tensor_tiles.cuh"

namespace matmul {

/// A block computes 64 x 64 elements of C, from tiles of A and B that lie in slots of shared
/// memory: a slot holds one of each, 32 elements of k.
class Ring {
  using ATile = OperandTile<Swizzled, true, 64, 32>;
  using BTile = OperandTile<Swizzled, false, 64, 32>;
  using Chunk = tile::Vector<__half>;

 public:
  static constexpr int kBlock = 64, kThreads = 128;
  static constexpr int kSlotBytes = (ATile::kChunks + BTile::kChunks) * 16;

  /// `smem` has `slots` slots. `log` may be null.
  __device__ Ring(const Operand<__half>& a,  // [m][k]
                  const Operand<__half>& b,  // [k][n]
                  const Output<__half>& c,   // [m][n]
                  std::int64_t m, std::int64_t n, std::int64_t k, void* smem, int slots,
                  Logged* log)
      : c_(c),
        m_(m),
        n_(n),
        corner_(corner_of_block(n, kBlock, kBlock)),
        warp_(corner_of_warp<kBlock, 32, 32>()),
        a_loader_(a, m, k, static_cast<Chunk*>(smem)),
        b_loader_(b, n, k, static_cast<Chunk*>(smem) + ATile::kChunks),
        a_reader_(smem, warp_.row),
        b_reader_(static_cast<Chunk*>(smem) + ATile::kChunks, warp_.col),
        slots_(slots),
        log_(blockIdx.x == 0 && threadIdx.x == 0 ? log : nullptr) {
    a_loader_.begin(corner_.row);
    b_loader_.begin(corner_.col);
    tiles_ = a_loader_.tiles_left();
  }

  /// How many tiles of either operand there are along k.
  __device__ int tiles() const { return tiles_; }

  /// Starts to copy the next tile of A and of B to a slot: this thread's part, by cp.async. If
  /// there is none left it does nothing.
  __device__ void copy(int slot) {
    log(RingStep::copy, slot);
    if (is_slot(slot) && a_loader_.tiles_left() > 0) {
      a_loader_.copy(slot * kSlotBytes);
      b_loader_.copy(slot * kSlotBytes);
    }
  }

  /// Makes a group of what this thread has begun to copy since the last one. It may be empty.
  __device__ void commit() {
    log(RingStep::commit, 0);
    tile::ptx::cp_async_commit();
  }

  /// Waits until all of this thread's groups have landed but the latest kPending.
  template <int kPending>
  __device__ void wait() {
    log(RingStep::wait, kPending);
    tile::ptx::cp_async_wait<kPending>();
  }

  /// __syncthreads().
  __device__ void barrier() {
    log(RingStep::barrier, 0);
    __syncthreads();
  }

  /// Multiplies the two tiles in a slot: this warp's part. Adds to the sums.
  __device__ void multiply(int slot) {
    log(RingStep::multiply, slot);
    if (!is_slot(slot)) return;
    WarpFragments<32, 32> fragments;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      fragments.load(a_reader_, b_reader_, slot * kSlotBytes, part);
      sums_.add_products<__half>(fragments);
    }
  }

  /// Stores the sums.
  __device__ void store() {
    sums_.store(c_, corner_.row + warp_.row, corner_.col + warp_.col, m_, n_);
  }

 private:
  // The check says so if it is none.
  __device__ bool is_slot(int slot) const { return slot >= 0 && slot < slots_; }
  __device__ void log(RingStep step, int number) {
    if (log_ && logged_ < kMostLogged) log_[logged_++] = {step, number};
  }

  Output<__half> c_;
  std::int64_t m_, n_;
  Corner corner_;
  tile::ptx::Element warp_;
  ChunkLoader<__half, ATile, true, false, kThreads> a_loader_;
  ChunkLoader<__half, BTile, false, false, kThreads> b_loader_;
  FragmentReader<ATile, true, true, 32> a_reader_;
  FragmentReader<BTile, false, false, 32> b_reader_;
  WarpSums<32, 32> sums_;
  int slots_, tiles_ = 0;
  Logged* log_;
  int logged_ = 0;
};

}  // namespace matmul
