// Kernels whose blocks work together in clusters, for the test beside them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tile/host/status.hpp"

namespace ptx_test {

inline constexpr int kClusterThreads = 96;  // of a block

/// A launch: how many clusters of how many blocks.
struct Clusters {
  unsigned count, size;
};

/// out[2 b], out[2 b + 1]: rank and size as block b sees them.
tile::Status ranks_and_sizes(Clusters clusters, int* out);

/// Each block fills an array in shared memory with numbers of its own. out[(b * size + r) * threads
/// + t]: what thread t of block b reads of the array in block r of its cluster. `shared`: after
/// cluster_arrive_shared().
int number_of(unsigned block, int thread);
tile::Status read_all_blocks(Clusters clusters, bool shared, int* out);

/// The same sent and not fetched: each block writes its numbers to all blocks of the cluster, and
/// out is what each of them has got. `split`: between cluster_arrive() and cluster_wait() there is
/// other work, whose result follows in out[blocks * size * threads + b * threads + t]: t squared.
tile::Status write_to_all_blocks(Clusters clusters, bool split, int* out);

/// `rounds` times each block hands its numbers to the next one of the cluster, in `bytes` of
/// dynamic shared memory, the last bytes of it. out[b * threads + t]: what thread t has in the end.
tile::Status hand_on(Clusters clusters, int rounds, std::size_t bytes, int* out);

/// All threads of a cluster count in block 0 by atomics. out[c]: the count of cluster c. The last
/// warp of each block returns at once, and no thread waits for it.
tile::Status count_in_first_block(Clusters clusters, int* out);

/// Only launched: what a launch of clusters gives.
tile::Status launch_nothing(unsigned blocks, unsigned cluster, int threads, std::size_t bytes);

/// How many clusters of a kernel that does nothing the card holds at one time.
tile::Status count_clusters(unsigned cluster, int threads, std::size_t bytes, int* count);

/// Without clusters: writes `value` to out[0], by a kernel that takes an int.
tile::Status write_number(std::int64_t value, int* out);

/// Launches a kernel with so much dynamic shared memory. `allowed`: how much it may have from then
/// on.
tile::Status launch_with_shared_bytes(std::size_t bytes, int* allowed);

}  // namespace ptx_test
