// Which keys a query sees, and which tiles of keys its tile must visit. Kernels, reference, tests
// and figures all use this.
#pragma once

#include <cuda_runtime_api.h>  // __host__ and __device__

namespace tile {

/// Lengths are at most this, so that positions and windows can be added within 32 bits. A window of
/// this size is no limit.
inline constexpr int kMaxLength = 1 << 29;

// snippet-begin mask
/// Query i stands beside key i + keys - queries, so that the last query stands beside the last key.
/// It sees `left` keys before that one, and `right` after it. Causal: right = 0. One of the two may
/// be negative: then what it sees begins after that key, or ends before it.
struct Mask {
  int queries, keys;
  int left, right;

  __host__ __device__ constexpr int position(int query) const { return query + keys - queries; }
  /// A query sees the keys from first_key() to before end_key(), if there are any.
  __host__ __device__ constexpr int first_key(int query) const {
    const int first = position(query) - left;
    return first > 0 ? first : 0;
  }
  __host__ __device__ constexpr int end_key(int query) const {
    const int end = position(query) + right + 1;
    return query >= queries ? 0 : end < keys ? end : keys;
  }
  __host__ __device__ constexpr bool sees(int query, int key) const {
    return key >= first_key(query) && key < end_key(query);
  }
  // snippet-end mask

  /// Whether any of some queries that follow one another may see any of some keys. Rows of queries
  /// beyond the last see nothing. May return true although nothing is visible (an empty window,
  /// keys past the end): the warp then computes scores that hide() masks out.
  __host__ __device__ constexpr bool any_sees(int first_query, int query_count, int first,
                                              int key_count) const {
    const int past = first_query + query_count < queries ? first_query + query_count : queries;
    return past > first_query && first_key(first_query) < first + key_count &&
           end_key(past - 1) > first;
  }

  // snippet-begin tiles
  /// Tiles of keys, by their numbers. In those from `first` to before `last` some query of the tile
  /// may see some key; in those from whole_first to before whole_last all queries see all keys.
  struct Tiles {
    int first, whole_first, whole_last, last;
  };
  /// Of the queries first_query to first_query + count - 1, with tiles of `tile` keys.
  __host__ __device__ constexpr Tiles tiles(int first_query, int count, int tile) const {
    const int past = first_query + count < queries ? first_query + count : queries;
    // The window moves on with the query: the first query sees the first key, and the last the last
    // one. What all see lies between the first key of the last and the end of the first.
    const int begin = first_key(first_query), end = past > first_query ? end_key(past - 1) : 0;
    Tiles tiles{begin / tile, 0, 0, (end + tile - 1) / tile};
    if (end <= begin || left + right < 0) return {0, 0, 0, 0};
    tiles.whole_first = tiles.whole_last = tiles.last;
    if (first_query + count > queries) return tiles;  // some queries of the tile see nothing
    const int whole_begin = (first_key(past - 1) + tile - 1) / tile;
    const int whole_end = end_key(first_query) / tile;
    if (whole_begin < whole_end) tiles.whole_first = whole_begin, tiles.whole_last = whole_end;
    return tiles;
  }
  // snippet-end tiles

  // snippet-begin transposed
  /// The same from the side of the keys: which queries a key is seen by.
  __host__ __device__ constexpr Mask transposed() const { return {keys, queries, right, left}; }
  // snippet-end transposed
};

/// The masks of all batch entries.
struct BatchMasks {
  int queries, keys, left, right;
  const int* query_lengths;  // [batch], or null
  const int* key_lengths;

  /// The mask of one entry. A length greater than the tensor's would lead out of it, so it is cut,
  /// and a negative one is 0.
  __host__ __device__ constexpr Mask of(int batch) const {
    return {query_lengths ? cut(query_lengths[batch], queries) : queries,
            key_lengths ? cut(key_lengths[batch], keys) : keys, left, right};
  }

 private:
  __host__ __device__ static constexpr int cut(int length, int most) {
    return length < 0 ? 0 : length < most ? length : most;
  }
};

}  // namespace tile
