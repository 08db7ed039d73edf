// Attention, forward and backward: what is computed, and the ladders.
#pragma once

#include <cstdint>
#include <string_view>

#include "tile/host/attention.hpp"
#include "tile/host/step.hpp"

namespace flash_attention {

inline constexpr std::string_view kName = "05_flash_attention";  // the folder's
inline constexpr std::string_view kTitle = "two products and a softmax, and no score in memory";

using tile::AttentionBackward, tile::AttentionForward;
using tile::kMaxLength, tile::kUnlimited, tile::Mask, tile::Strides;

// ---- Forward ----

// For each batch entry and head, with the rows of q, k, v and o as vectors:
//
//     s_ij = scale q_i k_j           where query i sees key j
//     p_ij = exp(s_ij - lse_i)       lse_i = log sum_j exp(s_ij)
//     o_i  = sum_j p_ij v_j
//
// With e4m3, o is bf16, and q, k and v are first multiplied with the scales of their head of k.
//
// A query that sees no key has o = 0 and lse = -infinity, as have the rows of queries that do not
// exist. There is no rotation, and no second pair of q and k.

/// What is checked before any step. The Status names the argument that is wrong.
tile::Status validate(const AttentionForward& p);

/// The same checks, except for the element type.
tile::Status validate_tensors(const AttentionForward& p);

/// Checks the sizes and options only. Strides are checked together with their tensors.
tile::Status validate_sizes(const AttentionForward& p);

inline bool is_empty(const AttentionForward& p) {
  return p.batch == 0 || p.heads == 0 || p.queries == 0;
}

/// Step `split_keys`: elements of K in a tile, and among how many blocks the keys of a head are
/// divided. There are 264 blocks in all, two for each multiprocessor of an H200, but at most one
/// for each pair of tiles. The number does not depend on the card, and so the result does not.
inline constexpr int kSplitTileElements = 4096;
std::int64_t key_splits(const tile::Attention& p);
/// Whether so many queries are few, for which it takes the call: up to 16 always are.
inline constexpr int kAlwaysSplit = 16;
bool has_few_queries(const tile::Attention& p);

/// Its shared memory, if a block has this many rows of q: five tiles of keys, and of values.
constexpr int split_shared_bytes(int rows, int head_dim) {
  return (rows * head_dim + 5 * 2 * kSplitTileElements) * 2;
}

/// Step `split_tiles`: its tiles have so many rows of packed heads, as below, and 128 keys. Among
/// how many blocks the keys of a tile are divided: there are 132 blocks at most, as many as an H200
/// has multiprocessors. Their number does not depend on the card either.
inline constexpr int kSplitTileKeys = 128;
constexpr int wgmma_tile_rows(int head_dim) { return head_dim == 64 ? 192 : 128; }
std::int64_t tile_splits(const tile::Attention& p);
/// Whether it is faster than the steps with whole rows, and than `split_keys`.
bool divides_tiles(const AttentionForward& p);

/// Steps `persistent` and `wide` pack the queries of 2^n heads that share their keys into tiles of
/// `rows` rows, and each of their blocks takes a tile at a time. This is the smallest n of those
/// with the fewest rounds of tiles. No bit of the result depends on it.
int log2_pack_of(const tile::Attention& p, int rows, unsigned blocks);

// The device memory that steps need besides their arguments: `scores` 4 bytes for each query and
// key, the two that divide keys each part of a row's output with its lse.
std::int64_t scores_bytes(const AttentionForward& p);
std::int64_t split_keys_bytes(const AttentionForward& p);
std::int64_t split_tiles_bytes(const AttentionForward& p);

// What the steps' own kernels take, if several steps take the same or one declines what another
// takes. `chunks`: every row consists of aligned chunks of 16 bytes; if not, the Status says which
// argument is in the way. `many_queries`: chunks, keys, and more queries than split_keys takes.
using ForwardTakes = tile::Status(const AttentionForward&, const tile::Device&);
ForwardTakes takes_chunks, takes_chunks_of_64_or_128, takes_split_keys, takes_many_queries;
ForwardTakes takes_scores, takes_tiles, takes_wgmma, takes_persistent, takes_e4m3, takes_wide,
    takes_split_tiles;

// The steps. Each computes o and lse in the given stream (a cudaStream_t).
using ForwardStep = tile::Status(const AttentionForward&, void* stream);
ForwardStep scores, tiles, mma, pipeline, warp_tiles, lazy, interleaved, split_keys, wgmma, turns,
    queue, persistent, e4m3, tile_sums, wide, split_tiles;

// ---- Backward ----

// From the gradient dout of a loss with respect to o, with p_ij and the options as above:
//
//     delta_i = dout_i o_i             ds_ij = p_ij (dout_i v_j - delta_i)
//     dq_i = scale sum_j ds_ij k_j     dk_j = scale sum_i ds_ij q_i     dv_j = sum_i p_ij dout_i
//
// dk and dv are sums over the heads that share them. The gradients of queries and keys that do not
// exist are 0.

/// What is checked before any step. The Status names the argument that is wrong.
tile::Status validate(const AttentionBackward& p);
tile::Status validate_tensors(const AttentionBackward& p);
tile::Status validate_sizes(const AttentionBackward& p);

/// Even without queries dk and dv must be set to zeros, and without keys dq.
inline bool is_empty(const AttentionBackward& p) {
  return p.batch == 0 || p.heads == 0 || (p.queries == 0 && p.keys == 0);
}

// Two matrices of all scores; two numbers a query, for the softmax and for delta; these with a sum
// for each element of dq; and the same with the two numbers as eight of bf16.
std::int64_t scores_bytes(const AttentionBackward& p);
std::int64_t stats_bytes(const AttentionBackward& p);
std::int64_t stats_and_sums_bytes(const AttentionBackward& p);
std::int64_t column_stats_and_sums_bytes(const AttentionBackward& p);
/// And a counter for each half of a tile of the sums, 16 KiB, and of the blocks that have begun.
std::int64_t ordered_sums_bytes(const AttentionBackward& p);

/// Whether every row consists of aligned chunks of 16 bytes; if not, the Status says which argument
/// is in the way.
tile::Status check_chunks(const AttentionBackward& p);

// The steps. Each computes dq, dk and dv in the given stream (a cudaStream_t).
using BackwardStep = tile::Status(const AttentionBackward&, void* stream);
BackwardStep scores, tiles, mma, warp_tiles, pipeline, one_pass, wgmma, late_dq, overlap, in_order,
    wide;

// What their own kernels take.
using BackwardTakes = tile::Status(const AttentionBackward&, const tile::Device&);
BackwardTakes takes_scores, takes_tiles, takes_mma, takes_warp_tiles, takes_pipeline,
    takes_one_pass, takes_wgmma, takes_in_order, takes_wide;

// ---- The ladders ----

inline constexpr tile::EnumSet<tile::DType> kTypes{tile::DType::fp32, tile::DType::fp16,
                                                   tile::DType::bf16};
inline constexpr tile::EnumSet<tile::DType> kForwardTypes{tile::DType::fp32, tile::DType::fp16,
                                                          tile::DType::bf16, tile::DType::e4m3};
inline constexpr tile::EnumSet<tile::DType> k16Bits{tile::DType::fp16, tile::DType::bf16};
// Batch, heads, heads of k and v, queries, keys, head dimension, and whether causal. In the small
// problem two heads share one of k and v, no length is a multiple of a tile, and there are fewer
// queries than keys.
inline constexpr tile::Shows kShows{{2, 4, 2, 75, 150, 64, 1}, {2, 32, 32, 8192, 8192, 64, 1}};

using ForwardLadder = tile::Ladder<AttentionForward>;
inline constexpr ForwardLadder::Step kForward[] = {
    {.name = "scores",
     .idea = "three kernels: all scores to memory, their softmax, and the second product",
     .types = kTypes,
     .needs = {},
     .takes = takes_scores,
     .otherwise = "",
     .shows = {{2, 4, 2, 75, 150, 64, 1}, {2, 32, 32, 2048, 2048, 64, 1}},
     .launch = scores,
     .workspace_bytes = scores_bytes},
    {.name = "tiles",
     .idea = "a block keeps a tile of queries, and the softmax is corrected as keys go by",
     .types = kTypes,
     .needs = {},
     .takes = takes_tiles,
     .otherwise = "",
     .shows = kShows,
     .launch = tiles},
    {.name = "mma",
     .idea = "both products on tensor cores, the weights between them in registers",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma},
     .takes = takes_chunks,
     .otherwise = "tiles",
     .shows = kShows,
     .launch = mma},
    {.name = "pipeline",
     .idea = "the next tile of keys is copied meanwhile, and only visible tiles are visited",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async},
     .takes = takes_chunks_of_64_or_128,
     .otherwise = "mma",
     .shows = kShows,
     .launch = pipeline},
    {.name = "warp_tiles",
     .idea = "32 queries to a warp, which use what it loads twice",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async},
     .takes = takes_chunks_of_64_or_128,
     .otherwise = "mma",
     .shows = kShows,
     .launch = warp_tiles},
    {.name = "lazy",
     .idea = "a reference of the exponentials that moves only when it must",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async},
     .takes = takes_chunks_of_64_or_128,
     .otherwise = "mma",
     .shows = kShows,
     .launch = lazy},
    {.name = "interleaved",
     .idea = "exponentials of some keys among the products of the next",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async},
     .takes = takes_chunks,
     .otherwise = "mma",
     .shows = kShows,
     .launch = interleaved},
    {.name = "split_keys",
     .idea = "few queries: the keys divided among blocks, the heads that share them in one product",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async},
     .takes = takes_split_keys,
     .otherwise = "interleaved",
     .shows = {{2, 8, 2, 3, 700, 64, 1}, {1, 32, 8, 1, 65536, 128, 0}},
     .launch = split_keys,
     .workspace_bytes = split_keys_bytes},
    {.name = "wgmma",
     .idea = "a warpgroup copies, others multiply the next scores and the last output at one time",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async, tile::Feature::tma,
               tile::Feature::wgmma},
     .takes = takes_wgmma,
     .otherwise = "split_keys",
     .shows = kShows,
     .launch = wgmma},
    {.name = "turns",
     .idea =
         "warpgroups take turns at the tensor cores, and each ends at the last key that it sees",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async, tile::Feature::tma,
               tile::Feature::wgmma},
     .takes = takes_wgmma,
     .otherwise = "split_keys",
     .shows = kShows,
     .launch = turns},
    {.name = "queue",
     .idea = "blocks that stay take tiles of queries from a queue, and load the next one meanwhile",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async, tile::Feature::tma,
               tile::Feature::wgmma},
     .takes = takes_wgmma,
     .otherwise = "split_keys",
     .shows = kShows,
     .launch = queue},
    {.name = "persistent",
     .idea = "the output leaves by TMA through the queries' rows, while the next tile is begun",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async, tile::Feature::tma,
               tile::Feature::wgmma},
     .takes = takes_persistent,
     .otherwise = "queue",
     .shows = kShows,
     .launch = persistent},
    {.name = "e4m3",
     .idea = "8 bits: values are transposed on their way, and weights stay in their lane",
     .types = {tile::DType::e4m3},
     .needs = {tile::Feature::fp8_mma, tile::Feature::tma, tile::Feature::wgmma},
     .takes = takes_e4m3,
     .otherwise = "",
     .shows = {{2, 4, 2, 75, 150, 64, 1}, {2, 16, 16, 8192, 8192, 128, 1}},
     .launch = e4m3},
    {.name = "tile_sums",
     .idea = "the sums of tiles in fp32: as exact for a long text as for a short one",
     .types = {tile::DType::e4m3},
     .needs = {tile::Feature::fp8_mma, tile::Feature::tma, tile::Feature::wgmma},
     .takes = takes_e4m3,
     .otherwise = "e4m3",
     .shows = {{2, 4, 2, 75, 150, 64, 1}, {2, 16, 16, 8192, 8192, 128, 1}},
     .launch = tile_sums},
    {.name = "wide",
     .idea = "256 columns: outputs leave from the ring, and the next queries come meanwhile",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async, tile::Feature::tma,
               tile::Feature::wgmma},
     .takes = takes_wide,
     .otherwise = "persistent",
     .shows = {{1, 4, 2, 75, 150, 256, 1}, {2, 8, 8, 8192, 8192, 256, 1}},
     .launch = wide},
    {.name = "split_tiles",
     .idea = "a few dozen queries: the keys of a tile divided among blocks, by wgmma",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async, tile::Feature::tma,
               tile::Feature::wgmma},
     .takes = takes_split_tiles,
     .otherwise = "wide",
     .shows = {{2, 4, 2, 75, 150, 64, 1}, {1, 32, 8, 64, 65536, 128, 0}},
     .launch = split_tiles,
     .workspace_bytes = split_tiles_bytes,
     .is_best = divides_tiles},
};
inline constexpr ForwardLadder kForwardLadder{.name = "forward",
                                              .kernels = "attention_",
                                              .steps = kForward,
                                              .validate = validate,
                                              .is_empty = is_empty};

using BackwardLadder = tile::Ladder<AttentionBackward>;
inline constexpr BackwardLadder::Step kBackward[] = {
    {.name = "scores",
     .idea = "the formulas: weights and their gradients in memory, and four products of them",
     .types = kTypes,
     .needs = {},
     .takes = takes_scores,
     .otherwise = "",
     .shows = {{2, 4, 2, 75, 150, 64, 1}, {2, 32, 32, 2048, 2048, 64, 1}},
     .launch = scores,
     .workspace_bytes = scores_bytes},
    {.name = "tiles",
     .idea = "weights are computed again: once by each tile of keys, once by each of queries",
     .types = kTypes,
     .needs = {},
     .takes = takes_tiles,
     .otherwise = "",
     .shows = kShows,
     .launch = tiles,
     .workspace_bytes = stats_bytes},
    {.name = "mma",
     .idea = "all seven products on tensor cores",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma},
     .takes = takes_mma,
     .otherwise = "tiles",
     .shows = kShows,
     .launch = mma,
     .workspace_bytes = stats_bytes},
    {.name = "warp_tiles",
     .idea = "32 rows to a warp, which use what it loads twice; wide rows are shared by warps",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma},
     .takes = takes_warp_tiles,
     .otherwise = "mma",
     .shows = kShows,
     .launch = warp_tiles,
     .workspace_bytes = stats_bytes},
    {.name = "pipeline",
     .idea = "the next tile is copied meanwhile, and only visible tiles are visited",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async},
     .takes = takes_pipeline,
     .otherwise = "mma",
     .shows = kShows,
     .launch = pipeline,
     .workspace_bytes = stats_bytes},
    {.name = "one_pass",
     .idea = "the tile that has dS adds its part of dQ to a sum in memory",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async},
     .takes = takes_one_pass,
     .otherwise = "mma",
     .shows = kShows,
     .launch = one_pass,
     .workspace_bytes = stats_and_sums_bytes},
    {.name = "wgmma",
     .idea = "five products by wgmma, weights in registers; dQ is added by bulk reductions",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async, tile::Feature::tma,
               tile::Feature::wgmma},
     .takes = takes_wgmma,
     .otherwise = "one_pass",
     .shows = kShows,
     .launch = wgmma,
     .workspace_bytes = column_stats_and_sums_bytes},
    {.name = "late_dq",
     .idea = "dQ of a tile with the products of the next one, so that no consumer waits for dS",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async, tile::Feature::tma,
               tile::Feature::wgmma},
     .takes = takes_wgmma,
     .otherwise = "one_pass",
     .shows = kShows,
     .launch = late_dq,
     .workspace_bytes = column_stats_and_sums_bytes},
    {.name = "overlap",
     .idea = "the next tile's products are started before what is left of this one's",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async, tile::Feature::tma,
               tile::Feature::wgmma},
     .takes = takes_wgmma,
     .otherwise = "one_pass",
     .shows = kShows,
     .launch = overlap,
     .workspace_bytes = column_stats_and_sums_bytes},
    {.name = "in_order",
     .idea = "each part of dQ is added when it is its turn: the same bits each time",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async, tile::Feature::tma,
               tile::Feature::wgmma},
     .takes = takes_in_order,
     .otherwise = "pipeline",
     .shows = kShows,
     .launch = in_order,
     .workspace_bytes = ordered_sums_bytes,
     .on_request = true},
    {.name = "wide",
     .idea = "256 columns: the consumers have the same keys, and each half of the columns",
     .types = k16Bits,
     .needs = {tile::Feature::bf16_mma, tile::Feature::cp_async, tile::Feature::tma,
               tile::Feature::wgmma},
     .takes = takes_wide,
     .otherwise = "overlap",
     .shows = {{1, 4, 2, 75, 150, 256, 1}, {2, 8, 8, 8192, 8192, 256, 1}},
     .launch = wide,
     .workspace_bytes = column_stats_and_sums_bytes},
};
inline constexpr BackwardLadder kBackwardLadder{.name = "backward",
                                                .kernels = "attention_backward_",
                                                .steps = kBackward,
                                                .validate = validate,
                                                .is_empty = is_empty};

}  // namespace flash_attention
