// The CPU device's stand-in for CUDA's header of the same name (CUDA C++ Programming Guide,
// "Cooperative Groups"). Tiles have up to 32 threads; there are no groups over several devices.
#pragma once

#include <cstring>
#include <type_traits>
#include <utility>

#include "cpu_device/cluster.h"
#include "cuda_runtime.h"

namespace cooperative_groups {

using cpu_device::Site;

namespace details {

/// Bytes that a shuffle moves at a time. `shuffle(value)` is called for each 8 of them.
template <class T, class Shuffle>
T in_pieces(const T& value, Shuffle shuffle) {
  static_assert(std::is_trivially_copyable_v<T>);
  unsigned long long pieces[(sizeof(T) + 7) / 8] = {};
  std::memcpy(pieces, &value, sizeof(T));
  for (unsigned long long& piece : pieces) piece = shuffle(piece);
  T result;
  std::memcpy(&result, pieces, sizeof(T));
  return result;
}

inline unsigned volume(dim3 extents) { return extents.x * extents.y * extents.z; }

inline unsigned rank_in_block() {
  return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
}

/// Some lanes of a warp, in the order of their numbers.
class Lanes {
 public:
  explicit Lanes(unsigned mask) : mask_(mask) {}

  unsigned size() const { return static_cast<unsigned>(std::popcount(mask_)); }
  unsigned num_threads() const { return size(); }
  unsigned thread_rank() const { return rank_of(cpu_device::lane_id()); }
  void sync(Site site = Site::here()) const { __syncwarp(mask_, site); }

  int all(int predicate, Site site = Site::here()) const {
    return __all_sync(mask_, predicate, site);
  }
  int any(int predicate, Site site = Site::here()) const {
    return __any_sync(mask_, predicate, site);
  }
  /// A bit for each thread, by its rank.
  unsigned ballot(int predicate, Site site = Site::here()) const {
    return by_rank(__ballot_sync(mask_, predicate, site));
  }
  template <class T>
  unsigned match_any(T value, Site site = Site::here()) const {
    return by_rank(__match_any_sync(mask_, value, site));
  }
  template <class T>
  unsigned match_all(T value, int& predicate, Site site = Site::here()) const {
    return by_rank(__match_all_sync(mask_, value, &predicate, site));
  }

  template <class T>
  T shfl(T value, unsigned rank, Site site = Site::here()) const {
    return from_lane(value, lane_of(rank % size()), site);
  }
  // A lane that would read past the end of the group keeps its own value.
  template <class T>
  T shfl_up(T value, unsigned delta, Site site = Site::here()) const {
    const unsigned rank = thread_rank();
    return from_lane(value, lane_of(rank < delta ? rank : rank - delta), site);
  }
  template <class T>
  T shfl_down(T value, unsigned delta, Site site = Site::here()) const {
    const unsigned rank = thread_rank();
    return from_lane(value, lane_of(rank + delta < size() ? rank + delta : rank), site);
  }

  unsigned mask() const { return mask_; }
  /// Those with `count` ranks from `first` on.
  Lanes part(unsigned first, unsigned count) const {
    unsigned lanes = 0;
    for (unsigned rank = first; rank < first + count && rank < size(); ++rank) {
      lanes |= 1u << lane_of(rank);
    }
    return Lanes(lanes);
  }

 protected:
  template <class T>
  T from_lane(const T& value, unsigned lane, Site site) const {
    return in_pieces(value, [&](unsigned long long piece) {
      return __shfl_sync(mask_, piece, static_cast<int>(lane), 32, site);
    });
  }

 private:
  unsigned rank_of(unsigned lane) const {
    return static_cast<unsigned>(std::popcount(mask_ & ((1u << lane) - 1)));
  }
  unsigned lane_of(unsigned rank) const {
    unsigned rest = mask_;
    for (; rank > 0; --rank) rest &= rest - 1;
    return static_cast<unsigned>(std::countr_zero(rest));
  }
  unsigned by_rank(unsigned lanes) const {
    unsigned ranks = 0;
    for (unsigned rest = lanes; rest; rest &= rest - 1) {
      ranks |= 1u << rank_of(static_cast<unsigned>(std::countr_zero(rest)));
    }
    return ranks;
  }

  unsigned mask_;
};

/// The lanes of the calling thread's part of its warp, `size` of them; the block's last warp may be
/// short.
inline unsigned mask_of_tile(unsigned size) {
  const unsigned lane = cpu_device::lane_id();
  const unsigned threads = volume(blockDim), first = rank_in_block() - lane;
  const unsigned tile = size == 32 ? ~0u : ((1u << size) - 1) << lane / size * size;
  return threads - first >= 32 ? tile : tile & ((1u << (threads - first)) - 1);
}

}  // namespace details

// ---- The block ----

class thread_block {
 public:
  static void sync(Site site = Site::here()) { __syncthreads(site); }
  static unsigned size() { return details::volume(blockDim); }
  static unsigned num_threads() { return size(); }
  static unsigned thread_rank() { return details::rank_in_block(); }
  static dim3 group_index() { return blockIdx; }
  static dim3 thread_index() { return threadIdx; }
  static dim3 group_dim() { return blockDim; }
  static dim3 dim_threads() { return blockDim; }
  // Between the two a thread may do what concerns no other. Here it waits at the first.
  struct arrival_token {};
  static arrival_token barrier_arrive(Site site = Site::here()) {
    sync(site);
    return {};
  }
  static void barrier_wait(arrival_token&&) {}
};

inline thread_block this_thread_block() { return {}; }
inline void sync(const thread_block& group, Site site = Site::here()) { group.sync(site); }

// ---- The grid ----

class grid_group {
 public:
  /// Whether the launch is cooperative, so that the grid can meet.
  static bool is_valid() { return cpu_device::in_cooperative_launch(); }
  static void sync(Site site = Site::here()) { cpu_device::grid_sync(site); }
  static unsigned long long size() { return num_blocks() * thread_block::size(); }
  static unsigned long long num_threads() { return size(); }
  static unsigned long long thread_rank() {
    return block_rank() * thread_block::size() + thread_block::thread_rank();
  }
  static unsigned long long num_blocks() {
    return static_cast<unsigned long long>(gridDim.x) * gridDim.y * gridDim.z;
  }
  static unsigned long long block_rank() {
    return (static_cast<unsigned long long>(blockIdx.z) * gridDim.y + blockIdx.y) * gridDim.x +
           blockIdx.x;
  }
  static dim3 group_dim() { return gridDim; }
  static dim3 dim_blocks() { return gridDim; }
  static dim3 block_index() { return blockIdx; }
};

inline grid_group this_grid() { return {}; }
inline void sync(const grid_group& group, Site site = Site::here()) { group.sync(site); }

// ---- Parts of a warp ----

/// Those lanes that are together at the call, or a part of them.
class coalesced_group : public details::Lanes {
 public:
  explicit coalesced_group(unsigned mask, unsigned rank = 0, unsigned groups = 1)
      : Lanes(mask), meta_rank_(rank), meta_size_(groups) {}
  /// Which of the groups that its parent was divided into it is, and how many these are.
  unsigned meta_group_rank() const { return meta_rank_; }
  unsigned meta_group_size() const { return meta_size_; }

 private:
  unsigned meta_rank_, meta_size_;
};
inline coalesced_group coalesced_threads(Site site = Site::here()) {
  return coalesced_group(__activemask(site));
}

template <unsigned kSize, class Parent = void>
class thread_block_tile : public details::Lanes {
  static_assert(kSize <= 32 && (kSize & (kSize - 1)) == 0,
                "on the CPU device a tile has a power of two of threads, 32 at most");

 public:
  /// Of a parent with so many threads, in which this one has the rank.
  thread_block_tile(unsigned rank, unsigned threads)
      : Lanes(details::mask_of_tile(kSize)),
        meta_rank_(rank / kSize),
        meta_size_((threads + kSize - 1) / kSize) {}
  template <class Any>
  thread_block_tile(const thread_block_tile<kSize, Any>& same)
      : Lanes(same), meta_rank_(same.meta_group_rank()), meta_size_(same.meta_group_size()) {}

  static constexpr unsigned size() { return kSize; }
  static constexpr unsigned num_threads() { return kSize; }
  static unsigned thread_rank() { return details::rank_in_block() % kSize; }
  unsigned meta_group_rank() const { return meta_rank_; }
  unsigned meta_group_size() const { return meta_size_; }

  template <class T>
  T shfl(T value, int rank, Site site = Site::here()) const {
    const unsigned lane = cpu_device::lane_id();
    return from_lane(value, lane / kSize * kSize + static_cast<unsigned>(rank) % kSize, site);
  }
  template <class T>
  T shfl_xor(T value, unsigned lane_mask, Site site = Site::here()) const {
    const unsigned lane = cpu_device::lane_id();
    return from_lane(value, lane / kSize * kSize + ((lane ^ lane_mask) % kSize), site);
  }

 private:
  unsigned meta_rank_, meta_size_;
};

template <unsigned kSize>
thread_block_tile<kSize, thread_block> tiled_partition(const thread_block& block) {
  return {block.thread_rank(), block.size()};
}
template <unsigned kSize, unsigned kParent, class Any>
thread_block_tile<kSize, thread_block_tile<kParent, Any>> tiled_partition(
    const thread_block_tile<kParent, Any>& tile) {
  static_assert(kSize <= kParent);
  return {tile.thread_rank(), kParent};
}

/// Every `size` threads of the group, in the order of their ranks.
inline coalesced_group tiled_partition(const coalesced_group& group, unsigned size) {
  const unsigned rank = group.thread_rank() / size;
  return coalesced_group(group.part(rank * size, size).mask(), rank,
                         (group.size() + size - 1) / size);
}

/// Threads of a group by what a predicate, or a label, says of them.
template <class Group, class Label>
coalesced_group labeled_partition(const Group& group, Label label, Site site = Site::here()) {
  const unsigned those = __match_any_sync(group.mask(), label, site);
  // Parts are counted by their lowest lanes.
  const unsigned lowest = those & (0u - those);
  const unsigned leaders = __ballot_sync(group.mask(), lowest == 1u << cpu_device::lane_id(), site);
  return coalesced_group(those, static_cast<unsigned>(std::popcount(leaders & (lowest - 1))),
                         static_cast<unsigned>(std::popcount(leaders)));
}
template <class Group>
coalesced_group binary_partition(const Group& group, bool predicate, Site site = Site::here()) {
  const unsigned all = group.mask(), those = __ballot_sync(all, predicate, site);
  if (those == 0 || those == all) return coalesced_group(all);
  return coalesced_group(predicate ? those : all & ~those, predicate ? 1 : 0, 2);
}

// ---- The cluster ----

class cluster_group {
 public:
  struct arrival_token {};
  static void sync(Site site = Site::here()) { cpu_device::cluster_sync(site); }
  static arrival_token barrier_arrive(Site site = Site::here()) {
    cpu_device::cluster_arrive(site);
    return {};
  }
  static void barrier_wait(arrival_token&& = {}, Site site = Site::here()) {
    cpu_device::cluster_wait(site);
  }
  static unsigned block_rank(Site site = Site::here()) { return cpu_device::cluster_rank(site); }
  static unsigned num_blocks(Site site = Site::here()) { return cpu_device::cluster_size(site); }
  static unsigned thread_rank(Site site = Site::here()) {
    return block_rank(site) * thread_block::size() + thread_block::thread_rank();
  }
  static unsigned num_threads(Site site = Site::here()) {
    return num_blocks(site) * thread_block::size();
  }
  static unsigned size(Site site = Site::here()) { return num_threads(site); }
  template <class T>
  static T* map_shared_rank(T* shared, unsigned rank, Site site = Site::here()) {
    return cpu_device::in_block_of_cluster(shared, rank, site);
  }
};

inline cluster_group this_cluster() { return {}; }
inline void sync(const cluster_group& group, Site site = Site::here()) { group.sync(site); }

// ---- Any of them ----

class thread_group {
 public:
  thread_group(const thread_block&) : mask_(0) {}
  thread_group(const details::Lanes& lanes) : mask_(lanes.mask()) {}

  unsigned size() const { return mask_ ? lanes().size() : thread_block::size(); }
  unsigned num_threads() const { return size(); }
  unsigned thread_rank() const {
    return mask_ ? lanes().thread_rank() : thread_block::thread_rank();
  }
  void sync(Site site = Site::here()) const {
    mask_ ? lanes().sync(site) : thread_block::sync(site);
  }
  /// The `size` threads of this group to which the calling one belongs.
  thread_group part(unsigned size) const {
    if (!mask_) return details::Lanes(details::mask_of_tile(size));
    return lanes().part(lanes().thread_rank() / size * size, size);
  }

 private:
  details::Lanes lanes() const { return details::Lanes(mask_); }
  unsigned mask_;  // 0 for the block
};

inline thread_group tiled_partition(const thread_group& group, unsigned size) {
  return group.part(size);
}
template <class Group>
void sync(const Group& group, Site site = Site::here()) {
  group.sync(site);
}
template <class Group, class Function>
void invoke_one(const Group& group, Function function) {
  if (group.thread_rank() == 0) function();
}

}  // namespace cooperative_groups
