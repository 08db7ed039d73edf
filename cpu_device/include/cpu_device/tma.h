// TMA's copies of boxes and of runs of bytes (PTX ISA, "Bulk copy", "Tensor copy"), for
// tile/ptx/tma.cuh. They take compute capability 9.0: on a lesser card (Options::capability) these
// functions end the launch.
//
// A load's bytes are counted at once and land when a thread waits for the phase that counts them.
// A store reads its shared memory when its thread waits for that, and changes global memory when
// its thread waits until it is done, or else when the block has ended.
#pragma once

#include <cstdint>

#include "cpu_device/mbarrier.h"
#include "cpu_device/qualifiers.h"
#include "cpu_device/site.h"
#include "cpu_device/tensor_map.h"

namespace cpu_device {

void prefetch_tensor_map(const TensorMap& map, Site site = Site::here());

/// `at` are the coordinates of the box's first element, `rank` of them.
void load_box(void* shared, const TensorMap& map, const int32_t* at, int rank, Mbarrier* barrier,
              Site site);
void load_box_to_ranks(void* shared, const TensorMap& map, const int32_t* at, int rank,
                       Mbarrier* barrier, uint16_t ranks, Site site);
void store_box(const TensorMap& map, const int32_t* at, int rank, const void* shared, bool adds,
               Site site);

/// A Box is tile::ptx::BoxAt.
template <class Box>
inline constexpr int kRankOf = static_cast<int>(sizeof(Box::at) / sizeof(int32_t));

template <class Box>
__forceinline__ void tma_load(void* shared, const TensorMap& map, Box box, Mbarrier* barrier,
                              Site site = Site::here()) {
  load_box(shared, map, box.at, kRankOf<Box>, barrier, site);
}
template <class Box>
__forceinline__ void tma_load_multicast(void* shared, const TensorMap& map, Box box,
                                        Mbarrier* barrier, uint16_t ranks,
                                        Site site = Site::here()) {
  load_box_to_ranks(shared, map, box.at, kRankOf<Box>, barrier, ranks, site);
}
template <class Box>
__forceinline__ void tma_store(const TensorMap& map, Box box, const void* shared,
                               Site site = Site::here()) {
  store_box(map, box.at, kRankOf<Box>, shared, false, site);
}
template <class Box>
__forceinline__ void tma_reduce_add(const TensorMap& map, Box box, const void* shared,
                                    Site site = Site::here()) {
  store_box(map, box.at, kRankOf<Box>, shared, true, site);
}

void bulk_load(void* shared, const void* global, unsigned bytes, Mbarrier* barrier,
               Site site = Site::here());
void bulk_store(void* global, const void* shared, unsigned bytes, Site site = Site::here());
void bulk_reduce_add(float* global, const void* shared, unsigned bytes, Site site = Site::here());

/// Groups of the calling thread's stores, as those of cp.async are.
void bulk_commit(Site site = Site::here());
void wait_for_reads_of_stores(int pending, Site site);
void wait_for_stores(int pending, Site site);
template <int kGroups>
__forceinline__ void bulk_wait_read(Site site = Site::here()) {
  wait_for_reads_of_stores(kGroups, site);
}
template <int kGroups>
__forceinline__ void bulk_wait(Site site = Site::here()) {
  wait_for_stores(kGroups, site);
}

}  // namespace cpu_device
