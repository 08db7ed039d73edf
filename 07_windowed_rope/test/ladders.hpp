// The ladders of the methods and from hidden states, which bench.cpp registers with those of
// windowed attention.
#pragma once

#include "harness/chapter.hpp"

namespace windowed_rope {

tile::LadderInfo method_info();
tile::LadderInfo method_backward_info();
tile::LadderInfo hidden_info();
tile::LadderInfo hidden_backward_info();

/// The encodings side by side: error, memory and time, and their curves as a drawing.
tile::SideBySide side_by_side();

}  // namespace windowed_rope
