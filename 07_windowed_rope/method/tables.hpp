// Windowed attention's rotations: by which positions queries and keys are rotated for far keys, and
// the tables.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "rotary/frequencies.hpp"
#include "tile/host/rotary.hpp"
#include "tile/host/status.hpp"

namespace windowed_rope::method {

// How far apart a query at position i and a key at j, with i - j >= W, are for the rotation:
//
//     rerope        W. Su, "Rectified Rotary Position Embeddings" (2023), github.com/bojone/rerope
//     leaky_rerope  W + (i - j - W) / factor. By the same author
//     self_extend   floor(i/G) - floor(j/G) + W - floor(W/G), G the factor. Jin et al. (2024),
//                   arXiv 2401.01325
std::string_view name(tile::FarRotation method);

/// Whether there is such a far rotation, with this window W, from 0, and factor: of leaky_rerope at
/// least 1, of self_extend a whole number. The Status names the argument that is wrong.
tile::Status validate(const tile::Rotary& rotary, std::int64_t window);

/// The position by which a query, or a key, at `position` is rotated for far keys.
double far_query_place(const tile::Rotary& rotary, std::int64_t window, std::int64_t position);
double far_key_place(const tile::Rotary& rotary, std::int64_t position);

/// Cosines and sines, [3][positions][pairs]: of a token's own position; of far_query_place(); of
/// far_key_place(). Computed in double, rounded once, times the attention factor.
rope::Tables make_tables(const tile::Rotary& rotary, std::int64_t window,
                         std::span<const double> frequencies, std::int64_t positions);

}  // namespace windowed_rope::method
