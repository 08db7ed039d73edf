// Checks of tables and positions, for a rotation alone and for one within attention.
#pragma once

#include <vector>

#include "rotary.hpp"
#include "tile/host/tensor_argument.hpp"

namespace rope {

std::vector<tile::TensorArgument> tables_of(const RotaryProblem& problem,
                                            const RotaryBuffers& buffers);

/// Whether the tables that are needed are there, and reach the last token.
tile::Status check_tables(const RotaryProblem& problem, const RotaryBuffers& buffers);

}  // namespace rope
