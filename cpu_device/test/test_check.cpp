// The check build: of each pair of kernels the right one is silent, and of the other the whole
// report is known, in every order. Check build only.
#include <doctest/doctest.h>

#include <cstdio>
#include <functional>
#include <regex>
#include <string>
#include <vector>

#include "check_kernels.hpp"
#include "harness/buffer.hpp"
#include "harness/inputs.hpp"
#include "marks.hpp"
#include "report.hpp"

using namespace device_test;
using cpu_device::options;
using cpu_device::Order;

namespace {

constexpr const char* kFile = "cpu_device/test/check_kernels.cu";

/// All zero, and known by its name.
template <class T>
struct Zeros : DeviceArray<T> {
  Zeros(const char* name, std::int64_t count) : DeviceArray<T>(static_cast<std::size_t>(count)) {
    tile::name_array({name, this->data(), sizeof(T), 1, count, count, true});
  }
};

KernelFailure run(const Pair& pair, bool mistake, const NamedOrder& order) {
  options().order = order.order;
  options().seed = order.seed;
  using tile::DeviceBuffer;
  const auto layout = tile::vector_layout(tile::DType::fp32, kCount);
  const DeviceBuffer in =
      DeviceBuffer::input("in", layout, tile::normal(kCount, tile::DType::fp32, 1));
  const DeviceBuffer out = DeviceBuffer::output("out", layout, tile::Poison::unwritten_nan);
  const DeviceBuffer matrix =
      DeviceBuffer::input("matrix", tile::matrix_layout(tile::DType::fp32, kRows, kColumns, kLd),
                          tile::normal(kRows * kColumns, tile::DType::fp32, 2));
  const Zeros<int> counts("counts", kCounts);
  const Zeros<__half> halves("halves", kCounts);
  const Zeros<unsigned char> letters("letters", kCounts);
  const std::vector<float> heap(kCount);
  void* fresh = nullptr;
  require(cudaMalloc(&fresh, kCount * sizeof(float)));
  pair.launch(mistake, {static_cast<const float*>(in.raw()), static_cast<float*>(out.raw()),
                        static_cast<const float*>(matrix.raw()), counts.data(), halves.data(),
                        letters.data(), static_cast<float*>(fresh), heap.data()});
  const KernelFailure failure = take_failure();
  require(cudaFree(fresh));
  return failure;
}

std::string place(const std::string& text) { return device_test::place(kFile, text); }
std::string marked(const std::string& mark) { return device_test::marked(kFile, mark); }
int line(const std::string& mark) {
  const std::string at = marked(mark);
  return std::stoi(at.substr(at.rfind(':') + 1));
}

using Numbers = std::vector<int>;

Numbers numbers_in(const std::string& text) {
  static const std::regex number("-?[0-9]+");
  Numbers numbers;
  for (std::sregex_iterator it(text.begin(), text.end(), number), end; it != end; ++it) {
    numbers.push_back(std::stoi(it->str()));
  }
  return numbers;
}

/// What a report must say up to the line about the launch, given what it says: the numbers depend
/// on the order, and what must hold between them is part of the case.
using Expected = std::function<std::string(const std::string& report)>;

/// `text` with a number for each #, for which `holds`, at the line marked so.
Expected finding(std::string text, std::string mark, bool (*holds)(const Numbers& n)) {
  return [=](const std::string& report) -> std::string {
    const Numbers numbers = numbers_in(report.substr(0, report.find('\n')));
    if (!holds(numbers)) return "other numbers";
    // A # is any number: the right text has the report's.
    std::string right;
    size_t next = 0;
    for (const char c : text) {
      if (c != '#') {
        right += c;
        // Numbers that the text has itself are the report's too, if it is right.
        continue;
      }
      right += next < numbers.size() ? std::to_string(numbers[next++]) : "?";
    }
    return right + "\n  at " + marked(mark) + "\n";
  };
}

/// Two accesses of a race: which threads (and blocks) of which element.
struct Meeting {
  int block1, thread1, block2, thread2;  // the second is the one that noticed
  bool wrote1, wrote2;
  Numbers index;
};

struct Race {
  const char* array;
  const char* write;           // the marks of the lines
  const char* read = nullptr;  // none if both write
  bool (*holds)(const Meeting& m) = nullptr;
  bool atomic = false;  // one of them is
  bool again = false;   // something was there before the write
  // The mark of the wait, if the write is a cp.async. Its report may come from before the wait.
  const char* wait = nullptr;
  bool copied = false;  // the write is a cp.async
  bool copies = false;  // the read is a cp.async
  bool fences_of_blocks = false;
  std::string (*advice)(const Meeting& m) = nullptr;  // where it is not what races have in common
};

/// A race may be noticed by the reader or by the writer, whoever comes second.
Expected race(const Race& race) {
  return [race](const std::string& report) -> std::string {
    static const std::regex form(
        R"(thread (\d+|\(\d+, \d+, 0\)) (reads|writes|updates atomically) (\w+)((?:\[\d+\])*))"
        R"((?: by cp\.async)?, )"
        R"(which (block \((\d+), 0, 0\)'s )?thread (\d+|\(\d+, \d+, 0\)) )"
        R"((wrote|is writing|read)(?: by cp\.async)?( before anything was written there)?: a race\n[^]*)"
        R"(this is block \((\d+), 0, 0\)\n)");
    std::smatch m;
    if (!std::regex_match(report, m, form)) return "no race";
    const auto thread = [](const std::string& name) {
      const Numbers n = numbers_in(name);
      return n.size() == 1 ? n[0] : n[0] + 8 * n[1];
    };
    const bool wrote = m[8] != "read", reads = m[2] == "reads";
    const int block = std::stoi(m[10]);
    const Meeting meeting{m[5].matched ? std::stoi(m[6]) : block,
                          thread(m[7]),
                          block,
                          thread(m[1]),
                          wrote,
                          !reads,
                          numbers_in(m[4])};
    if (!race.holds(meeting)) return "other numbers";
    if (!race.read && !(wrote && !reads)) return "not two writes";
    const bool same_block = meeting.block1 == meeting.block2;
    const auto by = [&](bool writes) {
      return (writes ? race.copied : race.copies) ? " by cp.async" : "";
    };
    std::string text = "thread " + m[1].str() + " " + m[2].str() + " " + race.array + m[4].str() +
                       by(!reads) + ", which " + m[5].str() + "thread " + m[7].str() + " " +
                       m[8].str() + by(wrote) + m[9].str() + ": a race\n";
    const std::string write =
        std::string(race.copied ? "  copied at " : "  written at ") + marked(race.write) + "\n";
    text += wrote ? write : "  read at " + marked(race.read) + "\n";
    if (m[8] == "wrote" && race.copied) text += "  waited for at " + marked(race.wait) + "\n";
    text += reads ? "  read at " + marked(race.read) + "\n" : write;
    if (race.advice) return text + race.advice(meeting);
    if (!same_block && wrote && !reads) {
      return text +
             "  two blocks write the same element; let one of them write it, or both update it by "
             "an atomic\n";
    }
    if (!same_block) {
      return text +
             "  blocks of one launch have no order; missing: atomics for both, or a second launch, "
             "or an atomic that tells of the first, with a __threadfence() before it and after it" +
             (race.fences_of_blocks ? "; a __threadfence_block() is for one block only\n" : "\n");
    }
    if (!race.read) {
      return text +
             "  both threads write the same element; let one of them write it, or put a "
             "__syncthreads() between the two writes, if the second is a turn of a loop later\n";
    }
    text += race.atomic ? "  one of the two is atomic or volatile, the other is not; missing: a "
                          "__syncthreads() "
            : meeting.thread1 / 32 == meeting.thread2 / 32
                ? "  both are in one warp, whose threads need not run in step; missing: a "
                  "__syncwarp() or __syncthreads() "
                : "  missing: a __syncthreads() ";
    const std::string noun = race.copied ? "the copy" : "the write";
    const std::string end = race.copied ? "the wait for the copy" : "the write";
    if (m[9].matched) {
      return text + "between " + end + " and the read, which came too early\n";
    }
    // A write below the read needs no loop to come after it.
    const bool is_below = line(race.write) > line(race.read);
    const std::string before = "between " + end + " and the read";
    const std::string after = "between the read and " + noun;
    if (!wrote) return text + after + (is_below ? "\n" : ", which may be a turn of a loop later\n");
    if (!race.again) return text + before + "\n";
    return text + (is_below ? after + ", or " + before : before + ", or " + after) +
           " if that is a turn of a loop later\n";
  };
}

/// An access to what a cp.async is still to write, at the lines marked <kernel>.copy and
/// <kernel>.access. `holds` is given thread, index and the copy's thread.
Expected under_way(std::string access, std::string array, std::string kernel, std::string missing,
                   bool (*holds)(const Numbers& n)) {
  return [=](const std::string& report) -> std::string {
    const Numbers numbers = numbers_in(report.substr(0, report.find('\n')));
    if (!holds(numbers)) return "other numbers";
    std::string index;
    for (size_t i = 1; i + 1 < numbers.size(); ++i) {
      index += "[" + std::to_string(numbers[i]) + "]";
    }
    const std::string thread = "thread " + std::to_string(numbers.back());
    const std::string what = access == "read" ? "reads " : "writes ";
    std::string ends = missing;
    const bool names_wait = ends.find("WAIT") != ends.npos;
    for (const auto& [name, text] : {std::pair<std::string, std::string>{"THREAD", thread},
                                     {"WAIT", names_wait ? marked(kernel + ".wait") : ""}}) {
      for (size_t at = 0; (at = ends.find(name)) != ends.npos;) ends.replace(at, name.size(), text);
    }
    return "thread " + std::to_string(numbers[0]) + " " + what + array + index +
           ", which a cp.async of " + thread + " is still to write\n  copied at " +
           marked(kernel + ".copy") + "\n  " + (access == "read" ? "read" : "written") + " at " +
           marked(kernel + ".access") + "\n  " + ends + "\n";
  };
}

/// The finding, and what the report says after its line.
Expected with_more(const Expected& finding, const std::string& more) {
  return [=](const std::string& report) { return finding(report) + more; };
}

template <bool kCopies>
std::string before_next_turn(const Meeting&) {
  return std::string(
             "  missing: a __syncthreads() at the end of the loop's body, between the read and the "
             "next turn's ") +
         (kCopies ? "copy\n" : "write\n");
}

int writer(const Meeting& m) { return m.wrote1 ? m.thread1 : m.thread2; }
int reader(const Meeting& m) { return m.wrote1 ? m.thread2 : m.thread1; }

struct Case {
  const char* kernel;
  cudaError_t error;
  const char* shape;
  Expected expected;
};

constexpr const char* kOneBlock = "grid (1, 1, 1), block (64, 1, 1)";
constexpr const char* kOneWarp = "grid (1, 1, 1), block (32, 1, 1)";

const Case kCases[] = {
    // Barriers of a block.
    {"load_tile", cudaErrorLaunchFailure, "grid (1, 1, 1), block (8, 8, 1)",
     race({"tile", "load_tile.write", "load_tile.read",
           [](const Meeting& m) {
             const int x = reader(m) % 8, y = reader(m) / 8;
             return m.index == Numbers{7 - x, y} && writer(m) == (7 - x) * 8 + y;
           }})},
    {"next_tile", cudaErrorLaunchFailure, kOneBlock,
     race({.array = "tile",
           .write = "next_tile.write",
           .read = "next_tile.read",
           .holds = [](const Meeting& m) {
             return m.index == Numbers{writer(m)} && reader(m) == 63 - writer(m);
           },
           .again = true,
           .advice = before_next_turn<false>})},
    {"last_warp", cudaErrorLaunchFailure, kOneBlock,
     race({"sums", "last_warp", "last_warp",
           [](const Meeting& m) {
             const int step = writer(m) - reader(m);
             return m.index == Numbers{writer(m)} && step > 0 && step < 32 &&
                    (step & (step - 1)) == 0;
           }, false, true})},
    {"shift", cudaErrorLaunchFailure, kOneBlock,
     race({"row", "shift.write", "shift.read",
           [](const Meeting& m) {
             return m.index == Numbers{writer(m)} && writer(m) == (reader(m) + 1) % 64;
           }, false, true})},
    {"one_total", cudaErrorLaunchFailure, kOneBlock,
     race({"total", "one_total.write", nullptr,
           [](const Meeting& m) {
             return m.index.empty() && m.thread1 % 2 == 0 && m.thread2 % 2 == 0 &&
                    m.thread1 != m.thread2;
           }})},
    // Warps.
    {"neighbour_lane", cudaErrorLaunchFailure, kOneWarp,
     race({"lanes", "neighbour_lane.write", "neighbour_lane.read",
           [](const Meeting& m) {
             return m.index == Numbers{writer(m)} && writer(m) == (reader(m) ^ 1);
           }})},
    {"shuffle_for_barrier", cudaErrorLaunchFailure, kOneWarp,
     race({"lanes", "shuffle_for_barrier.write", "shuffle_for_barrier.read",
           [](const Meeting& m) {
             return m.index == Numbers{writer(m)} && writer(m) == (reader(m) ^ 2);
           }})},
    {"half_warp", cudaErrorLaunchFailure, kOneWarp,
     race({"lanes", "half_warp.write", "half_warp.read",
           [](const Meeting& m) {
             return m.index == Numbers{writer(m)} && writer(m) == (reader(m) ^ 16);
           }})},
    {"halves_that_met", cudaErrorLaunchFailure, kOneWarp,
     race({"lanes", "halves_that_met.write", "halves_that_met.read",
           [](const Meeting& m) {
             return m.index == Numbers{writer(m)} && writer(m) == (reader(m) ^ 16);
           }})},
    {"some_readers", cudaErrorLaunchFailure, kOneWarp,
     race({"first", "some_readers.write", "some_readers.read",
           [](const Meeting& m) {
             return m.index.empty() && writer(m) == 0 && reader(m) == 3 && !m.wrote1;
           }})},
    // Atomics.
    {"histogram", cudaErrorLaunchFailure, kOneBlock,
     race({.array = "bins",
           .write = "histogram",
           .read = "histogram",
           .holds = [](const Meeting& m) {
             return m.index == Numbers{m.thread1 % 4} && m.thread1 % 4 == m.thread2 % 4 &&
                    m.thread1 != m.thread2;
           },
           .advice = [](const Meeting&) -> std::string {
             return "  both threads update the same element, by a read and a write; missing: an "
                    "atomic, such as atomicAdd\n";
           }})},
    {"clear_bins", cudaErrorLaunchFailure, kOneBlock,
     finding("thread # updates atomically bins[#], which nothing has written", "clear_bins",
             [](const Numbers& n) { return n.size() == 2 && n[0] % 4 == n[1]; })},
    {"read_counter", cudaErrorLaunchFailure, kOneBlock,
     race({"counts", "read_counter.write", "read_counter.read",
           [](const Meeting& m) {
             return m.index == Numbers{0} && reader(m) == 7 && writer(m) != 7;
           },
           true, true})},
    // Blocks.
    {"sum_of_blocks", cudaErrorLaunchFailure, "grid (8, 1, 1), block (1, 1, 1)",
     race({.array = "counts",
           .write = "sum_of_blocks",
           .holds = [](const Meeting& m) {
             return m.index == Numbers{3} && m.block1 != m.block2;
           },
           .advice = [](const Meeting& m) {
             const auto thread = [](int block) {
               return "thread 0 of block (" + std::to_string(block) + ", 0, 0)";
             };
             return "  " + thread(m.block1) + " and " + thread(m.block2) +
                    " come to the same element: is blockIdx.x missing from the index?\n"
                    "  two blocks write the same element; let one of them write it, or both update "
                    "it by an atomic\n";
           }})},
    {"neighbour_block", cudaErrorLaunchFailure, "grid (8, 1, 1), block (1, 1, 1)",
     [](const std::string& report) {
       // Where the neighbour runs later, it cannot be known yet that it will write.
       const Expected wrote =
           race({"out", "neighbour_block.write", "neighbour_block.read", [](const Meeting& m) {
                   return m.index == Numbers{m.block1} && m.wrote1 && m.block2 == m.block1 + 1;
                 }});
       const Expected unwritten =
           finding("thread # reads out[#], which nothing has written", "neighbour_block.read",
                   [](const Numbers& n) { return n.size() == 2 && n[0] == 0 && n[1] % 2 == 0; });
       return report.find(": a race") != std::string::npos ? wrote(report) : unwritten(report);
     }},
    {"read_by_both_blocks", cudaErrorLaunchFailure, "grid (2, 1, 1), block (64, 1, 1)",
     race({"halves", "read_by_both_blocks.write", "read_by_both_blocks.read",
           [](const Meeting& m) {
             return m.index == Numbers{0} && writer(m) == 0 && m.block1 != m.block2 &&
                    (m.wrote1 ? m.block1 : m.block2) == 1;
           }})},
    {"last_block", cudaErrorLaunchFailure, "grid (8, 1, 1), block (64, 1, 1)",
     race({"out", "last_block.write", "last_block.read",
           [](const Meeting& m) {
             return m.index == Numbers{m.thread2} && m.block1 == m.thread2 && m.thread1 == 0 &&
                    m.block2 != m.block1;
           }})},
    {"sum_by_atomics", cudaErrorLaunchFailure, "grid (8, 1, 1), block (1, 1, 1)",
     race({"counts", "sum_by_atomics.write", "sum_by_atomics.read",
           [](const Meeting& m) {
             return m.index == Numbers{1} && m.wrote1 && m.block1 != m.block2;
           }})},
    {"fence_of_the_block", cudaErrorLaunchFailure, "grid (8, 1, 1), block (1, 1, 1)",
     race({.array = "out",
           .write = "fence_of_the_block.write",
           .read = "fence_of_the_block.read",
           .holds = [](const Meeting& m) {
             return m.index == Numbers{m.block1} && m.block1 == (m.block2 == 0 ? 1 : 0);
           },
           .fences_of_blocks = true})},
    {"fence_of_one_thread", cudaErrorLaunchFailure, "grid (2, 1, 1), block (64, 1, 1)",
     race({"out", "fence_of_one_thread.write", "fence_of_one_thread.read",
           [](const Meeting& m) {
             return m.index == Numbers{m.block1 * 64 + m.thread1} && m.thread1 == m.thread2 &&
                    m.thread1 != 0 && m.block1 == 1 - m.block2;
           }})},
    {"reset_counter", cudaErrorLaunchFailure, "grid (8, 1, 1), block (1, 1, 1)",
     race({.array = "counts", .write = "reset_counter", .holds = [](const Meeting& m) {
             return m.index == Numbers{0} && m.block1 == 3 && m.block2 != 3;
           }})},
    {"cas_maximum", cudaErrorLaunchFailure, "grid (8, 1, 1), block (1, 1, 1)",
     race({"counts", "cas_maximum.write", "cas_maximum.read",
           [](const Meeting& m) {
             return m.index == Numbers{2} && (m.wrote1 ? m.block2 : m.block1) == 5;
           }})},
    {"device_counter", cudaErrorLaunchFailure, "grid (8, 1, 1), block (64, 1, 1)",
     race({"out", "device_counter.write", "device_counter.read",
           [](const Meeting& m) {
             return m.index == Numbers{m.thread2} && m.block1 == m.thread2 && m.thread1 == 0;
           }})},
    {"device_total", cudaErrorLaunchFailure, kOneBlock,
     race({.array = "total_on_device",
           .write = "device_total",
           .read = "device_total",
           .holds = [](const Meeting& m) { return m.index.empty() && m.thread1 != m.thread2; },
           .advice = [](const Meeting&) -> std::string {
             return "  both threads update the same element, by a read and a write; missing: an "
                    "atomic, such as atomicAdd\n";
           }})},
    {"volatile_sums", cudaErrorLaunchFailure, "grid (8, 1, 1), block (64, 1, 1)",
     [](const std::string& report) -> std::string {
       const Numbers n = numbers_in(report.substr(0, report.find('\n')));
       if (n.size() != 6 || n[0] != n[1] || n[1] != n[2] || n[5] != 0) return "other numbers";
       return "thread " + std::to_string(n[0]) + " reads out[" + std::to_string(n[1]) +
              "], which block (" + std::to_string(n[2]) +
              ", 0, 0)'s thread 0 wrote: both are volatile, which does not put them in an order\n"
              "  written at " + marked("volatile_sums.write") + "\n  told of by an atomic at " +
              marked("volatile_sums.atomic") + "\n  read at " + marked("volatile_sums.read") +
              "\n  missing: a __threadfence() between the write and the atomic, and one after the "
              "atomic of the reader\n";
     }},
    // What C++ leaves undefined.
    {"shift_by_all", cudaErrorLaunchFailure, kOneBlock,
     with_more(finding("thread # shifts a value of # bits by #, which C++ leaves undefined",
                       "shift_by_all",
                       [](const Numbers& n) { return n.size() >= 3 && n[1] == 32 && n[2] == 32; }),
               "  a card shifts all bits out, this machine by the remainder of 32; let this be a "
               "case of its own\n")},
    {"cast_out_of_range", cudaErrorLaunchFailure, kOneBlock,
     [](const std::string& report) {
       return report.substr(0, report.find(" converts")) +
              " converts 3000000000.000000 to int, which cannot hold it, and which C++ leaves "
              "undefined\n  at " + marked("cast_out_of_range") +
              "\n  a card takes the nearest value, and 0 for NaN; __float2int_rz() and its like do "
              "so everywhere\n";
     }},
    // Flags.
    {"wait_for_flag", cudaErrorLaunchFailure, kOneBlock,
     race({"flag", "wait_for_flag.write", "wait_for_flag.read",
           [](const Meeting& m) { return m.index.empty() && reader(m) == 0 && writer(m) == 32; }, false, true})},
    {"flag_without_fence", cudaErrorLaunchFailure, kOneBlock,
     race({"value", "flag_without_fence.write", "flag_without_fence.read",
           [](const Meeting& m) { return m.index.empty() && reader(m) == 0 && writer(m) == 32; }})},
    // Addresses in global memory.
    {"guard_of_read", cudaErrorIllegalAddress, "grid (5, 1, 1), block (64, 1, 1)",
     finding("thread # reads in[#], past the end of in (# elements)", "guard_of_read",
             [](const Numbers& n) {
               return n == Numbers{57, 250, 250};
             })},
    {"guard_of_write", cudaErrorIllegalAddress, "grid (5, 1, 1), block (64, 1, 1)",
     finding("thread # writes out[#], past the end of out (# elements)", "guard_of_write",
             [](const Numbers& n) {
               return n == Numbers{58, 250, 250};
             })},
    {"left_neighbour", cudaErrorIllegalAddress, kOneBlock,
     finding("thread # reads in[#], before the start of in (# elements)", "left_neighbour",
             [](const Numbers& n) {
               return n == Numbers{0, -1, 250};
             })},
    {"columns", cudaErrorIllegalAddress, "grid (1, 1, 1), block (16, 5, 1)",
     [](const std::string& report) {
       // x, y, z of the thread; row, column; the shape.
       const auto beside = [](const Numbers& n) {
         return n.size() == 7 && n[0] == n[4] && n[1] == n[3] && n[4] >= 7 && n[4] < 9 &&
                n[5] == 5 && n[6] == 7;
       };
       const bool last_row = report.find("matrix[4]") != std::string::npos;
       return finding(std::string("thread (#, #, #) reads matrix[#][#], ") +
                          (last_row ? "past the end" : "in the padding after a row") +
                          " of matrix (# rows of #)",
                      "columns", beside)(report);
     }},
    {"padding_of_rows", cudaErrorIllegalAddress, "grid (1, 1, 1), block (16, 4, 1)",
     finding("thread (#, #, #) reads matrix[#][#], in the padding after a row of matrix (# rows of "
             "#)",
             "padding_of_rows",
             [](const Numbers& n) {
               return n.size() == 7 && n[0] == n[4] && n[1] == n[3] && n[4] >= 7 && n[4] < 9 &&
                      n[5] == 5 && n[6] == 7;
             })},
    {"vector_at_end", cudaErrorIllegalAddress, "grid (1, 1, 1), block (128, 1, 1)",
     finding("thread # reads in[#], past the end of in (# elements)", "vector_at_end",
             [](const Numbers& n) {
               return n == Numbers{62, 250, 250};
             })},
    {"unnamed_array", cudaErrorIllegalAddress, kOneBlock,
     finding("thread # writes byte # of an allocation of 1,000 bytes, past the end",
             "unnamed_array",
             [](const Numbers& n) {
               return n == Numbers{63, 1000, 1, 0};
             })},
    {"misaligned_vector", cudaErrorMisalignedAddress, kOneWarp,
     finding("thread # reads in[#] at an address that is no multiple of #, as its type asks",
             "misaligned_vector",
             [](const Numbers& n) { return n.size() == 3 && n[1] == 4 * n[0] + 1 && n[2] == 16; })},
    {"heap_of_host", cudaErrorIllegalAddress, kOneBlock,
     finding("thread # reads memory of the host, which a GPU cannot reach", "heap_of_host",
             [](const Numbers& n) { return n.size() == 1; })},
    {"stack_of_host", cudaErrorIllegalAddress, kOneBlock,
     finding("thread # reads memory of the host, which a GPU cannot reach", "stack_of_host",
             [](const Numbers& n) { return n.size() == 1; })},
    {"null_pointer", cudaErrorIllegalAddress, kOneBlock,
     [](const std::string& report) {
       char address[16];
       const int thread = numbers_in(report).at(0);
       std::snprintf(address, sizeof address, "0x%x", static_cast<unsigned>(4 * thread));
       return "thread " + std::to_string(thread) + " reads address " + address +
              ", where there is no memory\n  at " + marked("null_pointer") + "\n";
     }},
    // Addresses in shared memory.
    {"past_shared", cudaErrorIllegalAddress, kOneBlock,
     finding("thread # writes row[#], past the end of row (# elements)", "past_shared",
             [](const Numbers& n) {
               return n == Numbers{63, 64, 64};
             })},
    {"past_square", cudaErrorIllegalAddress, kOneBlock,
     finding("thread # writes square[#][#], past the end of square (# elements)", "past_square",
             [](const Numbers& n) {
               return n.size() == 4 && n[1] == 8 && n[0] == 56 + n[2] && n[3] == 72;
             })},
    {"dynamic_too_short", cudaErrorIllegalAddress, kOneBlock,
     finding("thread # writes dynamic[#], past the end of dynamic (# elements)",
             "dynamic_too_short",
             [](const Numbers& n) {
               return n.size() == 3 && n[0] == n[1] && n[0] >= 60 && n[2] == 60;
             })},
    {"next_array", cudaErrorIllegalAddress, kOneBlock,
     finding("thread # writes a[#], past the end of a (# elements)", "next_array",
             [](const Numbers& n) {
               return n == Numbers{63, 64, 64};
             })},
    {"misaligned_in_shared", cudaErrorMisalignedAddress, kOneBlock,
     finding("thread # reads row[#] at an address that is no multiple of #, as its type asks",
             "misaligned_in_shared",
             [](const Numbers& n) {
               return n.size() == 3 && n[1] == 6 * n[0] && n[0] % 2 == 1 && n[2] == 16;
             })},
    // What was never written.
    {"fresh_memory", cudaErrorLaunchFailure, kOneBlock,
     finding("thread # reads byte # of an allocation of 1,000 bytes, which nothing has written",
             "fresh_memory",
             [](const Numbers& n) { return n.size() == 4 && n[1] == 4 * n[0] && n[3] == 0; })},
    {"tail_of_tile", cudaErrorLaunchFailure, kOneBlock,
     finding("thread # reads tile[#], which nothing has written", "tail_of_tile",
             [](const Numbers& n) { return n.size() == 2 && n[1] == 63 - n[0] && n[1] >= 50; })},
    {"add_to_output", cudaErrorLaunchFailure, kOneBlock,
     finding("thread # reads out[#], which nothing has written", "add_to_output",
             [](const Numbers& n) { return n.size() == 2 && n[0] == n[1]; })},
    {"left_by_block", cudaErrorLaunchFailure, "grid (2, 1, 1), block (32, 1, 1)",
     finding("thread # reads value, which nothing has written", "left_by_block",
             [](const Numbers& n) { return n == Numbers{0}; })},
    // Small types and large ones.
    {"neighbouring_halves", cudaErrorLaunchFailure, kOneBlock,
     race({"halves", "neighbouring_halves", nullptr,
           [](const Meeting& m) {
             return m.index == Numbers{m.thread1 / 2} && m.thread2 == (m.thread1 ^ 1);
           }})},
    {"neighbouring_letters", cudaErrorLaunchFailure, kOneBlock,
     race({"text", "neighbouring_letters.write", "neighbouring_letters.read",
           [](const Meeting&
                  m) { return m.index == Numbers{writer(m)} && writer(m) == (reader(m) ^ 3); }})},
    {"first_of_two_letters", cudaErrorLaunchFailure, kOneBlock,
     race({"text", "first_of_two_letters.write", "first_of_two_letters.read",
           [](const Meeting& m) {
             return m.index == Numbers{0} && writer(m) == 0 && reader(m) == 32;
           }})},
    {"copy_of_struct", cudaErrorLaunchFailure, kOneWarp,
     race(
         {"records", "copy_of_struct.write", "copy_of_struct.read",
          [](const Meeting&
                 m) { return m.index == Numbers{writer(m)} && writer(m) == (reader(m) + 1) % 32; }})},
    {"copy_of_vector", cudaErrorLaunchFailure, kOneWarp,
     race({"vectors", "copy_of_vector.write", "copy_of_vector.read",
           [](const Meeting&
                  m) { return m.index == Numbers{writer(m)} && writer(m) == (reader(m) ^ 1); }})},
    // Asynchronous copies.
    {"copy_without_wait", cudaErrorLaunchFailure, kOneBlock,
     under_way("read", "tile", "copy_without_wait",
               "THREAD has not waited for it; missing: a cp_async_wait in THREAD, before the "
               "barrier",
               [](const Numbers& n) {
                 return n.size() == 3 && n[1] == 63 - n[0] && n[2] == n[1];
               })},
    {"copy_without_commit", cudaErrorLaunchFailure, kOneBlock,
     under_way("read", "tile", "copy_without_commit",
               "cp_async_wait<0>() at WAIT passes over it, because it was in no group; missing: a "
               "cp_async_commit() between the two",
               [](const Numbers& n) {
                 return n.size() == 3 && n[1] == n[0] && n[2] == n[0];
               })},
    {"commit_after_wait", cudaErrorLaunchFailure, kOneBlock,
     under_way("read", "tile", "commit_after_wait",
               "cp_async_wait<0>() at WAIT passes over it, because it was in no group; missing: a "
               "cp_async_commit() between the two",
               [](const Numbers& n) {
                 return n.size() == 3 && n[1] == n[0] && n[2] == n[0];
               })},
    {"copy_for_other_warp", cudaErrorLaunchFailure, kOneBlock,
     race({.array = "tile",
           .write = "copy_for_other_warp.copy",
           .read = "copy_for_other_warp.read",
           .holds = [](const Meeting& m) {
             return m.index == Numbers{writer(m)} && reader(m) == writer(m) + 32;
           },
           .wait = "copy_for_other_warp.wait",
           .copied = true})},
    {"two_groups", cudaErrorLaunchFailure, kOneWarp,
     under_way("read", "second", "two_groups",
               "cp_async_wait<1>() at WAIT leaves it under way, as the latest group; "
               "missing: a cp_async_wait<0>()",
               [](const Numbers& n) {
                 return n.size() == 3 && n[1] == (n[0] ^ 1) && n[2] == n[1];
               })},
    {"wait_without_barrier", cudaErrorLaunchFailure, kOneBlock,
     race({.array = "tile",
           .write = "wait_without_barrier.copy",
           .read = "wait_without_barrier.read",
           .holds = [](const Meeting& m) {
             return m.index == Numbers{writer(m)} && reader(m) == 63 - writer(m);
           },
           .wait = "wait_without_barrier.wait",
           .copied = true})},
    {"barrier_before_wait", cudaErrorLaunchFailure, kOneBlock,
     [](const std::string& report) {
       // The last to read finds a copy that has landed.
       const auto holds = [](const Meeting& m) {
         return m.index == Numbers{writer(m)} && reader(m) == 63 - writer(m);
       };
       const Expected landed = race({.array = "tile",
                                     .write = "barrier_before_wait.copy",
                                     .read = "barrier_before_wait.access",
                                     .holds = holds,
                                     .wait = "barrier_before_wait.wait",
                                     .copied = true});
       const Expected early =
           under_way("read", "tile", "barrier_before_wait",
                     "a thread waits for its own copies only; missing: a __syncthreads() between "
                     "the wait at WAIT and the read",
                     [](const Numbers& n) {
                       return n.size() == 3 && n[1] == 63 - n[0] && n[2] == n[1];
                     });
       return report.find(": a race") != std::string::npos ? landed(report) : early(report);
     }},
    {"three_stages", cudaErrorLaunchFailure, kOneBlock,
     under_way("read", "stages", "three_stages",
               "cp_async_wait<2>() at WAIT leaves it under way, as one of the latest 2 groups; "
               "missing: a cp_async_wait<1>()",
               [](const Numbers& n) {
                 return n.size() == 4 && n[1] == 0 && n[2] == 63 - n[0] && n[3] == n[2];
               })},
    {"next_copy", cudaErrorLaunchFailure, kOneBlock,
     race({.array = "tile",
           .write = "next_copy.copy",
           .read = "next_copy.read",
           .holds = [](const Meeting& m) {
             return m.index == Numbers{writer(m)} && reader(m) == 63 - writer(m);
           },
           .again = true,
           .wait = "next_copy.wait",
           .copied = true,
           .advice = before_next_turn<true>})},
    {"slot_reused", cudaErrorLaunchFailure, kOneBlock,
     race({.array = "slots",
           .write = "slot_reused.copy",
           .read = "slot_reused.read",
           .holds = [](const Meeting& m) {
             return m.index == Numbers{0, writer(m)} && reader(m) == 63 - writer(m);
           },
           .again = true,
           .copied = true})},
    {"clear_after_copy", cudaErrorLaunchFailure, kOneBlock,
     under_way("write", "tile", "clear_after_copy",
               "THREAD has not waited for it; missing: a cp_async_commit() and a cp_async_wait "
               "between the copy and the write",
               [](const Numbers& n) {
                 return n.size() == 3 && n[1] == n[0] && n[2] == n[0] && n[0] < 50;
               })},
    {"copies_to_one_place", cudaErrorLaunchFailure, kOneBlock,
     race({.array = "tile",
           .write = "copies_to_one_place",
           .read = nullptr,
           .holds = [](const Meeting& m) {
             return m.index == Numbers{m.thread1 / 2} && m.thread2 == (m.thread1 ^ 1);
           },
           .wait = "copies_to_one_place.wait",
           .copied = true})},
    {"copy_too_early", cudaErrorLaunchFailure, kOneBlock,
     race({.array = "out",
           .write = "copy_too_early.write",
           .read = "copy_too_early.read",
           .holds = [](const Meeting& m) {
             return m.index == Numbers{writer(m)} && reader(m) == 63 - writer(m);
           },
           .copies = true})},
    {"copy_past_end", cudaErrorIllegalAddress, kOneWarp,
     finding("thread # writes tile[#] by cp.async, past the end of tile (# elements)",
             "copy_past_end",
             [](const Numbers& n) {
               return n == Numbers{31, 128, 128};
             })},
    {"copy_of_tail", cudaErrorIllegalAddress, kOneBlock,
     finding("thread # reads in[#] by cp.async, past the end of in (# elements)", "copy_of_tail",
             [](const Numbers& n) {
               return n == Numbers{62, 250, 250} || n == Numbers{63, 252, 250};
             })},
    {"copy_of_fresh", cudaErrorLaunchFailure, kOneBlock,
     finding("thread # reads byte # of an allocation of 1,000 bytes by cp.async, which nothing has "
             "written",
             "copy_of_fresh",
             [](const Numbers& n) { return n.size() == 4 && n[1] == 4 * n[0] && n[3] == 0; })},
    {"misaligned_copy", cudaErrorMisalignedAddress, kOneBlock,
     finding("thread # reads in[#] by cp.async at an address that is no multiple of #, its size",
             "misaligned_copy",
             [](const Numbers& n) {
               return n.size() == 3 && n[1] == 6 * n[0] && n[0] % 2 == 1 && n[2] == 16;
             })},
    {"copy_to_global", cudaErrorIllegalInstruction, kOneBlock,
     finding("thread # writes out[#] by cp.async, which writes shared memory only",
             "copy_to_global", [](const Numbers& n) { return n.size() == 2 && n[0] == n[1]; })},
    {"copy_of_shared", cudaErrorInvalidAddressSpace, kOneBlock,
     finding("thread # reads source[#] by cp.async, which reads global memory only",
             "copy_of_shared", [](const Numbers& n) { return n.size() == 2 && n[0] == n[1]; })},
};

const Case& case_of(const Pair& pair) {
  for (const Case& c : kCases) {
    if (std::string(c.kernel) == pair.kernel) return c;
  }
  throw std::logic_error(std::string(pair.kernel) + " has no case");
}

}  // namespace

TEST_CASE("kernels that are right are silent in every order") {
  const OptionsGuard guard;
  options().hang_seconds = 1;
  for (const Pair& pair : kPairs) {
    for (const NamedOrder& order : kOrders) {
      CAPTURE(std::string(order.name));
      const KernelFailure failure = run(pair, false, order);
      CHECK_MESSAGE(failure.error == cudaSuccess, failure.report);
      CHECK(failure.report == "");
    }
  }
}

TEST_CASE("of each mistake the whole report is known, in every order") {
  const OptionsGuard guard;
  options().hang_seconds = 1;
  for (const Pair& pair : kPairs) {
    const Case& c = case_of(pair);
    for (const NamedOrder& order : kOrders) {
      CAPTURE(std::string(order.name));
      const KernelFailure failure = run(pair, true, order);
      const std::string& report = failure.report;
      CHECK(std::string(cudaGetErrorName(failure.error)) == cudaGetErrorName(c.error));
      const std::string head = std::string("kernel ") + pair.kernel + "<kM = true> failed: ";
      const size_t end = report.rfind("; this is block (");
      CHECK(report.substr(0, head.size()) == head);
      REQUIRE(end != std::string::npos);
      const std::string text = report.substr(head.size());
      CHECK(report.substr(0, end) == head + c.expected(text) + "  launched at " +
                                         place(std::string(pair.kernel) + "<kM>") + ", " + c.shape);
    }
  }
  CHECK(std::size(kCases) == kPairs.size());
}

TEST_CASE("threads may store the same value, if the options say so") {
  const OptionsGuard guard;
  options().same_stores = true;
  const Zeros<int> found("found", 1);
  for (const NamedOrder& order : kOrders) {
    options().order = order.order;
    options().seed = order.seed;
    CAPTURE(std::string(order.name));
    store_found(found.data(), true);
    CHECK(take_failure().report == "");
    CHECK(found.download()[0] == 1);
    const std::string remark = cpu_device::take_remark();
    CHECK(remark.starts_with("kernel found_kernel: several threads store the same value to found"));
    CHECK(remark.find("  written at " + marked("found") + "\n  CUDA lets one of them win") !=
          remark.npos);
    store_found(found.data(), false);
    const std::string report = take_failure().report;
    CHECK_MESSAGE(report.find("writes found[0], which thread") != std::string::npos, report);
    CHECK(cpu_device::take_remark() == "");
  }
}

// For cpu_device/README.md.
TEST_CASE("(table) of what the check build finds" * doctest::skip()) {
  const OptionsGuard guard;
  std::printf("| kernel | mistake found |\n| --- | --- |\n");
  for (const Pair& pair : kPairs) {
    const std::string report = run(pair, true, kOrders[0]).report;
    const size_t begin = report.find(": ") + 2;
    std::printf("| `%s` | %s |\n", pair.kernel,
                report.substr(begin, report.find('\n') - begin).c_str());
    CHECK(report != "");
  }
}
