// Times on a GPU. Nothing here means anything on the CPU device.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "harness/status.hpp"

namespace tile {

/// Starts the work to be timed in a stream, a cudaStream_t.
using Work = std::function<Status(void* stream)>;

/// Under which load a card is measured. A card that is busy for long gets hot and lowers its clock.
enum class Duty {
  burst,      ///< a few repetitions after a pause
  sustained,  ///< after half a second of the same work without a pause
};

struct Timing {
  double median = 0;  ///< milliseconds, as are the next two
  double low = 0;     ///< a tenth of the repetitions was faster
  double high = 0;    ///< a tenth was slower
  int repetitions = 0;
  double sm_clock = 0;  ///< MHz, right after the last repetition
};

/// Times several works in turn, one execution of each at a time, so that all see the same card.
/// CUDA events around each execution; before it, the L2 cache is cleared by reading 256 MiB:
/// reading, because lines left dirty by a write would be written back within the time measured.
Status time_in_turn(std::span<const Work> works, Duty duty, std::vector<Timing>* timings);

/// Two copies that move `bytes`, half read and half written: by cudaMemcpyAsync and by a plain
/// kernel. The faster of the two is the ceiling of a kernel that moves as many. They keep the
/// memory that they copy, random bits, until they are destroyed.
Status copies(double bytes, std::vector<Work>* works);

}  // namespace tile
