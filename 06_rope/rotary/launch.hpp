// What launchers make of a call for the kernels: heads, positions, and the direction of rotation.
#pragma once

#include "rotary/rotary.cuh"
#include "tile/host/launch.hpp"

namespace rope {

template <class T, class Void>
tile::Heads<T> heads_of(Void* data, const tile::Strides& stride) {
  return {static_cast<T*>(data), stride};
}

template <class Problem, class Buffers>
Positions positions_of(const Problem& p, const Buffers& buffers) {
  return {buffers.positions, static_cast<int>(p.first_position),
          static_cast<int>(p.table_positions), static_cast<int>(p.length)};
}

/// The sign of the sines: the transpose rotates back.
inline float sign_of(Pass pass) { return pass == Pass::forward ? 1.f : -1.f; }

}  // namespace rope
