// The sinusoidal table, and the references of the position embeddings.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "embedding/embedding.hpp"
#include "harness/compare.hpp"

namespace rope {

/// The sinusoidal table, [positions][dim]:
///
///     table[p, 2 i] = sin(p 10000^(-2 i / dim))          table[p, 2 i + 1] = cos(the same)
///
/// Vaswani et al., "Attention Is All You Need" (2017), arXiv 1706.03762. The last column of an odd
/// dim is a sine.
std::vector<double> sinusoids(std::int64_t positions, std::int64_t dim);

/// y in double, and how far a correct kernel may be from it: not at all if x is empty. `positions`
/// are [batch][length] or empty.
tile::Expected reference(const EmbeddingProblem& problem, std::span<const double> x,
                         std::span<const double> table, std::span<const int> positions = {});

/// dtable, a value and a bound for each element.
tile::Expected backward_reference(const EmbeddingProblem& problem, std::span<const double> dy,
                                  std::span<const int> positions = {});

}  // namespace rope
