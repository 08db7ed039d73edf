// Barriers in shared memory that count arrivals and bytes (PTX ISA, "mbarrier"), and stores to
// other blocks of a cluster that are counted there (PTX ISA, "st.async"), for
// tile/ptx/mbarrier.cuh. They take compute capability 9.0: on a lesser card (Options::capability)
// these functions end the launch. A store is made at once.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cpu_device/qualifiers.h"
#include "cpu_device/site.h"

namespace cpu_device {

/// For __shared__ declarations. Its content is private.
struct Mbarrier {
  std::uint64_t state;
};

/// A phase takes this number of arrivals, 1 to 2^20 - 1.
void mbarrier_init(Mbarrier* barrier, unsigned arrivals, Site site = Site::here());

/// One arrival. The second form arrives at the mbarrier in this place of the block of this rank.
void mbarrier_arrive(Mbarrier* barrier, Site site = Site::here());
void mbarrier_arrive(Mbarrier* barrier, unsigned rank, Site site = Site::here());

/// One arrival, after as many bytes more are expected in this phase.
void mbarrier_arrive_expect(Mbarrier* barrier, unsigned bytes, Site site = Site::here());

/// Waits until the phase of this parity is complete: 0 for the first one, 1 for the second, 0
/// again.
void mbarrier_wait(Mbarrier* barrier, unsigned parity, Site site = Site::here());
/// The same, but the thread sees only what was done in shared memory.
void mbarrier_wait_cluster(Mbarrier* barrier, unsigned parity, Site site = Site::here());

/// Writes `bytes`, 4, 8 or 16, to where `shared` lies in the block of this rank, and counts them at
/// `barrier` there.
void store_bytes_async(void* shared, const void* value, unsigned bytes, Mbarrier* barrier,
                       unsigned rank, Site site);
template <class T>
__forceinline__ void store_async(T* shared, std::type_identity_t<T> value, Mbarrier* barrier,
                                 unsigned rank, Site site = Site::here()) {
  static_assert(std::is_trivially_copyable_v<T>);
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16,
                "st.async writes 4, 8 or 16 bytes");
  store_bytes_async(shared, &value, sizeof(T), barrier, rank, site);
}

}  // namespace cpu_device
