// Reductions over a cluster that stays for many rows, one after the other, and which row is next.
//
// A barrier of the cluster would make each thread wait until all that it has written is visible to
// the other blocks, the row before included, which is still on its way to global memory
// (docs/notes/03_softmax.md). A message says only when it has itself arrived.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "tile/ptx/cluster.cuh"
#include "tile/ptx/mbarrier.cuh"
#include "tile/reduce.cuh"

namespace tile {

inline constexpr int kMostSenders = 256;  // 16 blocks of 512 threads, a warp each

/// Where the messages for one row arrive, in the shared memory of each block.
template <class T>
struct Mailbox {
  T values[kMostSenders];  // of all warps of the cluster
  std::int64_t next_row;
  ptx::Mbarrier arrived;
};

/// All blocks of the cluster make one, with two mailboxes of shared memory, and have as many whole
/// warps. For each row all threads call ask_for_row(), send() and receive() in this order. Rows are
/// given out in order to whoever asks, so that the clusters stay together: those that have more of
/// the memory's bandwidth take more rows, and what is read and written at one time lies close
/// together.
///
/// Two mailboxes are enough. A warp sends for row i + 2 when it has received for row i + 1, to
/// which all warps have sent, each of them after it had read what it had received for row i.
template <class T>
class ClusterMail {
 public:
  /// `rows_taken` is of global memory and 0 when the kernel begins. The first row of a cluster is
  /// first_row(). Waits for the other blocks, into which nobody may write before.
  __device__ __forceinline__ ClusterMail(Mailbox<T>* boxes, unsigned long long* rows_taken)
      : boxes_(boxes), rows_taken_(rows_taken) {  // [2]
    if (threadIdx.x == 0) {
      ptx::mbarrier_init(&boxes[0].arrived, 1);
      ptx::mbarrier_init(&boxes[1].arrived, 1);
    }
    ptx::cluster_sync();
  }

  __device__ static std::int64_t first_row() { return blockIdx.x / ptx::cluster_size(); }

  /// Takes the row after this one. The answer takes as long as a load; send() waits for it.
  __device__ __forceinline__ void ask_for_row() {
    if (is_first() && lane() == 0) {
      next_ = static_cast<std::int64_t>(atomicAdd(rows_taken_, 1)) +
              static_cast<std::int64_t>(gridDim.x / ptx::cluster_size());
    }
  }

  // snippet-begin send
  /// To all blocks what this warp has, the same in its lanes.
  __device__ __forceinline__ void send(T value) {
    const auto warps = static_cast<int>(blockDim.x) / kWarp;
    const auto blocks = static_cast<int>(ptx::cluster_size());
    Mailbox<T>& box = boxes_[turn_ & 1];
    if (threadIdx.x == 0) {
      ptx::mbarrier_arrive_expect(
          &box.arrived,
          static_cast<unsigned>(blocks * warps * static_cast<int>(sizeof(T)) + 8));  // and a row
    }
    if (is_first()) next_ = __shfl_sync(kAllLanes, next_, 0);
    __syncwarp();  // all lanes have read what the warp received last: its message says so, too
    if (lane() >= blocks) return;
    const auto to = static_cast<unsigned>(lane());
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    T* mine = box.values + static_cast<int>(ptx::cluster_rank()) * warps + warp;
    ptx::store_async(mine, value, &box.arrived, to);
    if (is_first()) ptx::store_async(&box.next_row, next_, &box.arrived, to);
  }

  /// The reduction over all warps of the cluster, in every thread and to the same bits.
  template <class Merge>
  __device__ __forceinline__ T receive(Merge merge, std::int64_t* next_row) {
    Mailbox<T>& box = boxes_[turn_ & 1];
    ptx::mbarrier_wait(&box.arrived, turn_ >> 1 & 1);
    ++turn_;
    *next_row = box.next_row;
    const int count = static_cast<int>(ptx::cluster_size() * blockDim.x) / kWarp;
    return reduce_lanes(merge_some(box.values, lane(), count, merge), merge);
  }
  // snippet-end send

 private:
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
  /// The warp that asks for the cluster.
  __device__ static bool is_first() { return ptx::cluster_rank() == 0 && threadIdx.x < kWarp; }

  Mailbox<T>* boxes_;  // [2]
  unsigned long long* rows_taken_;
  std::int64_t next_ = 0;
  unsigned turn_ = 0;
};

}  // namespace tile
