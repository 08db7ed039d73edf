// Every warp-level primitive, in a few kernels of one block.
#pragma once

#include <cuda_runtime_api.h>

namespace device_test {

// ---- Shuffles ----

enum { kIdx, kUp, kDown, kXor, kShuffles };

inline constexpr int kWidths = 6;          // 1, 2, 4 … 32
inline constexpr int kFirstArgument = -5;  // the source lane, the delta or the mask of lanes
inline constexpr int kArguments = 75;

/// Every shuffle of `in`, [threads], into `out`, [kWidths][kArguments][kShuffles][threads].
/// Instantiated for the types that CUDA shuffles.
template <class T>
void shuffles(const T* in, T* out, unsigned mask, unsigned threads);

// ---- Votes, matches, reductions ----

struct WarpValues {
  int predicate;
  int integer;
  long long wide;
  float single;
  double full;
};

struct WarpResults {
  int all, any;
  unsigned ballot;
  unsigned match_any_int, match_any_unsigned, match_any_wide, match_any_float, match_any_double;
  unsigned match_all_int, match_all_wide, match_all_float, match_all_double;
  int all_match_int, all_match_wide, all_match_float, all_match_double;
  int add_int, min_int, max_int;
  unsigned add_unsigned, min_unsigned, max_unsigned, and_unsigned, or_unsigned, xor_unsigned;
  int through_shared;  // `integer` of the group's lowest lane, after __syncwarp()
};

/// All of them among the lanes of `mask`, and in the other branch among the remaining lanes.
/// `in` and `out` are [threads], numbered as CUDA numbers the threads of a block.
void collectives(const WarpValues* in, WarpResults* out, unsigned mask, dim3 block);

/// Each group of eight lanes adds up `in` by shuffles as often as its number says, 1 to 4 times:
/// groups in different loops. out[thread] is the last sum.
void groups_in_loops(const int* in, int* out, unsigned threads);

// ---- Active lanes ----

struct ActiveMasks {
  unsigned converged;
  unsigned in_branch;   // lanes that 3 divides, and the others
  unsigned in_loop[4];  // lane l makes l % 4 + 1 rounds
  unsigned after;
};

void active_masks(ActiveMasks* out, unsigned threads);

/// Lanes with an odd `in` count themselves: those that come together send one lane for all.
/// tickets[thread] is the number it got, -1 for the even ones.
void aggregated_count(const int* in, int* counter, int* tickets, unsigned threads);

}  // namespace device_test
