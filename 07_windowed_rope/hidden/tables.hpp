// The tables of the encodings, and their scores by distance.
#pragma once

#include <vector>

#include "hidden/hidden.hpp"

namespace windowed_rope {

/// The tables that the encoding reads; the others are empty. Cosines and sines, [length][head_dim /
/// 2], for `windowed` as in method::make_tables(); gains, [length][head_dim]; and sinusoids,
/// [length][model_dim].
struct HiddenTables {
  std::vector<float> cos, sin, gain;
  std::vector<double> sinusoids;
};
HiddenTables hidden_tables(const Hidden& p);

/// The scores of the last query with the keys at distance 0, 1, … from it, if all tokens have the
/// same content: a vector of length 1, by which q and k are multiplied with no weights, averaged
/// over all directions; divided by that at distance 0. For a learned table it takes random rows of
/// length 1. It is computed from the tables that the kernels read.
std::vector<double> score_by_distance(const Hidden& p);

}  // namespace windowed_rope
