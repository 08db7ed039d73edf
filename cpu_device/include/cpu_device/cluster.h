// Clusters of blocks, whose threads meet at a barrier and reach each other's shared memory, for
// tile/ptx/cluster.cuh. They take compute capability 9.0: on a lesser card (Options::capability)
// these functions end the launch.
#pragma once

#include "cpu_device/site.h"

namespace cpu_device {

/// The number of this thread's block in its cluster, and how many blocks that has.
unsigned cluster_rank(Site site = Site::here());
unsigned cluster_size(Site site = Site::here());

/// Where in the block of this rank lies what lies at `shared` in this one. Both of them place their
/// declarations alike.
void* map_to_block_of_cluster(const void* shared, unsigned rank, Site site);
template <class T>
T* in_block_of_cluster(T* shared, unsigned rank, Site site = Site::here()) {
  return static_cast<T*>(map_to_block_of_cluster(shared, rank, site));
}

/// The barrier of the cluster. Threads that have ended are not waited for (PTX ISA, "exit"). A
/// thread arrives once and waits once in turn, and all lanes of its warp at the same place.
void cluster_arrive(Site site = Site::here());
/// Tells nothing of what the thread has done, but for the mbarriers that it has initialised.
void cluster_arrive_relaxed(Site site = Site::here());
/// Tells also what the thread has done in the shared memory of its own block.
void cluster_arrive_shared(Site site = Site::here());
void cluster_wait(Site site = Site::here());
void cluster_sync(Site site = Site::here());

/// The barrier of a cooperative launch's grid, which is one cluster here, on any card.
bool in_cooperative_launch();
void grid_sync(Site site = Site::here());

}  // namespace cpu_device
