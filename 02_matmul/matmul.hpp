// C = activation(alpha * op(A) * op(B) + beta * C + bias): the problem and the table of steps.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

#include "tile/host/step.hpp"

namespace matmul {

inline constexpr std::string_view kName = "02_matmul";  // the folder's
inline constexpr std::string_view kTitle =
    "C = A B: each value from memory once, and multiplied many times";

/// The last function of each element. relu is max(0, x), and a NaN stays one. gelu is
/// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), the approximation of x P(X <= x), X normal, by
/// Hendrycks and Gimpel ("Gaussian Error Linear Units", 2016); at -infinity it is its limit, 0.
enum class Activation { none, relu, gelu };
tile::Status check_activation(Activation activation);

/// C = activation(alpha op(A) op(B) + beta C + bias). The bias, where there is one, has an element
/// for each column. The matrices are row-major. op(A) is A, or its transpose. The two products of
/// the backward pass are transposed ones: of C = A B, dA = dC Bᵀ and dB = Aᵀ dC. With e4m3, C and
/// the bias are bf16, and the product is also multiplied by the scales of A and B.
struct Problem {
  tile::DType type;                        // of A and B
  std::int64_t m, n, k;                    // op(A) is m x k, op(B) is k x n, C is m x n
  bool transpose_a = false;                // A is stored k x m
  bool transpose_b = false;                // B is stored n x k
  std::int64_t lda = transpose_a ? m : k;  // elements from one stored row of A to the next
  std::int64_t ldb = transpose_b ? k : n;  // the same of B
  std::int64_t ldc = n;                    // the same of C
  float alpha = 1, beta = 0;               // with alpha 0, A and B are not read; with beta 0,
                                           // what C held is not read
  Activation activation = Activation::none;
};

/// The type of C and of the bias.
constexpr tile::DType type_of_c(const Problem& p) {
  return p.type == tile::DType::e4m3 ? tile::DType::bf16 : p.type;
}

/// Device pointers to the first elements, aligned to an element. C overlaps none of the others.
struct Buffers {
  const void* a;
  const void* b;
  void* c;
  const void* bias = nullptr;      // n elements of C's type, or none
  const float* a_scale = nullptr;  // for e4m3: the factor of all of A; null means 1
  const float* b_scale = nullptr;  // the same for B
  void* workspace = nullptr;       // aligned to 16 bytes, overlaps nothing, may hold anything
  std::int64_t workspace_bytes = 0;
};

/// What is checked before any step. The Status names the argument that is wrong.
tile::Status validate(const Problem& problem, const Buffers& buffers);

/// The checks of the sizes and options only.
tile::Status validate_sizes(const Problem& problem);

/// The same for matrices of any type, on the host too: to be called before reference().
tile::Status validate_matrices(const Problem& problem, const Buffers& buffers);

inline bool is_empty(const Problem& p) { return p.m == 0 || p.n == 0; }

// The steps. Each computes C in the given stream (a cudaStream_t).
tile::Status naive(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status coalesced(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status shared_tile(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status register_tile(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status vectors(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status double_buffered(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status mma(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status ldmatrix(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status swizzle(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status pipeline(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status tf32(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status persistent(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status fused(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status warp_tiles(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status wgmma(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status warp_specialized(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status persistent_ring(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status cluster_ring(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status tile_shapes(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status tma_store(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status split_k(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status e4m3(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status shares(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status stream_k(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status swap_ab(const Problem& problem, const Buffers& buffers, void* stream);

/// C = activation(C + bias), by a kernel of its own, for steps that do not fuse them with the
/// product. Does nothing if there is neither. The arguments are valid already.
tile::Status add_bias_and_activate(const Problem& problem, const Buffers& buffers, void* stream);
/// C = activation(beta C + bias), for a problem whose product is empty, by the same kernel.
tile::Status without_product(const Problem& problem, const Buffers& buffers, void* stream);
/// Floats from one row of a share's sums to the next in the workspace: a multiple of 16 bytes.
constexpr std::int64_t ld_of_sums(const Problem& p) { return (p.n + 3) / 4 * 4; }
/// The product in fp32 for few rows: stores C, or the sums of several shares in the workspace.
tile::Status multiply_few_rows(const Problem& problem, const Buffers& buffers, unsigned shares,
                               void* stream);
/// Copies A if pads_a(), and B if pads_b(), to the workspace, with rows that begin at multiples of
/// 16 bytes. The problem and the buffers then describe the copies, and the rest of the workspace.
tile::Status pad_rows(Problem* problem, Buffers* buffers, void* stream);

inline constexpr tile::EnumSet<tile::DType> kTypes{
    tile::DType::fp32, tile::DType::fp16, tile::DType::bf16, tile::DType::tf32, tile::DType::e4m3};
inline constexpr tile::EnumSet<tile::DType> kFp32{tile::DType::fp32};
inline constexpr tile::EnumSet<tile::DType> k16Bits{tile::DType::fp16, tile::DType::bf16};
inline constexpr tile::EnumSet<tile::DType> kTf32{tile::DType::tf32};
inline constexpr tile::EnumSet<tile::DType> kE4m3{tile::DType::e4m3};
// For a problem in fp16 a card needs fp16_mma instead of bf16_mma (tile/host/step.hpp).
inline constexpr tile::EnumSet<tile::Feature> kMma{tile::Feature::bf16_mma};
inline constexpr tile::EnumSet<tile::Feature> kMmaAndCopies{tile::Feature::bf16_mma,
                                                            tile::Feature::cp_async};
// What a step for Hopper needs, with the features that its fallback step needs.
inline constexpr tile::EnumSet<tile::Feature> kHopper{tile::Feature::bf16_mma,
                                                      tile::Feature::cp_async, tile::Feature::tma,
                                                      tile::Feature::cluster, tile::Feature::wgmma};
using Ladder = tile::Ladder<Problem, Buffers>;

/// A copy of A or B reads and writes each element, which is then used in as many products as C has
/// columns, or rows. From so many on it pays, although it takes another launch: element by element,
/// even a product of 128 rows and columns takes several times as long as by TMA.
inline constexpr std::int64_t kUsesForCopy = 64;
/// Whether a step that needs rows at multiples of 16 bytes copies A, or B: its leading dimension is
/// no such multiple, and its elements are used often enough.
bool pads_a(const Problem& problem);
bool pads_b(const Problem& problem);
/// The bytes of these copies.
std::int64_t padded_bytes(const Problem& problem);

/// Whether TMA can copy A and B: their rows begin at multiples of 16 bytes, and there is a product.
tile::Status takes_boxes(const Problem& problem, const Buffers& buffers, const tile::Device&);
/// The same for A and B, or for their copies, which the workspace must have room for.
tile::Status takes_padded_boxes(const Problem& problem, const Buffers& buffers,
                                const tile::Device&);
/// The same, and whether TMA can store C.
tile::Status takes_boxes_of_c(const Problem& problem, const Buffers& buffers, const tile::Device&);

/// The same for e4m3, which wgmma reads along k only: A is not transposed, and B is. Without a
/// product only C is checked.
tile::Status takes_boxes_of_8_bits(const Problem& problem, const Buffers& buffers,
                                   const tile::Device&);

// snippet-begin rounds
/// A block's tile of C: a consumer for each 64 rows.
struct TileExtents {
  int rows, cols;
};
/// Those of steps 19 and 20.
inline constexpr TileExtents kTileShapes[] = {{128, 256}, {192, 192}, {128, 192},
                                              {128, 128}, {64, 128},  {64, 64}};

/// The cycles of a product in such tiles: those of the rounds that `most` pairs of blocks need, one
/// block above the other. A round takes 500 cycles, and these for each 64 of k: 128 bytes of shared
/// memory a cycle, which are 64 elements. TMA writes the tiles of A and B there, and from there
/// each consumer's wgmma reads its rows of A and all of B. The tensor cores never need more.
constexpr std::int64_t cycles_in_tiles(const Problem& p, TileExtents tile, std::int64_t most) {
  const std::int64_t pairs = ((p.m - 1) / (2 * tile.rows) + 1) * ((p.n - 1) / tile.cols + 1);
  const int consumers = tile.rows / 64, written = tile.rows + tile.cols,
            read = tile.rows + consumers * tile.cols;  // rows of 64 of k
  return ((pairs - 1) / most + 1) * (500 + ((p.k - 1) / 64 + 1) * (written + read));
}

/// Which of them takes the fewest.
constexpr std::size_t fastest_tile(const Problem& p, std::int64_t most) {
  const auto cycles = [&](TileExtents tile) { return cycles_in_tiles(p, tile, most); };
  return static_cast<std::size_t>(std::ranges::min_element(kTileShapes, {}, cycles) - kTileShapes);
}
// snippet-end rounds

/// Step `split_k`: its tile of C is 128 x 128, and an iteration of its main loop takes 64 of k.
inline constexpr int kSplitTile = 128, kSplitBlockK = 64;
/// Among how many blocks it splits k: 1, 2, 4, 6 or 8, as many as an H200 runs at one time, with
/// four iterations for each at least. The number does not depend on the card, so the result does
/// not, either.
unsigned k_splits(const Problem& problem);
/// Whether the tiles are so few that splitting pays, and TMA can copy A and B.
tile::Status takes_few_tiles(const Problem& problem, const Buffers& buffers, const tile::Device&);

/// Step `shares`: the most rows of C for which B's bytes decide, and the columns of a tile then.
inline constexpr int kFewRows = 16, kFewColumns = 128;
inline bool is_few_rows(const Problem& p) { return p.m <= kFewRows && !p.transpose_b; }
/// Otherwise its tiles have 64 rows, and 64 or 128 columns. How many blocks a multiprocessor has
/// registers for, then:
inline constexpr int kShareRows = 64;
constexpr int share_blocks(int columns) { return columns == 64 ? 5 : 3; }
/// The columns of its tiles, among how many blocks it splits k, and how long that takes: in cycles
/// of a multiprocessor, as arguments.cpp reckons.
struct SharePlan {
  int columns;
  std::int64_t shares;
  double cycles;
};
/// The fastest on a card of so many multiprocessors.
SharePlan share_plan(const Problem& problem, int multiprocessors);
/// The bytes of its workspace on this card: a matrix of sums for each share.
std::int64_t shares_bytes(const Problem& problem);
/// Whether double_buffered, whose tiles are larger, takes longer.
tile::Status takes_shares(const Problem& problem, const Buffers& buffers, const tile::Device&);

/// Step `stream_k`: the rows of its tiles of C, which have 128 columns, and the threads of a block.
/// Tiles of 64 rows are copied float by float, tiles of 128 rows in vectors.
template <bool kWords>
inline constexpr int stream_rows = kWords ? 64 : 128;
/// Threads that a multiprocessor runs at one time: each needs 255 of its 65,536 registers.
inline constexpr int kStreamThreads = 256;
/// What its blocks do. The iterations of the first tiles lie in a line, tile after tile, and each
/// block has a piece of it. Then each block takes whole tiles after the line, one at a time.
struct StreamPlan {
  bool words;
  unsigned tiles, line;     // all tiles, and those whose iterations are cut into pieces
  unsigned tile;            // iterations of a tile
  unsigned pieces;          // as many as there are blocks
  unsigned length, longer;  // iterations of a piece; the first `longer` pieces have one more
};
/// The fastest on a card of so many multiprocessors. Without pieces, if there is no product or if
/// there are too many iterations.
StreamPlan stream_plan(const Problem& problem, int multiprocessors);
/// The counters before the sums in its workspace: one for the pieces taken, one for each piece, and
/// padding, so that the sums begin at 16 bytes. None if no tile is cut.
constexpr std::int64_t stream_counters(const StreamPlan& plan) {
  return plan.line > 0 ? (plan.pieces + 4) / 4 * 4 : 0;
}
std::int64_t stream_bytes(const Problem& problem);
/// Whether its kernel can run; and whether it is faster than the earlier steps, too.
tile::Status can_stream_k(const Problem& problem, const Buffers& buffers, const tile::Device&);
tile::Status takes_stream_k(const Problem& problem, const Buffers& buffers, const tile::Device&);

/// Step `swap_ab`: the rows of C that it takes, the columns of its tiles, and how many of k an
/// iteration of its main loop has.
inline constexpr int kSwapRows = 64, kSwapColumns = 64, kSwapBlockK = 64;
/// Among how many blocks it splits k: 1, 2, 4, 6 or 8, the fewest that keep memory busy, if each
/// then has four iterations at least.
unsigned swap_splits(const Problem& problem);
/// Whether C has so few rows, and TMA can copy A and B.
tile::Status takes_swap_ab(const Problem& problem, const Buffers& buffers, const tile::Device&);

/// Such a step takes every size of its types, so another one runs instead only if the card lacks a
/// feature.
constexpr Ladder::Step step_of(std::string_view name, std::string_view idea,
                               tile::EnumSet<tile::DType> types, tile::EnumSet<tile::Feature> needs,
                               std::string_view otherwise, decltype(Ladder::Step::launch) launch) {
  return {.name = name,
          .idea = idea,
          .types = types,
          .needs = needs,
          .takes = nullptr,
          .otherwise = otherwise,
          .shows = {{130, 150, 70}, {4096, 4096, 4096}},  // the small one: no multiples of a tile
          .launch = launch};
}
/// A step for Hopper. The small problem's extents are multiples of 16 bytes, not of a tile.
constexpr Ladder::Step hopper_step(std::string_view name, std::string_view idea,
                                   decltype(Ladder::Step::launch) launch,
                                   decltype(Ladder::Step::takes) takes = takes_boxes,
                                   std::string_view otherwise = "warp_tiles",
                                   tile::Shows shows = {{136, 328, 200}, {4096, 4096, 4096}}) {
  return {.name = name,
          .idea = idea,
          .types = k16Bits,
          .needs = kHopper,
          .takes = takes,
          .otherwise = otherwise,
          .shows = shows,
          .launch = launch};
}
/// The same, where add_bias_and_activate() follows the product's kernel.
constexpr Ladder::Step rounds_twice(Ladder::Step step) {
  step.rounds_twice = true;
  return step;
}
/// The same, with room for padded copies.
constexpr Ladder::Step pads_rows(Ladder::Step step) {
  step.workspace_bytes = padded_bytes;
  return step;
}
inline constexpr Ladder::Step kSteps[] = {
    rounds_twice(step_of("naive", "each thread computes one element of C", kFp32, {}, "", naive)),
    rounds_twice(step_of("coalesced", "neighbouring threads, neighbouring columns", kFp32, {}, "",
                         coalesced)),
    rounds_twice(step_of("shared_tile",
                         "a block loads tiles into shared memory, and reads each value many times",
                         kFp32, {}, "", shared_tile)),
    rounds_twice(step_of("register_tile",
                         "a thread computes 8 x 8 elements, and uses each value 8 times", kFp32, {},
                         "", register_tile)),
    rounds_twice(step_of("vectors", "16 bytes with one instruction, to and from both memories",
                         kFp32, {}, "", vectors)),
    step_of("double_buffered", "the next tiles are under way while these are multiplied", kFp32, {},
            "", double_buffered),
    rounds_twice(step_of("mma", "tensor cores: a warp multiplies 16 x 16 by 16 x 8", k16Bits, kMma,
                         "", mma)),
    rounds_twice(step_of("ldmatrix", "fragments by one instruction, from padded tiles", k16Bits,
                         kMma, "mma", ldmatrix)),
    step_of("swizzle", "no padding: every row has its chunks in another order", k16Bits, kMma,
            "ldmatrix", swizzle),
    rounds_twice(step_of("pipeline", "copies in the background, in a ring of stages", k16Bits,
                         kMmaAndCopies, "swizzle", pipeline)),
    step_of("tf32", "fp32 matrices on tensor cores, rounded to 11 bits", kTf32, kMmaAndCopies, "",
            tf32),
    rounds_twice(step_of("persistent", "a block takes tile after tile, and its copies never stop",
                         k16Bits, kMmaAndCopies, "pipeline", persistent)),
    step_of("fused", "bias and activation in registers, C in 16 bytes", k16Bits, kMmaAndCopies,
            "persistent", fused),
    step_of("warp_tiles", "64 x 64 to a warp, and tiles as large as C allows", k16Bits,
            kMmaAndCopies, "fused", warp_tiles),
    rounds_twice(hopper_step(
        "wgmma", "one thread copies tiles, four warps multiply them in shared memory", wgmma)),
    rounds_twice(hopper_step("warp_specialized",
                             "a warpgroup copies, two multiply, a ring lies between",
                             warp_specialized)),
    rounds_twice(hopper_step("persistent_ring", "tile after tile, and the ring never runs empty",
                             persistent_ring)),
    rounds_twice(hopper_step("cluster_ring", "two blocks share B: each copies half of it into both",
                             cluster_ring)),
    // On the CPU device's card 192 x 192 needs fewer rounds for the small one, and on an H200 128 x
    // 256 needs less time for the large one.
    pads_rows(hopper_step(
        "tile_shapes", "six shapes of tiles: the one whose rounds take the least time", tile_shapes,
        takes_padded_boxes, "warp_tiles", {{376, 328, 200}, {4096, 4096, 4096}})),
    pads_rows(hopper_step("tma_store", "C leaves in boxes while the next tile is multiplied",
                          tma_store, takes_boxes_of_c, "tile_shapes")),
    pads_rows(hopper_step("split_k", "few tiles: k is split among blocks, which add up their sums",
                          split_k, takes_few_tiles, "tma_store",
                          {{136, 24, 4000}, {512, 512, 8192}})),
    {.name = "e4m3",
     .idea = "8 bits: half of the bytes, and twice the products",
     .types = kE4m3,
     .needs = kHopper,
     // Takes an empty product, too, as no earlier step has 8 bits: by bias_activation.cu's kernel.
     .takes = takes_boxes_of_8_bits,
     .otherwise = "",
     .shows = {{136, 328, 208}, {4096, 4096, 4096}},
     .launch = e4m3},
    {.name = "shares",
     .idea = "few tiles in fp32: shares of k in a workspace",
     .types = kFp32,
     .needs = {},
     .takes = takes_shares,
     .otherwise = "double_buffered",
     .shows = {{100, 120, 700}, {256, 256, 16384}},
     .launch = shares,
     .workspace_bytes = shares_bytes},
    {.name = "stream_k",
     .idea = "fp32: the first tiles' iterations in one line, in equal pieces; any rows",
     .types = kFp32,
     .needs = {tile::Feature::cp_async},
     .takes = takes_stream_k,
     .otherwise = "shares",
     .shows = {{1300, 1300, 17}, {3001, 3001, 3001}},
     .launch = stream_k,
     .workspace_bytes = stream_bytes},
    pads_rows(hopper_step("swap_ab", "few rows: B's columns are the rows that wgmma multiplies",
                          swap_ab, takes_swap_ab, "split_k", {{24, 328, 1000}, {16, 16384, 4096}})),
};
inline constexpr Ladder kLadder{
    .name = "", .kernels = "matmul_", .steps = kSteps, .validate = validate, .is_empty = is_empty};

}  // namespace matmul
