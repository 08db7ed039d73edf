// Times on a GPU. Nothing here means anything on the CPU device.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "tile/host/dtype.hpp"
#include "tile/host/status.hpp"

namespace tile {

/// Starts the work to be timed in a stream, a cudaStream_t.
using Work = std::function<Status(void* stream)>;

/// The load under which a card is measured. A card that is busy for long gets hot and lowers its
/// clock.
enum class Duty {
  burst,      ///< after a pause, and with another one after every 0.3 s of work
  sustained,  ///< after half a second of the same work, without a pause
};

struct Timing {
  double median = 0;  ///< milliseconds, as are the next two
  double low = 0;     ///< a tenth of the repetitions was faster
  double high = 0;    ///< a tenth was slower
  int repetitions = 0;
  double sm_clock = 0;  ///< MHz, right after the last repetition
};

/// Works that are timed in turn.
struct Group {
  std::vector<std::size_t> works;  ///< their indices
  int repetitions = 0;
  int burst = 0;  ///< calls between two pauses; 0: there is none
};

/// Plans the timing of works, given the time of one execution of each: first `rivals` works
/// (ceilings and peers), then the steps. The first group has all rivals, the last step, and every
/// step that takes at most four times as long as the fastest step or a millisecond. Each of the
/// others is a group by itself: in turn with it, the card would rest between executions of the fast
/// ones, and the bench would take long. Repetitions are 30, or as many as take 0.4 s for each work
/// of the group, but at least 3.
std::vector<Group> plan(std::span<const double> milliseconds, std::size_t rivals);

/// Milliseconds of one execution of each, to plan with.
Status time_once(std::span<const Work> works, std::vector<double>* milliseconds);

/// Times the works of a group in turn, one execution of each at a time, so that all see the same
/// card. CUDA events around each execution; before it, the L2 cache is cleared by reading 256 MiB:
/// reading, because lines left dirty by a write would be written back within the time measured.
/// A tenth as many rounds come first, unmeasured. Writes the timings of the group; `timings` has
/// one for each of `works`.
Status time_in_turn(std::span<const Work> works, const Group& group, Duty duty,
                    std::vector<Timing>* timings);

/// Two copies that move `bytes`, half read and half written: by cudaMemcpyAsync and by a plain
/// kernel. The faster of the two is the ceiling of a kernel that moves as many. They keep the
/// memory that they copy, random bits, until they are destroyed.
Status copies(double bytes, std::vector<Work>* works);

/// Independent multiply-adds of this type with no memory in the way: about a millisecond of the
/// highest rate at which this card can compute. For fp32 they are fused multiply-adds, for the
/// types that tensor cores multiply mma.sync instructions, whose highest rate on Hopper is below
/// that of its tensor cores. Two operations each.
Status multiply_adds(DType type, Work* work, double* operations);

}  // namespace tile
