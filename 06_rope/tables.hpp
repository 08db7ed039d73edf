// What is checked of tables and positions, of a rotation alone and of one within attention.
#pragma once

#include <vector>

#include "harness/tensor_argument.hpp"
#include "rotary.hpp"

namespace rope {

std::vector<tile::TensorArgument> tables_of(const RotaryProblem& problem,
                                            const RotaryBuffers& buffers);

/// Whether those are there that are needed, and reach the last token.
tile::Status check_tables(const RotaryProblem& problem, const RotaryBuffers& buffers);

}  // namespace rope
