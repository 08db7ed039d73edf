// c = a + b, element by element: the problem, the table of steps and the reference.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "harness/compare.hpp"
#include "harness/step.hpp"

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

/// What every step checks before it launches. The Status names the argument that is wrong.
tile::Status validate(const Problem& problem, const Buffers& buffers);

// The steps. Each adds n elements in the given stream (a cudaStream_t).
tile::Status thread_per_element(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status grid_stride(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status vectors(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status loads_in_flight(const Problem& problem, const Buffers& buffers, void* stream);

/// What no step refuses for its size.
inline tile::Status any_size(const Problem&) { return {}; }

using Step = tile::Step<Problem, Buffers>;
inline constexpr tile::EnumSet<tile::DType> kTypes{tile::DType::fp32, tile::DType::fp16,
                                                   tile::DType::bf16};
inline constexpr Step kSteps[] = {
    {"thread_per_element",
     "each thread adds one element",
     kTypes,
     {},
     any_size,
     thread_per_element},
    {"grid_stride",
     "as many threads as fit on the card, each walks on by the size of the grid",
     kTypes,
     {},
     any_size,
     grid_stride},
    {"vectors", "16 bytes with one instruction", kTypes, {}, any_size, vectors},
    {"loads_in_flight",
     "several loads under way in each thread",
     kTypes,
     {},
     any_size,
     loads_in_flight},
};

/// The exact sum of every pair, rounded once to the type, with bound 0: a correct kernel gives the
/// same bits. `a` and `b` hold values of the type.
tile::Expected reference(tile::DType type, std::span<const double> a, std::span<const double> b);

}  // namespace vector_add
