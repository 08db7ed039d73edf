// Kernels around cp.async.
#pragma once

#include <cuda_runtime_api.h>

namespace device_test {

// ---- Steps of one thread ----

inline constexpr int kSlots = 4;
inline constexpr int kScriptLength = 32;

/// What each thread of a block does, a letter a step:
///   a to d   copies the next of its inputs to its slot of this letter
///   ,        commits
///   0 to 3   waits for all but this number of groups
///   *        waits for all copies
///   A to D   stores what is in that slot as its next output
struct Script {
  char steps[kScriptLength] = {};
};
/// `in` and `out` have kScriptLength elements for each of the threads; those of one step are
/// neighbours. All slots hold -1 at first.
void run_script(const Script& script, const float* in, float* out, int threads);

// ---- Sizes ----

/// Thread t copies `bytes` (4, 8 or 16) of `in`, from its byte t * bytes on, to the same place of
/// `out`, through shared memory.
void copy_pieces(int bytes, const unsigned char* in, unsigned char* out, int threads);

/// The same of the first t % (bytes + 1) bytes only.
void copy_part(int bytes, const unsigned char* in, unsigned char* out, int threads);

/// Copies nothing of a null pointer to 16 bytes of each thread.
void copy_nothing(unsigned char* out, int threads);

// ---- A pipeline ----

inline constexpr int kTile = 64;  // elements, and threads of a block

/// Block b: out[b][t] = the sum over all of its `tiles` tiles of in[b][tile][kTile - 1 - t]. Three
/// tiles are under way at a time.
void sum_tiles(const float* in, float* out, int blocks, int tiles);

// ---- What only the CPU device promises ----

/// memory[0] and memory[1] become 5, written to memory[0] between a copy of it and the wait.
void read_late(float* memory);

/// Issues copies to each thread's slot and ends, by __trap() if it is to `fail`.
void leave_copies(const float* in, int blocks, bool fail);

/// One thread issues `count` copies to the same place, of in[0], in[1], …, and waits then. out[0]
/// is what is there before the wait, out[1] after it.
void never_wait(const float* in, float* out, int count);

enum class BadCopy {
  none,
  misaligned_destination,
  misaligned_source,
  global_destination,
  shared_source,
  local_source,
  negative_size,
  large_size,
};
/// Thread 5 issues a wrong copy of 16 bytes.
void bad_copy(BadCopy mistake, float* memory);

}  // namespace device_test
