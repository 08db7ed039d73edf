// The encodings' scores by distance, drawn.
#pragma once

#include <string>

#include "hidden/hidden.hpp"

namespace windowed_rope {

/// An SVG with the curve of each encoding, score_by_distance() of this problem with it.
std::string curves(Hidden problem);

/// "ExpoSB, w = 1".
const char* title(Encoding encoding);

}  // namespace windowed_rope
