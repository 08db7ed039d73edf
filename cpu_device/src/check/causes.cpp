// Why two threads write one element, concluded from what else they and their block have written. In
// beginners' kernels the index is wrong more often than a barrier or an atomic is missing.
#include <string>

#include "../block.hpp"
#include "finding.hpp"

namespace cpu_device::check {
namespace {

// The component in which the two differ: 'x', 'y' or 'z', or 0 if it is not exactly one.
template <class Index>
char difference(const Index& a, const Index& b) {
  const bool x = a.x != b.x, y = a.y != b.y, z = a.z != b.z;
  if (x + y + z != 1) return 0;
  return x ? 'x' : y ? 'y' : 'z';
}

bool is_row(const dim3& extent) { return extent.y == 1 && extent.z == 1; }

}  // namespace

std::string cause_of_race(const Finding& f, const Block& block, bool* certain) {
  *certain = true;
  const Launch& launch = block.launch();
  const dim3 grid = launch.config.grid, threads = launch.config.block;
  const Finding::Around& a = f.around;
  const bool two_blocks = f.earlier.block != f.block;
  const uint32_t t1 = f.earlier.thread, t2 = f.thread;
  const auto thread = [&](uint32_t number, uint32_t of_block) {
    return "thread " + block.thread_name(number) +
           (two_blocks ? " of block " + block.block_name(of_block) : "");
  };
  const std::string first = thread(t1, f.earlier.block), second = thread(t2, f.block);
  const auto element = [&](size_t index) { return element_name(f, index); };

  // A loop of the earlier thread.
  const bool is_line = is_row(grid) && is_row(threads);
  if (a.earlier.count > 1) {
    const std::string written = first + " has written " + element(a.earlier.first) + " to " +
                                element(a.earlier.last) + " there";
    const bool begins = a.earlier.step == 1 && a.later.count == 0;
    if (begins && a.index == a.earlier.first) {
      return written + ", and " + second + " begins with " + element(a.index) +
             " as well: does each thread do the work of all?";
    }
    if (begins && !two_blocks && is_line && a.index == a.earlier.first + t2 - t1) {
      return written + ", one by one, and " + second + " begins with " + element(a.index) +
             ": is the loop's step 1, and not the number of threads?";
    }
    if (two_blocks && is_line && a.earlier.step == launch.threads && launch.threads > 1) {
      return first + " has written every " + std::to_string(launch.threads) +
             "th element there, and a block has as many threads: does the loop's step lack "
             "gridDim.x?";
    }
  }
  // A loop of the later one.
  if (a.later.count > 0 && is_line) {
    const size_t step = a.index - a.later.last;
    const bool goes_on = a.later.count == 1 || a.later.step == step;
    const std::string on = second + " has written " + element(a.later.last) +
                           " there and goes on with " + element(a.index) + ", ";
    if (goes_on && !two_blocks && step == 1 && a.later.first + t1 == a.earlier.first + t2) {
      return on + "where " + first +
             " has begun: is the loop's step 1, and not the number of threads?";
    }
    if (goes_on && two_blocks && t1 == t2 && step == launch.threads && launch.threads > 1) {
      return on + std::to_string(step) +
             " further, and a block has as many threads: does the loop's step lack gridDim.x?";
    }
  }
  if (a.earlier.count > 1) return {};
  // A sum of what each thread has read elsewhere, in a single element.
  const bool is_sum = f.updates && !a.same_reads && !a.others;
  if (two_blocks) {
    const auto number = [&](uint32_t b) {
      return uint3{b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y};
    };
    const char missing = difference(number(f.earlier.block), number(f.block));
    const std::string same = first + " and " + second + " come to the same element: ";
    if (t1 == t2 && missing && a.others) {
      // Sums over blocks look like this, but then each adds what it has read elsewhere.
      *certain = !f.updates || a.same_reads;
      return same + (is_line ? std::string("is the index made of threadIdx.x alone?")
                             : std::string("is blockIdx.") + missing + " missing from the index?");
    }
    if (t1 == t2 && missing && f.array->elements() > 1 && !is_sum) {
      *certain = false;
      return same + "is blockIdx." + missing + " missing from the index?";
    }
    const bool in_rows = is_line && f.array->extents.size() == 1;
    // From index = block * step + thread, for both.
    const auto apart = static_cast<int64_t>(t1) - t2, blocks = int64_t{f.block} - f.earlier.block;
    const int64_t step = apart / blocks;
    if (in_rows && step > 0 && step < launch.threads &&
        static_cast<int64_t>(a.index) == f.block * step + t2 &&
        static_cast<int64_t>(a.index) == f.earlier.block * step + t1) {
      const std::string begin = "blocks begin " + std::to_string(step) + " elements apart";
      const std::string have = " and have " + std::to_string(launch.threads) + " threads: ";
      return step == grid.x
                 ? begin + ", which is gridDim.x," + have + "is that where blockDim.x should be?"
                 : begin + have + "is the index blockIdx.x * blockDim.x + threadIdx.x?";
    }
    return {};
  }
  const char missing = difference(launch.thread_index[t1], launch.thread_index[t2]);
  if (!missing) return {};
  if (f.array->elements() == 1) {
    if (f.shared || !a.same_reads) return {};
    return first + " and " + second +
           " have read the same elements and come to the same one: does each thread do the work "
           "of all, or is threadIdx." +
           missing + " missing from the index?";
  }
  if (a.others) {
    if (missing == 'x') return {};  // the others' threadIdx.x is part of the index
    *certain = !f.updates;
    return first + " and " + second + " come to the same element, and differ in threadIdx." +
           missing + " only: is that missing from the index?";
  }
  if (a.third == Finding::Around::kNone || is_sum) return {};
  *certain = false;
  return "threads " + block.thread_name(t1) + ", " + block.thread_name(t2) + " and " +
         block.thread_name(a.third) + " come to the same element: is threadIdx." + missing +
         " missing from the index?";
}

}  // namespace cpu_device::check
