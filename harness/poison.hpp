#pragma once

#include <cstddef>
#include <vector>

#include "tile/host/dtype.hpp"

namespace tile {

/// Bit patterns that no kernel computes by accident. Memory that a kernel must not read or must
/// overwrite is filled with them, so one that appears in a result shows where it came from.
enum class Poison {
  unwritten_nan,     ///< an output element before the kernel ran: a NaN
  unwritten_finite,  ///< the same for a second run: a large finite number
  outside,           ///< around an input, and in its padding columns: a NaN
  uninitialised,     ///< what the CPU device fills fresh memory with: all bits 1, a NaN
};

/// An element that was never written can pass by chance with one of them (a NaN where a NaN is
/// expected), never with both: poisons_for() says which a test needs.
inline constexpr Poison kOutputPoisons[] = {Poison::unwritten_nan, Poison::unwritten_finite};

/// The bytes of one poisoned element.
std::vector<std::byte> poison_bytes(Poison poison, DType dtype);

/// The same element as a double.
double poison_value(Poison poison, DType dtype);

/// Whether `value` is this poison in any of the types that results have, bit for bit.
bool is_poison(double value, Poison poison);

}  // namespace tile
