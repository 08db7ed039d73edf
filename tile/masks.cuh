// Attention with the options of chapters 05 and 07: the mask of each batch entry.
#pragma once

#include "tile/heads.cuh"
#include "tile/mask.hpp"

namespace tile {

/// The masks of all batch entries.
struct BatchMasks {
  int queries, keys, left, right;
  const int* query_lengths;  // [batch], or null
  const int* key_lengths;

  /// The mask of one entry. A length greater than the tensor's would lead out of it, so it is cut.
  __device__ Mask of(int batch) const {
    return {query_lengths ? max(0, min(query_lengths[batch], queries)) : queries,
            key_lengths ? max(0, min(key_lengths[batch], keys)) : keys, left, right};
  }
};

}  // namespace tile
