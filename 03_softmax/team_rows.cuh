// Rows that teams of blocks share: a block's slice of a row, and what the blocks of a team merge.
#pragma once

#include <climits>

#include "team_plan.hpp"
#include "tile/ptx/cp_async.cuh"
#include "tile/ptx/semaphore.cuh"
#include "tile/ptx/store.cuh"
#include "tile/reduce.cuh"
#include "tile/row_edges.cuh"

namespace softmax {

/// A block's columns of a row: those from `begin` on, after `lead` elements of chunk 0 that are not
/// the row's.
struct TeamColumns {
  std::int64_t begin;
  int lead, most;  // most: columns that its chunks have room for

  /// How many of the row's first `cols` columns these are.
  __device__ __forceinline__ int count(std::int64_t cols) const {
    return static_cast<int>(max(min(cols - begin, std::int64_t{most}), std::int64_t{0}));
  }
};

// snippet-begin slice
/// A block's slice of a row that begins anywhere. Whole chunks, which are aligned in memory, are
/// kept in shared memory as far as there is room. The others, which are the row's ends, or all
/// chunks if the output is aligned otherwise than the row, are read where they are needed. A kept
/// chunk always belongs to the same thread, which waits for its own copies and needs no barrier.
template <class T>
class TeamSlice {
 public:
  static constexpr int kWidth = 16 / sizeof(T);
  using Chunk = tile::Chunk<T, kWidth>;

  TeamSlice() = default;
  /// Only the row's first `cols` columns count. `row_smem` has the chunks that are kept. Given the
  /// `whole_end` of another slice, a chunk counts as whole only if it is whole in both.
  __device__ __forceinline__ TeamSlice(const T* row, TeamColumns columns, std::int64_t cols,
                                       tile::ptx::SharedAddress row_smem, int whole_end = INT_MAX)
      : from_(row + columns.begin),
        lead_(columns.lead),
        count_(columns.count(cols)),
        whole_end_(
            tile::misalignment(from_ - lead_) == 0 ? min((count_ + lead_) / kWidth, whole_end) : 0),
        row_smem_(row_smem) {}

  /// The column, of the block's, at which chunk j begins.
  __device__ __forceinline__ int column(int j) const { return j * kWidth - lead_; }
  /// The chunks before this one are whole, except chunk 0 if the row begins within it.
  __device__ __forceinline__ int whole_end() const { return whole_end_; }
  __device__ __forceinline__ bool is_whole(int j) const { return j < whole_end_ && column(j) >= 0; }

  /// Starts to copy whole chunk j to shared memory.
  __device__ __forceinline__ void copy(int j) const {
    tile::ptx::cp_async<16>(row_smem_ + j * 16, from_ + column(j));
  }
  /// The copy of chunk j, once this thread has waited for its group.
  __device__ __forceinline__ Chunk near(int j) const {
    return {tile::ptx::load_shared(row_smem_ + j * 16)};
  }
  /// A whole chunk from global memory; and any chunk, with `fill` where no column counts.
  __device__ __forceinline__ Chunk far(int j) const { return Chunk::load(from_ + column(j)); }
  __device__ __forceinline__ Chunk part(int j, float fill) const {
    Chunk chunk[1];
    tile::load_anywhere<T, kWidth>(from_, column(j), 0, count_, fill, chunk);
    return chunk[0];
  }
  /// Stores whole chunk j to `out`, the block's columns of the output.
  __device__ __forceinline__ void store(T* out, int j, Chunk chunk) const {
    tile::ptx::store_global(out + column(j), chunk.words);
  }

 private:
  const T* from_;
  int lead_, count_;  // columns
  int whole_end_;
  tile::ptx::SharedAddress row_smem_;
};
// snippet-end slice

// snippet-begin groups
/// Waits for group `group` of the kCopyGroups that this thread has committed last.
__device__ __forceinline__ void wait_for_group(int group) {
  static_assert(kCopyGroups == 4);
  switch (group) {
    case 0: return tile::ptx::cp_async_wait<3>();
    case 1: return tile::ptx::cp_async_wait<2>();
    case 2: return tile::ptx::cp_async_wait<1>();
    default: return tile::ptx::cp_async_wait<0>();
  }
}
// snippet-end groups

/// The teams, and the global memory through which their blocks exchange values. Team t has the rows
/// t, t + teams, and so on. `Value` is what is merged over a row.
template <class Value>
struct Teams {
  TeamPlan plan;
  unsigned* arrived;  // [teams][kTeamCounterBytes / 4]: arrivals, in all rows; 0 at first
  Value* found;       // [teams][2][size]

  __device__ int team() const { return static_cast<int>(blockIdx.x) / plan.size; }
  __device__ int member() const { return static_cast<int>(blockIdx.x) % plan.size; }

  /// The block's columns of a row. Its chunks begin where 16 bytes of `out` are aligned.
  template <class T>
  __device__ __forceinline__ TeamColumns columns(const T* out) const {
    constexpr int kWidth = 16 / sizeof(T);
    const int lead = tile::misalignment(out), most = plan.chunks * kWidth;
    if (member() == 0) return {0, lead, most - lead};
    return {std::int64_t{member()} * most - lead, 0, most};
  }

  // snippet-begin merge
  /// What the blocks of the team have found in the team's row number `turn`. Each of them merges it
  /// in the order of the members, so all threads of all blocks get the same bits.
  ///
  /// Two places for each block are enough. A block writes for row i + 2 only when it has seen all
  /// members arrive at row i + 1, and each of them had read the values of row i before it arrived.
  template <class Merge>
  __device__ __forceinline__ Value merge(Value value, unsigned turn, Merge merge) const {
    const int size = plan.size;
    Value* of_turn = found + (2 * team() + turn % 2) * size;
    if (threadIdx.x == 0) {
      unsigned* counter = arrived + team() * (kTeamCounterBytes / 4);
      of_turn[member()] = value;
      tile::ptx::semaphore_add(counter);
      tile::ptx::semaphore_wait_to_reach(counter, (turn + 1) * size);
    }
    __syncthreads();  // all members have arrived
    Value all = merge.identity();
    for (int i = static_cast<int>(threadIdx.x) % tile::kWarp; i < size; i += tile::kWarp) {
      all = merge(all, of_turn[i]);
    }
    using tile::reduce_lanes;  // a MaxSum has one of its own, in softmax.cuh
    return reduce_lanes(all, merge);
  }
  // snippet-end merge
};

/// Places the teams' memory in a workspace of team_workspace_bytes(), and clears the counters.
template <class Value>
tile::Status prepare_teams(const TeamPlan& plan, void* workspace, void* stream,
                           Teams<Value>* teams) {
  const auto counters = static_cast<std::size_t>(plan.teams * kTeamCounterBytes);
  auto* bytes = static_cast<char*>(workspace);
  *teams = {plan, reinterpret_cast<unsigned*>(bytes), reinterpret_cast<Value*>(bytes + counters)};
  TILE_RETURN_IF_CUDA_ERROR(
      cudaMemsetAsync(workspace, 0, counters, static_cast<cudaStream_t>(stream)));
  return {};
}

}  // namespace softmax
