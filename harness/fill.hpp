// Inputs made on the device, for problems too large to pass through the host.
#pragma once

#include <cstdint>

#include "harness/buffer.hpp"

namespace tile {

/// Each element becomes a random number that depends on the seed, the row and the column:
/// bell-shaped with this mean and deviation, and within 3.5 deviations.
Status fill_random(GuardedMemory* memory, std::uint64_t seed, double mean, double deviation);

}  // namespace tile
