// Kernels whose blocks send to one another, for the test beside them.
#pragma once

#include "tile/host/status.hpp"

namespace ptx_test {

inline constexpr int kSenders = 64;  // threads of a block

/// Each thread sends `words` 4-byte words, 1, 2 or 4, by one store to every block of its cluster.
/// out[((b * cluster + r) * 64 + t) * words + w]: what block b has got from thread t in block r of
/// its cluster, word_of(block, t, w).
int word_of(unsigned block, int thread, int word);
tile::Status send_to_all(unsigned blocks, unsigned cluster, int words, int* out);

/// In `rounds` each block hands a number for each thread to the next one of its cluster, with a
/// barrier of the cluster after every second round only. out[b * 64 + t]: what thread t has in the
/// end, at first word_of(b, t, 0).
tile::Status hand_on_async(unsigned blocks, unsigned cluster, int rounds, int* out);

/// A ring of two slots in each block of a cluster: block 0 fills those of all, once all have
/// arrived at its mbarrier because they have read. A relaxed arrival has told of the mbarriers.
/// out[(b * items + i) * 64 + t]: i * 100 + t.
tile::Status free_by_arrivals(unsigned cluster, int items, int* out);

}  // namespace ptx_test
