// The ladders of attention and of the position embeddings, which bench.cpp registers with the
// rotation's.
#pragma once

#include "harness/chapter.hpp"

namespace rope {

tile::LadderInfo attention_info();
tile::LadderInfo attention_backward_info();
tile::LadderInfo embedding_info();
tile::LadderInfo embedding_backward_info();

}  // namespace rope
