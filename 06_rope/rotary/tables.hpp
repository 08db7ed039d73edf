// Checks of extents, tables and positions, for a rotation alone, for one within attention, and for
// the embeddings.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "rotary/rotary.hpp"
#include "tile/host/tensor_argument.hpp"

namespace rope {

/// None is negative, or more than 2^29.
tile::Status check_extents(std::initializer_list<std::pair<const char*, std::int64_t>> extents);

std::vector<tile::TensorArgument> tables_of(const RotaryProblem& problem,
                                            const RotaryBuffers& buffers);

/// Whether the tables that are needed are there, and reach the last token.
tile::Status check_tables(const RotaryProblem& problem, const RotaryBuffers& buffers);

/// Whether chunks of 16 bytes can be read from both tables.
tile::Status check_tables_aligned(const float* cos, const float* sin);

/// Whether positions that count up from first_position end within the table.
template <class Problem>
tile::Status check_reach(const Problem& p, const int* ids) {
  const std::int64_t end = p.first_position + p.length;
  if (ids || is_empty(p) || end <= p.table_positions) return {};
  return tile::invalid_argument("table_positions", std::to_string(p.table_positions) +
                                                       " do not reach the last token's position, " +
                                                       std::to_string(end - 1));
}

}  // namespace rope
