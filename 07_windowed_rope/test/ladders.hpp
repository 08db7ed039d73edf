// The ladders of the methods, which bench.cpp registers with those of windowed attention.
#pragma once

#include "harness/chapter.hpp"

namespace windowed_rope {

tile::LadderInfo method_info();
tile::LadderInfo method_backward_info();

}  // namespace windowed_rope
