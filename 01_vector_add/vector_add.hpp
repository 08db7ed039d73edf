// c = a + b, element by element: the problem and the ladder.
#pragma once

#include <cstdint>
#include <string_view>

#include "tile/host/step.hpp"

namespace vector_add {

inline constexpr std::string_view kName = "01_vector_add";  // the folder's
inline constexpr std::string_view kTitle =
    "c = a + b: threads, blocks, and where the last block ends";

struct Problem {
  tile::DType type;
  std::int64_t n;  // elements of each vector
};

/// Device pointers to n elements each, aligned to an element. c may be a or b; otherwise it must
/// not overlap them.
struct Buffers {
  const void* a;
  const void* b;
  void* c;
};

/// What is checked before any step. The Status names the argument that is wrong.
tile::Status validate(const Problem& problem, const Buffers& buffers);

inline bool is_empty(const Problem& p) { return p.n == 0; }

// The steps. Each adds n elements in the given stream (a cudaStream_t).
tile::Status thread_per_element(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status grid_stride(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status vectors(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status loads_in_flight(const Problem& problem, const Buffers& buffers, void* stream);

inline constexpr tile::EnumSet<tile::DType> kTypes{tile::DType::fp32, tile::DType::fp16,
                                                   tile::DType::bf16};
// 100,003 is prime: the last block is not full. Every step takes every problem.
inline constexpr tile::Shows kShows{{100'003}, {1 << 26}};
using Ladder = tile::Ladder<Problem, Buffers>;
inline constexpr Ladder::Step kSteps[] = {
    {.name = "thread_per_element",
     .idea = "each thread adds one element",
     .types = kTypes,
     .needs = {},
     .takes = nullptr,
     .otherwise = "",
     .shows = kShows,
     .launch = thread_per_element},
    {.name = "grid_stride",
     .idea = "as many threads as fit on the card, each walks on by the size of the grid",
     .types = kTypes,
     .needs = {},
     .takes = nullptr,
     .otherwise = "",
     .shows = kShows,
     .launch = grid_stride},
    {.name = "vectors",
     .idea = "16 bytes with one instruction",
     .types = kTypes,
     .needs = {},
     .takes = nullptr,
     .otherwise = "",
     .shows = kShows,
     .launch = vectors},
    {.name = "loads_in_flight",
     .idea = "several loads under way in each thread",
     .types = kTypes,
     .needs = {},
     .takes = nullptr,
     .otherwise = "",
     .shows = kShows,
     .launch = loads_in_flight},
};
inline constexpr Ladder kLadder{
    .name = "", .kernels = "add_", .steps = kSteps, .validate = validate, .is_empty = is_empty};

}  // namespace vector_add
