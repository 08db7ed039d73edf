// C = alpha * op(A) * op(B) + beta * C: the problem, the table of steps and the reference.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "harness/compare.hpp"
#include "harness/step.hpp"

namespace matmul {

inline constexpr std::string_view kName = "02_matmul";  // the folder's
inline constexpr std::string_view kTitle =
    "C = A B: each value from memory once, and multiplied many times";

/// The matrices are row-major. op(A) is A, or its transpose. The two products of the backward pass
/// are transposed ones: of C = A B, dA = dC Bᵀ and dB = Aᵀ dC.
struct Problem {
  tile::DType type;
  std::int64_t m, n, k;                    // op(A) is m x k, op(B) is k x n, C is m x n
  bool transpose_a = false;                // A is stored k x m
  bool transpose_b = false;                // B is stored n x k
  std::int64_t lda = transpose_a ? m : k;  // elements from one stored row of A to the next
  std::int64_t ldb = transpose_b ? k : n;  // likewise of B
  std::int64_t ldc = n;                    // likewise of C
  float alpha = 1, beta = 0;               // with alpha 0, A and B are not read; with beta 0,
                                           // what C held is not read
};

/// Device pointers to the first elements, aligned to an element. C overlaps neither A nor B.
struct Buffers {
  const void* a;
  const void* b;
  void* c;
};

/// What every step checks before it launches. The Status names the argument that is wrong.
tile::Status validate(const Problem& problem, const Buffers& buffers);

/// The same for matrices of any type, on the host too: what is asked before reference().
tile::Status validate_matrices(const Problem& problem, const Buffers& buffers);

// The steps. Each computes C in the given stream (a cudaStream_t).
tile::Status naive(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status coalesced(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status shared_tile(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status register_tile(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status vectors(const Problem& problem, const Buffers& buffers, void* stream);
tile::Status double_buffered(const Problem& problem, const Buffers& buffers, void* stream);

/// What no step refuses for its size.
inline tile::Status any_size(const Problem&) { return {}; }

using Step = tile::Step<Problem, Buffers>;
inline constexpr tile::EnumSet<tile::DType> kTypes{tile::DType::fp32};
inline constexpr Step kSteps[] = {
    {"naive", "each thread computes one element of C", kTypes, {}, any_size, naive},
    {"coalesced", "neighbouring threads, neighbouring columns", kTypes, {}, any_size, coalesced},
    {"shared_tile",
     "a block loads tiles into shared memory, and reads each value many times",
     kTypes,
     {},
     any_size,
     shared_tile},
    {"register_tile",
     "a thread computes 8 x 8 elements, and uses each value 8 times",
     kTypes,
     {},
     any_size,
     register_tile},
    {"vectors",
     "16 bytes with one instruction, to and from both memories",
     kTypes,
     {},
     any_size,
     vectors},
    {"double_buffered",
     "the next tiles are under way while these are multiplied",
     kTypes,
     {},
     any_size,
     double_buffered},
};

/// C in double, and how far a correct kernel may be from it. `a`, `b` and `c` hold the values that
/// the kernel sees, as they are stored but without padding; c, of m x n values, is used if beta is
/// not 0. The bound is 4 sqrt(k) u (|A||B|) for sums whose terms have mean zero, if `zero_mean`
/// says so, and gamma_k (|A||B|) for any (Higham, "Accuracy and Stability of Numerical Algorithms",
/// 3.1); to it come the roundings of alpha and beta.
tile::Expected reference(const Problem& problem, std::span<const double> a,
                         std::span<const double> b, std::span<const double> c, bool zero_mean);

}  // namespace matmul
