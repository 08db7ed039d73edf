#include "xray.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "../block.hpp"
#include "../kernel_name.hpp"
#include "../source_lines.hpp"
#include "cpu_device/options.h"
#include "cpu_device/xray.h"
#include "xray_svg.hpp"

namespace cpu_device {
namespace check {
namespace {

constexpr uint32_t kSector = 32, kBankBytes = 4, kBanks = 32;
constexpr size_t kMostBytes = 16;  // of a lane in one request; larger copies are several

/// An access, as the source has it.
struct Key {
  Place place;
  Kind kind;
  XraySpace space;
  const std::string* array;  // its name, one of `names`
  auto operator<=>(const Key&) const = default;
};
struct KeyHash {
  size_t operator()(const Key& key) const {
    return key.place * 8u + static_cast<size_t>(key.kind) * 2u + static_cast<size_t>(key.space);
  }
};

std::set<std::string, std::less<>> names;

/// The requests of a warp at one place since its lanes met.
struct AtPlace {
  std::array<uint32_t, kLanes> next{};  // by lane: the request that its next access belongs to
  std::vector<XrayRequest> requests;
};
using Warp = std::unordered_map<Key, AtPlace, KeyHash>;
std::map<uint32_t, Warp> warps;  // by the block's rank in its cluster, and the warp

struct Counts {
  uint64_t requests = 0, cost = 0, least = 0, used = 0;
  XrayRequest worst;  // the one with most to gain
  uint64_t worst_gain = 0;
};
struct Kernel {
  std::string name;
  uint64_t launches = 0, blocks = 0;
  uint32_t threads = 0;
  std::map<Key, Counts> counts;
  std::set<std::string> not_counted;
};
std::vector<Kernel> kernels;
Kernel* kernel = nullptr;  // of the running launch

/// While it lives, the current thread is not in its kernel: what the standard library's functions
/// access here is not looked at.
struct Apart {
  Apart() {
    if (current_block) current_block->leaves_kernel();
  }
  ~Apart() {
    if (current_block) current_block->enters_kernel();
  }
};

/// Bytes that lanes ask for, each once, and the pieces of `unit` bytes that hold them.
struct Extent {
  uint64_t bytes = 0;
  std::vector<uintptr_t> pieces;  // ascending
};
Extent extent_of(const XrayRequest& request, uint32_t lanes, uintptr_t unit) {
  std::vector<uintptr_t> begins;
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    begins.push_back(request.address[static_cast<size_t>(std::countr_zero(rest))]);
  }
  std::ranges::sort(begins);
  Extent extent;
  uintptr_t end = 0;
  for (const uintptr_t begin : begins) {
    const uintptr_t next = begin + request.bytes;
    if (next > end) extent.bytes += next - std::max(begin, end);
    end = std::max(end, next);
    for (uintptr_t piece = begin / unit; piece <= (next - 1) / unit; ++piece) {
      if (extent.pieces.empty() || extent.pieces.back() < piece) extent.pieces.push_back(piece);
    }
  }
  return extent;
}

/// Distinct words of these lanes in one bank, of the bank that has most.
uint64_t conflict_degree(const XrayRequest& request, uint32_t lanes) {
  std::array<uint64_t, kBanks> words{};
  for (const uintptr_t word : extent_of(request, lanes, kBankBytes).pieces) ++words[word % kBanks];
  return *std::ranges::max_element(words);
}

/// Whether each lane asks for the same as the one beside it, or each as the one after that. Loads
/// of 8 and 16 bytes then serve twice as many lanes in a wavefront (an answer of NVIDIA's in
/// forums.developer.nvidia.com/t/77228).
bool is_paired(const XrayRequest& request, uint32_t lanes) {
  const auto same = [&](uint32_t distance) {
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      const uint32_t other = lane ^ distance;
      if ((lanes >> lane & 1) == 0 || (lanes >> other & 1) == 0) continue;
      if (request.address[lane] != request.address[other]) return false;
    }
    return true;
  };
  return same(1) || same(2);
}

/// Wavefronts of these lanes' copies by cp.async, 16 bytes each. One takes bytes of one line of
/// memory to one row of the banks, both of 128 bytes: each 16 from a place of the line that no
/// other lane takes, and all by the same last two bits of source ^ destination, counted in 16
/// bytes. (NVIDIA does not say so: it is what Nsight Compute counts of 30 patterns out of 33, on an
/// H200.)
uint64_t copy_cost(const XrayRequest& request, uint32_t lanes) {
  constexpr uintptr_t kLine = 128;
  std::map<std::tuple<uintptr_t, uintptr_t, uintptr_t>, std::array<uint64_t, kLine / 16>> together;
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    const auto lane = static_cast<size_t>(std::countr_zero(rest));
    const uintptr_t from = request.source[lane], to = request.address[lane];
    ++together[{from / kLine, to / kLine, (from ^ to) / 16 % 4}][from % kLine / 16];
  }
  uint64_t cost = 0;
  for (const auto& [key, places] : together) cost += *std::ranges::max_element(places);
  return cost;
}

/// Lanes whose copies by cp.async have a source.
uint32_t lanes_with_source(const XrayRequest& request) {
  uint32_t lanes = 0;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    lanes |= static_cast<uint32_t>(request.source[lane] != 0) << lane;
  }
  return lanes;
}

/// A wavefront serves 32 words at most: those of all lanes, of half of them at 8 bytes a lane, of a
/// quarter at 16. Copies of 4 and 8 bytes meet in the banks of their source as well.
void add_shared(const XrayRequest& request, bool loads, Counts* counts) {
  const uint32_t copied = lanes_with_source(request);
  const XrayRequest source{copied, request.bytes, request.source, {}};
  const bool in_pieces = copied && request.bytes == kMostBytes;
  if (in_pieces) counts->cost += copy_cost(request, copied);
  uint32_t together = request.bytes <= 4 ? kLanes : request.bytes <= 8 ? 16 : 8;
  const uint32_t step = std::min(kLanes, 2 * together);
  for (uint32_t first = 0; first < kLanes; first += step) {
    const uint32_t all = step == kLanes ? ~0u : ((1u << step) - 1) << first;
    const uint32_t lanes = request.lanes & all;
    const bool paired = together < kLanes && loads && is_paired(request, lanes);
    const uint32_t width = paired ? step : together;
    for (uint32_t at = first; at < first + step; at += width) {
      const uint32_t some = width == kLanes ? ~0u : ((1u << width) - 1) << at;
      if ((lanes & some) == 0) continue;
      ++counts->least;
      const uint32_t stored = lanes & some & ~(in_pieces ? copied : 0);
      if (stored == 0) continue;
      counts->cost +=
          std::max(conflict_degree(request, stored), conflict_degree(source, stored & copied));
    }
  }
  counts->used += extent_of(request, request.lanes, kBankBytes).bytes;
}

void add_global(const XrayRequest& request, Counts* counts) {
  const Extent extent = extent_of(request, request.lanes, kSector);
  counts->cost += extent.pieces.size();
  counts->least += (extent.bytes + kSector - 1) / kSector;
  counts->used += extent.bytes;
}

void add(const Key& key, const XrayRequest& request) {
  Counts& counts = kernel->counts[key];
  const uint64_t gain_before = counts.cost - counts.least;
  ++counts.requests;
  if (key.space == XraySpace::shared) {
    add_shared(request, key.kind == Kind::read, &counts);
  } else {
    add_global(request, &counts);
  }
  const uint64_t gain = counts.cost - counts.least - gain_before;
  if (counts.requests == 1 || gain > counts.worst_gain ||
      (gain == counts.worst_gain &&
       std::popcount(request.lanes) > std::popcount(counts.worst.lanes))) {
    counts.worst = request;
    counts.worst_gain = gain;
  }
}

void met(Warp* warp) {
  for (auto& [key, at_place] : *warp) {
    for (const XrayRequest& request : at_place.requests) add(key, request);
    at_place.requests.clear();
    at_place.next = {};
  }
}

std::string name_of(const Key& key) {
  constexpr const char* kKinds[] = {" load", " store", " atomic"};
  return std::string(key.space == XraySpace::shared ? "shared" : "global") +
         kKinds[static_cast<size_t>(key.kind)] + (key.array->empty() ? "" : " of " + *key.array);
}

/// In order of file, line and access.
using Line = std::tuple<std::string, int, std::string>;
struct Drawn {
  Counts counts;
  bool shared;
};
std::map<Line, Drawn> lines_of(const Kernel& counted) {
  std::vector<Place> places;
  for (const auto& [key, counts] : counted.counts) places.push_back(key.place);
  const std::vector<std::string> sources = kernel_lines_of(places);
  std::map<Line, Drawn> lines;
  size_t i = 0;
  for (const auto& [key, counts] : counted.counts) {
    const std::string& name = sources[i++];
    const size_t colon = name.rfind(':');
    if (colon == name.npos || name.starts_with("harness/")) continue;
    Drawn& line = lines[{name.substr(0, colon), std::atoi(name.c_str() + colon + 1), name_of(key)}];
    line.shared = key.space == XraySpace::shared;
    Counts& sum = line.counts;
    if (sum.requests == 0 || counts.worst_gain > sum.worst_gain) {
      sum.worst = counts.worst;
      sum.worst_gain = counts.worst_gain;
    }
    sum.requests += counts.requests;
    sum.cost += counts.cost;
    sum.least += counts.least;
    sum.used += counts.used;
  }
  return lines;
}

std::string grouped(uint64_t value) {
  std::string digits = std::to_string(value);
  for (size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, ",");
  return digits;
}

/// The line of the source without its indentation; empty if there is no such file here.
std::string text_of(const std::string& file, int number) {
  std::ifstream source(file.starts_with('/') ? file : project_folder() + file);
  if (!source) source.open(file);
  std::string line;
  for (int i = 0; i < number && std::getline(source, line); ++i) {
  }
  const size_t begin = line.find_first_not_of(' ');
  return begin == line.npos ? "" : line.substr(begin);
}

void print(const Kernel& counted) {
  const std::map<Line, Drawn> lines = lines_of(counted);
  if (lines.empty() && counted.not_counted.empty()) return;
  std::printf("\nxray of %s: %s block%s of %u threads\n", counted.name.c_str(),
              grouped(counted.blocks).c_str(), counted.blocks == 1 ? "" : "s", counted.threads);
  std::string file;
  int line = 0;
  for (const auto& [where, drawn] : lines) {
    const auto& [its_file, its_line, access] = where;
    const Counts& c = drawn.counts;
    if (file != its_file) std::printf("  %s\n", its_file.c_str());
    if (file != its_file || line != its_line)
      std::printf("  %4d  %s\n", its_line, text_of(its_file, its_line).c_str());
    file = its_file, line = its_line;
    const auto each = [&](uint64_t sum) {
      return static_cast<double>(sum) / static_cast<double>(c.requests);
    };
    std::printf("        %-24s %9s requests, ", access.c_str(), grouped(c.requests).c_str());
    if (drawn.shared) {
      std::printf("%.2f wavefronts each, %.2f at best: %s bank conflicts\n", each(c.cost),
                  each(c.least), grouped(c.cost - c.least).c_str());
    } else {
      std::printf("%.2f sectors each, %.2f at best: %.0f %% of %s bytes used\n", each(c.cost),
                  each(c.least),
                  100.0 * static_cast<double>(c.used) / static_cast<double>(c.cost * kSector),
                  grouped(c.cost * kSector).c_str());
    }
  }
  for (const std::string& what : counted.not_counted)
    std::printf("  Not counted: %s.\n", what.c_str());
}

/// The chosen line, or the one that has most to gain.
void draw() {
  const char* const path = std::getenv("CPU_DEVICE_XRAY_SVG");
  if (!path) return;
  const char* const wanted = std::getenv("CPU_DEVICE_XRAY_LINE");
  int number = wanted ? std::atoi(wanted) : 0;
  std::vector<XrayPanel> panels;
  uint64_t most = 0;
  for (const Kernel& counted : kernels) {
    for (const auto& [where, drawn] : lines_of(counted)) {
      const auto& [file, line, access] = where;
      const uint64_t gain = drawn.counts.cost - drawn.counts.least;
      if (wanted ? line != number : !panels.empty() && gain <= most) continue;
      if (!wanted) panels.clear();
      most = gain;
      Counts one;
      if (drawn.shared) {
        add_shared(drawn.counts.worst, access.starts_with("shared load"), &one);
      } else {
        add_global(drawn.counts.worst, &one);
      }
      panels.push_back({file + ":" + std::to_string(line), text_of(file, line),
                        access + ": " + std::to_string(one.cost) +
                            (drawn.shared ? " wavefront" : " sector") + (one.cost == 1 ? "" : "s"),
                        drawn.counts.worst, drawn.shared});
    }
  }
  if (panels.empty()) {
    std::fprintf(stderr, "xray: no access to memory was counted at line %d\n", number);
    std::_Exit(2);
  }
  if (!write_xray_svg(path, panels)) {
    std::fprintf(stderr, "xray: cannot write %s\n", path);
    std::_Exit(1);
  }
}

void report() {
  for (const Kernel& counted : kernels) print(counted);
  if (kernels.empty()) std::printf("\nxray: no kernel was launched\n");
  std::printf(
      "\nThese are the source's own accesses, compiled without nvcc's optimiser: there is no "
      "cache,\n"
      "and local arrays, constants and variables of the program are not counted.\n");
  std::fflush(stdout);
  draw();
}

}  // namespace

void xray_launch(const Launch& started) {
  kernel = nullptr;
  warps.clear();
  if (!options().xray) return;
  static const bool reports = std::getenv("CPU_DEVICE_XRAY") && std::atexit(report) == 0;
  static_cast<void>(reports);
  const std::string name = kernel_name(started.name, started.function);
  auto found = std::ranges::find(kernels, name, &Kernel::name);
  if (found == kernels.end()) {
    kernels.push_back({.name = name, .counts = {}, .not_counted = {}});
    found = std::prev(kernels.end());
  }
  kernel = &*found;
  ++kernel->launches;
  kernel->blocks += started.blocks;
  kernel->threads = started.threads;
}

void xray_block_begins(uint32_t rank) {
  if (!kernel) return;
  warps.erase(warps.lower_bound(rank * kLanes), warps.lower_bound((rank + 1) * kLanes));
}

void xray_access(const Access& access, XraySpace space, std::string_view array) {
  if (!kernel || access.wait != 0 || access.of_mbarrier) return;  // a copy was counted when issued
  const Apart apart;
  if (access.flight != Flight::none || access.wgmma != 0 || access.async_proxy) {
    kernel->not_counted.insert(access.wgmma != 0 || access.async_proxy
                                   ? "what wgmma and TMA read in shared memory"
                                   : "copies by TMA and st.async");
    return;
  }
  if (space == XraySpace::none) {
    kernel->not_counted.insert("accesses to the shared memory of other blocks");
    return;
  }
  auto name = names.find(array);
  if (name == names.end()) name = names.emplace(array).first;
  const uint32_t thread = current_block->current_thread(), lane = thread % kLanes;
  const uint32_t warp = current_block->rank() * kLanes + thread / kLanes;
  AtPlace& at_place = warps[warp][{access.place, access.kind, space, &*name}];
  for (size_t done = 0; done < access.bytes; done += kMostBytes) {
    const uint32_t number = at_place.next[lane]++;
    if (number == at_place.requests.size()) at_place.requests.emplace_back();
    XrayRequest& request = at_place.requests[number];
    request.lanes |= 1u << lane;
    request.address[lane] = access.address + done;
    request.source[lane] = access.source;
    request.bytes =
        std::max(request.bytes, static_cast<uint32_t>(std::min(kMostBytes, access.bytes - done)));
  }
}

void xray_warp_met(uint32_t warp) {
  if (!kernel) return;
  const Apart apart;
  const auto found = warps.find(current_block->rank() * kLanes + warp);
  if (found != warps.end()) met(&found->second);
}

void xray_block_met(uint32_t rank) {
  if (!kernel) return;
  const bool inside = current_block && current_block->in_kernel();
  if (inside) current_block->leaves_kernel();
  for (auto at = warps.lower_bound(rank * kLanes); at != warps.lower_bound((rank + 1) * kLanes);
       ++at) {
    met(&at->second);
  }
  if (inside) current_block->enters_kernel();
}

}  // namespace check

std::vector<XrayLine> take_xray() {
  std::vector<XrayLine> all;
  for (const check::Kernel& counted : check::kernels) {
    for (const auto& [where, drawn] : check::lines_of(counted)) {
      const auto& [file, line, access] = where;
      const check::Counts& c = drawn.counts;
      all.push_back({counted.name, file + ":" + std::to_string(line), access, c.requests, c.cost,
                     c.least, c.used});
    }
  }
  check::kernels.clear();
  check::kernel = nullptr;
  return all;
}

}  // namespace cpu_device
