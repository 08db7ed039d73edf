// Whether two tensors among the arguments of a step have an element in one place.
#pragma once

#include <array>
#include <cstdint>

namespace tile {

/// The bytes of a strided tensor that is not empty: rows of `row_bytes` bytes, and of each further
/// dimension how many and how many bytes apart. They end within 64 bits.
struct Region {
  struct Dimension {
    std::int64_t count = 1, stride = 0;
  };
  const void* data;
  std::int64_t row_bytes;
  std::array<Dimension, 3> dimensions;

  /// In elements. The stride of a lone one does not matter.
  static Dimension dimension(std::int64_t count, std::int64_t stride, std::int64_t element_bytes) {
    return count > 1 ? Dimension{count, stride * element_bytes} : Dimension{};
  }
};

/// Whether they share a byte. Exact, also for tensors whose rows lie between each other's, but for
/// strides made up to defeat it: where it has not found a shared byte after many thousand steps it
/// says no.
bool overlap(const Region& a, const Region& b);

/// Whether two different rows of it do, in the same way.
bool overlaps_itself(const Region& x);

}  // namespace tile
