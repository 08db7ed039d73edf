// What a call is refused for and by which words, what several steps take, and how much memory they
// need.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "flash_attention.hpp"
#include "tile/host/attention_argument.hpp"

namespace flash_attention {
namespace {

using tile::check_head_chunks, tile::check_tensors, tile::product;
using tile::key_rows, tile::lengths, tile::lse_of, tile::optional, tile::query_rows;
using tile::output_rows, tile::scales;

template <class Call>
tile::Status check_options(const Call& p) {
  for (const auto& [name, extent] : {std::pair{"left", p.left}, {"right", p.right}}) {
    if (extent < 0) return tile::invalid_argument(name, std::to_string(extent) + " is negative");
  }
  TILE_TRY(tile::check_attention_sizes(p));
  TILE_TRY(tile::check_no_rotary(p));
  return tile::check_no_far_pair(p);
}

template <class Call>
tile::Status check_all(tile::EnumSet<tile::DType> types, const Call& p) {
  TILE_TRY(tile::check_requirements(types, {}, p.type));
  return validate_tensors(p);
}

}  // namespace

// ---- Forward ----

tile::Status validate(const AttentionForward& p) { return check_all(kForwardTypes, p); }
tile::Status validate_sizes(const AttentionForward& p) { return check_options(p); }

tile::Status validate_tensors(const AttentionForward& p) {
  TILE_TRY(validate_sizes(p));
  return check_tensors(
      is_empty(p),
      {query_rows(p, "q", p.q), key_rows(p, "k", p.k), key_rows(p, "v", p.v),
       optional(lengths(p, "query_lengths", p.query_lengths)),
       optional(lengths(p, "key_lengths", p.key_lengths)),
       optional(scales(p, "q_scale", p.q_scale)), optional(scales(p, "k_scale", p.k_scale)),
       optional(scales(p, "v_scale", p.v_scale))},
      {output_rows(p, "o", p.o), optional(lse_of(p, p.lse))}, {p.workspace, p.workspace_bytes});
}

namespace {
/// Rows of q for a block of step `split_keys`: those of all heads of a group lie together.
std::int64_t split_tile_rows(const tile::Attention& p) {
  return p.queries * (p.heads / p.kv_heads) <= 16 ? 16 : 64;
}
/// How many such blocks have all rows of q, each with all keys.
std::int64_t split_row_tiles(const tile::Attention& p) {
  const std::int64_t rows = p.queries * (p.heads / p.kv_heads), of_tile = split_tile_rows(p);
  return product({p.batch, p.kv_heads, (rows + of_tile - 1) / of_tile});
}
}  // namespace

std::int64_t key_splits(const tile::Attention& p) {
  constexpr std::int64_t kBlocks = 264;
  const std::int64_t two_tiles = 2 * std::max<std::int64_t>(1, kSplitTileElements / p.head_dim);
  return std::max<std::int64_t>(
      1, std::min(kBlocks / split_row_tiles(p), (p.keys + two_tiles - 1) / two_tiles));
}

// snippet-begin few
namespace {
// In microseconds, fitted to calls with 17 to 256 queries on an H200.
/// The keys that the queries of a tile see.
double seen_keys(const tile::Attention& p) {
  return static_cast<double>(std::clamp<std::int64_t>(p.left + p.right + p.queries, 0, p.keys));
}
/// Steps `wgmma` to `wide` take as long for any number of tiles up to one for each multiprocessor.
constexpr double kTileTime = 1.6;  // for 128 keys
double time_of_tiles(const tile::Attention& p) { return 10 + seen_keys(p) * kTileTime / 128; }
/// Two launches and the merge, and 280 TFLOP/s.
double time_of_split_keys(const tile::Attention& p) {
  const auto rows = static_cast<double>(split_row_tiles(p)) * 64;
  return 16 + 4 * rows * seen_keys(p) * static_cast<double>(p.head_dim) / 280e6;
}
}  // namespace

bool has_few_queries(const tile::Attention& p) {
  return p.queries <= kAlwaysSplit || time_of_split_keys(p) < time_of_tiles(p);
}
// snippet-end few

int log2_pack_of(const tile::Attention& p, int rows, unsigned blocks) {
  const auto rounds = [&](int log2) {  // before the last one
    const std::int64_t of_pack = ((p.queries << log2) + rows - 1) / rows;
    return (product({p.batch, p.heads >> log2, of_pack}) - 1) / blocks;
  };
  const std::int64_t group = p.heads / p.kv_heads;
  int best = 0;
  for (int log2 = 1; log2 <= 6; ++log2) {  // a consumer's 64 rows have each head of a pack
    if (group % (1 << log2) != 0 || p.queries << log2 > kMaxLength) break;  // rows are ints
    if (rounds(log2) < rounds(best)) best = log2;
  }
  return best;
}

std::int64_t tile_splits(const tile::Attention& p) {
  constexpr std::int64_t kBlocks = 132;
  const int rows = wgmma_tile_rows(static_cast<int>(p.head_dim));
  const int log2_pack = log2_pack_of(p, rows, 1);  // the fewest tiles
  const std::int64_t of_pack = ((p.queries << log2_pack) + rows - 1) / rows;
  const std::int64_t tiles = product({p.batch, p.heads >> log2_pack, of_pack});
  const std::int64_t most = (p.keys + kSplitTileKeys - 1) / kSplitTileKeys;
  return std::max<std::int64_t>(1, std::min(kBlocks / std::max<std::int64_t>(tiles, 1), most));
}

// snippet-begin divides
bool divides_tiles(const AttentionForward& p) {
  if (split_tile_rows(p) == 16) return false;  // a tile of wgmma would be nearly empty
  const auto splits = static_cast<double>(tile_splits(p)), dim = static_cast<double>(p.head_dim);
  const auto rows = static_cast<double>(product({p.batch, p.heads, p.queries}));
  const auto read =
      static_cast<double>(product({p.batch, p.kv_heads})) * seen_keys(p) * dim * 4 / 4.1e6;
  const double loop = std::ceil(seen_keys(p) / (kSplitTileKeys * splits)) * kTileTime;
  const double merge = rows * (0.5e-3 + splits * dim * 8 / 4e6);  // parts written and read
  return 12 + std::max(loop, read) + merge <
         std::min(time_of_tiles(p), std::max(time_of_split_keys(p), 16 + read));
}
// snippet-end divides

std::int64_t scores_bytes(const AttentionForward& p) {
  return product({4, p.batch, p.heads, p.queries, p.keys});
}

std::int64_t split_keys_bytes(const AttentionForward& p) {
  if (is_empty(p) || !has_few_queries(p)) return 0;
  return product({4, p.batch, p.heads, p.queries, key_splits(p), p.head_dim + 1});
}

std::int64_t split_tiles_bytes(const AttentionForward& p) {
  if (is_empty(p)) return 0;
  return product({4, p.batch, p.heads, p.queries, tile_splits(p), p.head_dim + 1});
}

tile::Status takes_chunks(const AttentionForward& p, const tile::Device&) {
  return check_head_chunks(p.type, p.head_dim,
                           {query_rows(p, "q", p.q), key_rows(p, "k", p.k), key_rows(p, "v", p.v),
                            query_rows(p, "o", p.o)});
}

tile::Status takes_chunks_of_64_or_128(const AttentionForward& p, const tile::Device& device) {
  if (p.head_dim != 64 && p.head_dim != 128) {
    return tile::unsupported("head_dim", std::to_string(p.head_dim) + " is neither 64 nor 128");
  }
  return takes_chunks(p, device);
}

tile::Status takes_split_keys(const AttentionForward& p, const tile::Device& device) {
  if (!has_few_queries(p)) {
    return tile::unsupported("queries", std::to_string(p.queries) + " are many: tiles are faster");
  }
  if (p.head_dim != 64 && p.head_dim != 128 && p.head_dim != 256) {
    return tile::unsupported("head_dim", std::to_string(p.head_dim) + " is not 64, 128 or 256");
  }
  // All dimensions have the same bytes of keys and values. Queries take the most at 256.
  const int bytes = split_shared_bytes(static_cast<int>(split_tile_rows(p)), 256);
  if (p.head_dim == 256 && bytes > device.shared_bytes_of_block) {
    return tile::unsupported("head_dim",
                             "256 needs " + tile::counted(bytes, "byte") + " of shared memory");
  }
  TILE_TRY(takes_chunks(p, device));
  return tile::check_workspace(split_keys_bytes(p), p.workspace_bytes);
}

tile::Status takes_many_queries(const AttentionForward& p, const tile::Device& device) {
  if (p.keys == 0) return tile::unsupported("keys", "there are none");
  if (takes_split_keys(p, device).ok()) {
    return tile::unsupported("queries",
                             std::to_string(p.queries) + " are few: split_keys is faster");
  }
  return takes_chunks(p, device);
}

// ---- Backward ----

tile::Status validate(const AttentionBackward& p) { return check_all(kTypes, p); }
tile::Status validate_sizes(const AttentionBackward& p) { return check_options(p); }

tile::Status validate_tensors(const AttentionBackward& p) {
  TILE_TRY(validate_sizes(p));
  return check_tensors(
      is_empty(p),
      {query_rows(p, "q", p.q), key_rows(p, "k", p.k), key_rows(p, "v", p.v),
       query_rows(p, "o", p.o), lse_of(p, p.lse), query_rows(p, "dout", p.dout),
       optional(lengths(p, "query_lengths", p.query_lengths)),
       optional(lengths(p, "key_lengths", p.key_lengths))},
      {query_rows(p, "dq", p.dq), key_rows(p, "dk", p.dk), key_rows(p, "dv", p.dv)},
      {p.workspace, p.workspace_bytes});
}

std::int64_t scores_bytes(const AttentionBackward& p) {
  return product({8, p.batch, p.heads, p.queries, p.keys});
}

namespace {
/// `bytes` for each query, and for the rows that fill the last of the tiles of kRowsOfTerms.
std::int64_t bytes_of_rows(const AttentionBackward& p, std::int64_t bytes) {
  return product({bytes, p.batch, p.heads, (p.queries + 127) / 128 * 128});
}
}  // namespace

std::int64_t stats_bytes(const AttentionBackward& p) { return bytes_of_rows(p, 8); }
std::int64_t stats_and_sums_bytes(const AttentionBackward& p) {
  return bytes_of_rows(p, 8 + 4 * p.head_dim);
}
std::int64_t column_stats_and_sums_bytes(const AttentionBackward& p) {
  return bytes_of_rows(p, 16 + 4 * p.head_dim);
}

std::int64_t ordered_sums_bytes(const AttentionBackward& p) {
  // A counter of 4 bytes for each 16 KiB of the sums; and 16 bytes for the first one.
  const std::int64_t of_tile = 128 * (16 + 4 * p.head_dim) + 128 * 4 * p.head_dim / 4096;
  const std::int64_t bytes = product({of_tile, p.batch, p.heads, (p.queries + 127) / 128});
  return bytes > std::numeric_limits<std::int64_t>::max() - 16 ? bytes : bytes + 16;
}

tile::Status check_chunks(const AttentionBackward& p) {
  return check_head_chunks(p.type, p.head_dim,
                           {query_rows(p, "q", p.q), key_rows(p, "k", p.k), key_rows(p, "v", p.v),
                            query_rows(p, "dout", p.dout), query_rows(p, "dq", p.dq),
                            key_rows(p, "dk", p.dk), key_rows(p, "dv", p.dv)});
}

}  // namespace flash_attention
