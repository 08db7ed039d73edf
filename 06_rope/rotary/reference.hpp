// The reference of the rotation.
#pragma once

#include <cstdint>
#include <span>

#include "harness/compare.hpp"
#include "rotary/rotary.hpp"

namespace rope {

/// How exact a kernel's cosines and sines are: those of tables are rounded once; step `sincos`
/// computes them.
enum class Angles { tables, computed };

/// One tensor's rows in double, and how far a correct kernel may be from it. `x` is [batch][length]
/// [heads][head_dim] without padding, `frequencies` [rotary_dim / 2], `positions` [batch][length]
/// or empty. If x itself is a result, x_bound is how far a kernel's may be from it. Tokens between
/// integer positions have `places`, [batch][length], instead.
tile::Expected reference(const RotaryProblem& problem, std::span<const double> x,
                         std::int64_t heads, std::span<const double> frequencies,
                         std::span<const int> positions = {}, Angles angles = Angles::tables,
                         std::span<const double> x_bound = {}, std::span<const double> places = {});

}  // namespace rope
