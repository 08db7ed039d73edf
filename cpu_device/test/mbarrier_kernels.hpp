// Kernels whose threads wait at mbarriers, for arrivals and for what other blocks send.
#pragma once

#include <cuda_runtime_api.h>

namespace device_test {

/// A block of `threads`, each of which arrives in each phase: out[p * threads + t] is what thread t
/// reads of its neighbour t + 1 in phase p, p * 1000 + t + 1 if it has waited.
void meet_at_mbarrier(int phases, unsigned threads, int* out);

/// A ring of three slots in one block, a cluster by itself: warp 0 fills them by st.async,
/// the others read and free them. out[i * 64 + t], for 64 threads that read: i * 100 + t % 32.
cudaError_t pass_through_ring(int items, int* out);
/// The same of one item, launched without clusters: st.async is refused.
void send_without_clusters(int* out);

/// In each of `rounds` every thread sends a number to every block of its cluster, alternating
/// between two buffers, and adds up what its block got. out: a sum for each thread of `blocks` of
/// 64, as sum_of_exchange has it.
cudaError_t exchange(unsigned blocks, unsigned cluster, int rounds, int* out);
int sum_of_exchange(unsigned block, unsigned thread, unsigned cluster, int rounds);

/// How bytes are expected that two blocks send to each other: 64 threads, four bytes each.
enum class Expected {
  before,    // they are sent: all wait for that
  after,     // block 0 hears of it only when they have been sent
  in_parts,  // by 64 arrivals, of four bytes each
  by_none,   // some arrivals expect nothing
};
/// out[b * 64 + t]: what block b got, 1000 * (1 - b) + t.
cudaError_t expect_bytes(Expected when, int* out);

/// What is wrong, for thread 3 of block 1 of two if it says nothing else.
enum class Misuse {
  none,
  not_initialised,
  zeros,        // for an mbarrier
  no_arrivals,  // to be initialised with
  too_many_arrivals,
  arrival_too_many,   // in a phase that waits for bytes only
  too_many_expected,  // bytes
  too_many_sent,
  wrong_parity,
  mbarrier_in_global_memory,
  mbarrier_of_other_block,
  misaligned_mbarrier,
  send_to_global_memory,
  send_past_shared_memory,
  count_in_global_memory,
  send_to_block_2,
  misaligned_value,
  send_to_the_ended,  // block 0 has ended
  missing_arrival,    // all threads wait, and 3 has not arrived
  missing_bytes,      // block 1 waits for bytes that are never sent, block 0 for block 1
  next_phase,         // all wait for a phase that never begins
  two_phases_late,    // all wait for the first phase after the second is complete
  initialised_again,  // all wait for a phase that never begins, of an mbarrier's second life
  woken,              // a mistake just after a phase that the others waited for
};
void misuse(Misuse misuse, int* out);

/// Thread 32 waits for the first phase, and is not woken before the second is complete. *out
/// becomes the number of phases that were complete when it went on.
void wake_two_phases_late(int* out);
/// 32 threads wait for the first phase, then at __syncthreads(), while the second is completed. out
/// gets 1 from each that is not woken there, too.
void wake_once(int* out);

}  // namespace device_test
