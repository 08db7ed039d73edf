// The text of a finding.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "../block.hpp"
#include "../wgmma.hpp"
#include "finding.hpp"

namespace cpu_device::check {
namespace {

Finding last;

// 1234567 as "1,234,567".
std::string with_commas(size_t number) {
  std::string text = std::to_string(number);
  for (size_t i = text.size(); i > 3; i -= 3) text.insert(i - 3, ",");
  return text;
}

std::string counted(size_t number, const char* noun) {
  return with_commas(number) + " " + noun + (number == 1 ? "" : "s");
}

// "a[17]", "a_smem[3][5]"; outside of the array the first index is below 0 or too large.
std::string element(const Array& array, uintptr_t address) {
  const auto bytes = static_cast<intptr_t>(address - array.begin);
  const auto size = static_cast<intptr_t>(array.element_bytes);
  intptr_t index = bytes >= 0 ? bytes / size : (bytes - size + 1) / size;
  std::string text;
  for (size_t i = array.extents.size(); i-- > 0;) {
    const auto extent = static_cast<intptr_t>(array.extents[i]);
    const bool outermost = i == 0 || extent == 0;
    intptr_t here = outermost ? index : index % extent;
    if (here < 0 && !outermost) here += extent;
    text = "[" + std::to_string(here) + "]" + text;
    if (outermost) break;
    index = (index - here) / extent;
  }
  return array.name + text;
}

std::string address(const Finding& f) {
  char text[32];
  std::snprintf(text, sizeof text, "address 0x%zx", size_t{f.access.address});
  return text;
}

// " of block (1, 0, 0)", for the shared memory of another block.
std::string owner(const Finding& f, const Block& block) {
  return f.shared && f.owner != f.block ? " of block " + block.block_name(f.owner) : "";
}

}  // namespace

std::string element_name(const Finding& f, size_t index) {
  const size_t unit = std::max(f.array->element_bytes, f.access.bytes);
  return element(*f.array, f.array->begin + index * unit);
}

namespace {

std::string place(const Finding& f, const Block& block) {
  if (f.array) return element(*f.array, f.access.address) + owner(f, block);
  if (f.space_bytes == 0) return address(f);
  const auto offset = static_cast<intptr_t>(f.access.address - f.space_begin);
  return "byte " + std::to_string(offset) +
         (f.shared ? " of shared memory"
                   : " of an allocation of " + counted(f.space_bytes, "byte")) +
         owner(f, block);
}

// The line of an access. The place of the launch is reported anyway.
std::string line_of(const Block& block, Place where) {
  std::string place = source_of(where);
  const KernelName& kernel = block.launch().name;
  const std::string launched =
      std::string(", called at ") + kernel.file + ":" + std::to_string(kernel.line);
  if (place.ends_with(launched)) place.resize(place.size() - launched.size());
  return place;
}

std::string verb(const Access& access) {
  if (access.of_mbarrier) return "uses ";
  switch (access.kind) {
    case Kind::read: return "reads ";
    case Kind::write: return "writes ";
    case Kind::update: return "updates atomically ";
  }
  return {};
}

std::string beyond(const Finding& f) {
  const uintptr_t begin = f.array ? f.array->begin : f.space_begin;
  const size_t bytes = f.array ? f.array->bytes : f.space_bytes;
  const char* side = f.access.address < begin           ? ", before the start"
                     : f.access.address < begin + bytes ? ", in the padding after a row"
                                                        : ", past the end";
  if (!f.array) return side;
  const std::vector<size_t>& extents = f.array->extents;
  const std::string size = extents.empty()         ? counted(f.array->bytes, "byte")
                           : f.array->padding != 0 ? counted(extents[0], "row") + " of " +
                                                         with_commas(extents[1] - f.array->padding)
                                                   : counted(f.array->elements(), "element");
  return side + (" of " + f.array->name + " (" + size + ")");
}

// The name of the access, and the barrier that would have ordered it with an earlier one.
const char* noun(const Access& access) {
  if (access.of_mbarrier) return "the use";
  return access.kind == Kind::read ? "the read" : access.copies ? "the copy" : "the write";
}

// Which of two lines comes first in one file: below 0 for a, above 0 for b, 0 if that is unknown.
int order(Place a, Place b) {
  // "file:line, called at file:line, …": the outermost is in the kernel, and comes first here.
  const auto calls = [](const std::string& text) {
    constexpr std::string_view kCalled = ", called at ";
    std::vector<std::pair<std::string, int>> places;
    for (size_t begin = 0, end; begin < text.size(); begin = end + kCalled.size()) {
      end = std::min(text.find(kCalled, begin), text.size());
      const size_t colon = text.rfind(':', end);
      if (colon == text.npos || colon < begin) break;
      places.emplace_back(text.substr(begin, colon - begin), std::atoi(text.c_str() + colon + 1));
    }
    std::ranges::reverse(places);
    return places;
  };
  const auto one = calls(source_of(a)), other = calls(source_of(b));
  for (size_t i = 0; i < std::min(one.size(), other.size()); ++i) {
    if (one[i].first != other[i].first) return 0;
    if (one[i].second != other[i].second) return one[i].second - other[i].second;
  }
  return 0;
}

std::string between(const Finding& f) {
  const Stamp& earlier = f.earlier;
  const std::string later = noun(f.access);
  // The reader has not written in this turn yet.
  if (earlier.next_turn && !(f.earlier_was_write && f.around.later_in_turn) &&
      f.earlier_was_write != (f.access.kind != Kind::read)) {
    const bool copies = f.earlier_was_write ? earlier.copied : f.access.copies;
    return std::string("at the end of the loop's body, between the read and the next turn's ") +
           (copies ? "copy" : "write");
  }
  if (!f.earlier_was_write) {
    if (!f.earlier_was_first) {
      const bool is_after = order(earlier.place, f.access.place) < 0;
      return "between the read and " + later +
             (is_after ? "" : ", which may be a turn of a loop later");
    }
    return std::string(f.access.copies ? "between the wait for the copy" : "between the write") +
           " and the read, which came too early";
  }
  const std::string first = earlier.copied ? "the copy" : "the write";
  if (f.access.kind != Kind::read && !f.access.copies && !earlier.copied) {
    return "between the two writes";
  }
  if (earlier.copied && f.access.copies && f.access.kind == Kind::write) {
    return "between the wait for one copy and the other";
  }
  std::string text =
      "between " + (earlier.copied ? "the wait for the copy" : first) + " and " + later;
  // A thread that comes late in a loop may find what others have written for the next turn. Then
  // there was a value before.
  if (f.access.kind == Kind::read && earlier.again &&
      !(earlier.next_turn && f.around.later_in_turn)) {
    const std::string other = "between the read and " + first;
    text = order(f.access.place, earlier.place) < 0
               ? other + ", or " + text + " if that is a turn of a loop later"
               : text + ", or " + other + " if that is a turn of a loop later";
  }
  return text;
}

const char* by(Flight flight) {
  return flight == Flight::none ? "" : flight == Flight::st_async ? " by st.async" : " by TMA";
}

// The barrier, wait or fence that would have ordered the two accesses of a race.
std::string missing(const Finding& f) {
  const Stamp& earlier = f.earlier;
  Flight flight = earlier.is_in_flight() ? earlier.flight() : Flight::none;
  const bool is_first_read = flight == Flight::read_of_store && f.earlier_was_first;
  const bool has_no_order = earlier.block != f.block && !f.in_cluster;
  if (is_first_read || has_no_order) flight = Flight::none;
  if (flight == Flight::read_of_store || flight == Flight::write_of_store) {
    return std::string("missing: a ") +
           (flight == Flight::read_of_store ? "bulk_wait_read<0>()" : "bulk_wait<0>()") +
           (earlier.thread % kMaxThreads == f.thread && earlier.block == f.block
                ? ""
                : " in that thread, and a barrier after it,") +
           " between the store and " + noun(f.access);
  }
  const bool sends =
      f.access.flight == Flight::st_async || (f.access.flight == Flight::load && !has_no_order);
  if (flight != Flight::none || sends) {
    // Any barrier can order an access that is not in flight.
    const bool any = !earlier.is_in_flight() && !f.earlier_was_first;
    return std::string("missing: an mbarrier_wait() ") +
           (!any           ? ""
            : f.in_cluster ? "or a cluster_sync() "
                           : "or a __syncthreads() ") +
           between(f);
  }
  // A barrier would not decide whose value is to stay.
  const bool both_write = f.earlier_was_write && (f.access.kind != Kind::read || f.updates);
  if (f.updates) {
    return std::string(earlier.block != f.block ? "two blocks" : "both threads") +
           " update the same element, by a read and a write; missing: an atomic, such as atomicAdd";
  }
  if (earlier.block != f.block && both_write) {
    return std::string("two blocks write the same element; let one of them write it, or ") +
           (f.in_cluster ? "put a cluster_sync() between the two writes, if the second is to stay"
                         : "both update it by an atomic");
  }
  if (f.in_cluster) return "missing: a cluster_sync() " + between(f);
  if (earlier.block != f.block) {
    return std::string(
               "blocks of one launch have no order; missing: atomics for both, or a second launch, "
               "or an atomic that tells of the first, with a __threadfence() before it and after "
               "it") +
           (only_fences_of_blocks() ? "; a __threadfence_block() is for one block only" : "");
  }
  if (both_write && same_line(earlier.place, f.access.place)) {
    return "both threads write the same element; let one of them write it, or put a "
           "__syncthreads() between the two writes, if the second is a turn of a loop later";
  }
  if (earlier.atomic != f.access.atomic && !f.access.of_mbarrier) {
    return "one of the two is atomic or volatile, the other is not; missing: a __syncthreads() " +
           between(f);
  }
  if (earlier.thread / kLanes == f.thread / kLanes && f.access.wgmma == 0 &&
      !(earlier.next_turn && f.around.across_warps)) {
    return "both are in one warp, whose threads need not run in step; missing: a __syncwarp() or "
           "__syncthreads() " +
           between(f);
  }
  return "missing: a __syncthreads() " + between(f);
}

// "  written at 02_matmul/step3_shared_tile.cu:42".
std::string line_of(const char* what, const Block& block, Place place) {
  return std::string("  ") + what + " at " + line_of(block, place) + "\n";
}
std::string line_of(Kind kind, bool copies, const Block& block, Place place) {
  return line_of(kind == Kind::read ? "read" : copies ? "copied" : "written", block, place);
}
std::string line_of(const Access& access, const Block& block) {
  if (access.of_mbarrier) return line_of("used", block, access.place);
  return line_of(access.kind, access.copies, block, access.place);
}

std::string line_of(Site site) {
  return site.file ? std::string(site.file) + ":" + std::to_string(site.line) : "";
}

// A write to memory that a wgmma still reads.
std::string race_with_wgmma(const Finding& f, const Block& block) {
  const uint32_t first = f.earlier.thread % kMaxThreads;
  const bool own = f.thread - first < kWarpgroup;
  return ", which a wgmma of the warpgroup of thread " + block.thread_name(first) +
         " may not have read yet\n" + line_of("wgmma", block, f.earlier.place) +
         line_of(f.access, block) + "  missing: a wgmma_wait() " +
         (own ? std::string("between the two")
              : "of that warpgroup, and after it a barrier before " + std::string(noun(f.access)));
}

std::string registers_under_way(const Finding& f, const Block& block) {
  const Finding::Registers& r = f.registers;
  const std::string wait =
      "wgmma_wait<" + std::to_string(r.pending) + ">() at " + line_of(r.waited);
  std::string text =
      std::string(r.operand) + "[" + std::to_string(r.index) + "] of a wgmma " +
      (r.lack == Finding::Registers::name ? "whose sums are not there" : "that is under way") +
      "\n  wgmma at " + line_of(r.issued) + "\n" + line_of(f.access, block) + "  ";
  switch (r.lack) {
    case Finding::Registers::commit:
      return text + wait + " passes over it, because it was in no group; missing: a " +
             "wgmma_commit() between the two";
    case Finding::Registers::wait:
      return text + "missing: a " + (r.committed ? "" : "wgmma_commit() and a ") +
             "wgmma_wait<0>() before " + noun(f.access);
    case Finding::Registers::smaller_wait:
      return text + wait + " leaves it under way, as " +
             (r.pending == 1 ? "the latest group"
                             : "one of the latest " + counted(r.pending, "group")) +
             "; missing: a wgmma_wait<" + std::to_string(r.enough) + ">()";
    case Finding::Registers::name:
      return text + "no wait has named these sums, only others: the compiler may move " +
             noun(f.access) + " in front of it; missing: a wgmma_wait<0>() with them";
  }
  return text;
}

std::string no_fence(const Finding& f, const Block& block) {
  const Finding::Registers& r = f.registers;
  const std::string at = line_of("wgmma", block, f.access.place);
  if (r.touched_at != 0) {
    return "calls wgmma with sums that thread " + block.thread_name(r.touched_by) +
           " has touched after the last wgmma_fence()\n" + line_of("touched", block, r.touched_at) +
           at + "  missing: a wgmma_fence() between the two";
  }
  return "calls wgmma without a wgmma_fence() before it" +
         (r.waited.line == 0 ? std::string() : ", after the wait at " + line_of(r.waited)) + "\n" +
         at + "  missing: a wgmma_fence() before the first wgmma of a group";
}

std::string race(const Finding& f, const Block& block) {
  if (f.earlier.by_wgmma()) return race_with_wgmma(f, block);
  const Place wait = wait_of(f.earlier.place);
  std::string text = ", which ";
  if (f.earlier.block != f.block) {
    text += "block " + block.block_name(f.earlier.block) + "'s ";
  }
  text += "thread " + block.thread_name(f.earlier.thread % kMaxThreads) +
          (!f.earlier_was_write            ? " read"
           : f.earlier.copied && wait == 0 ? " is writing"
                                           : " wrote") +
          (f.earlier.copied           ? " by cp.async"
           : f.earlier.is_in_flight() ? by(f.earlier.flight())
                                      : "") +
          (f.earlier_was_first ? " before anything was written there: a race\n" : ": a race\n");
  text += line_of(f.earlier_was_write ? Kind::write : Kind::read, f.earlier.copied, block,
                  f.earlier.place);
  if (wait != 0) text += line_of("waited for", block, wait);
  text += line_of(f.access, block);
  bool certain = false;
  const bool both_write = f.updates || (f.earlier_was_write && f.access.kind == Kind::write &&
                                        same_line(f.earlier.place, f.access.place));
  if (both_write && f.array && !f.in_cluster && !f.earlier.is_in_flight() && !f.access.by_tma() &&
      !f.earlier.atomic && !f.access.atomic) {
    const std::string cause = cause_of_race(f, block, &certain);
    certain = certain && !cause.empty();
    if (!cause.empty()) text += "  " + cause + (certain ? "" : "\n");
  }
  if (!certain) text += "  " + missing(f);
  if (f.arrived_relaxed) {
    text += "; cluster_arrive_relaxed() tells only of the initialisation of mbarriers";
  }
  if (f.limit == Limit::shared) text += "; mbarrier_wait_cluster() tells only of shared memory";
  if (f.limit == Limit::own_shared) {
    text += "; cluster_arrive_shared() tells only of the shared memory of its own block";
  }
  return text;
}

// A read before the copy has landed, and what is missing for that copy.
std::string under_way(const Finding& f, const Block& block) {
  const Finding::Copy& copy = f.copy;
  if (copy.lack == Finding::Copy::mbarrier) {
    return std::string(", which a load of ") +
           (copy.issuing_block != f.block ? "block " + block.block_name(copy.issuing_block) + "'s "
                                          : "") +
           "thread " + block.thread_name(copy.thread) + " is still to write\n" +
           line_of("issued", block, copy.issued) + line_of(f.access, block) +
           "  missing: an mbarrier_wait() between the load and " + noun(f.access);
  }
  const std::string thread =
      (f.owner != f.block ? "block " + block.block_name(f.owner) + "'s " : "") + "thread " +
      block.thread_name(copy.thread);
  std::string text = ", which a cp.async of " + thread + " is still to write\n";
  text += line_of(Kind::write, true, block, copy.issued);
  text += line_of(f.access, block);
  const std::string wait = "cp_async_wait<" + std::to_string(copy.pending) + ">() at " +
                           (copy.waited != 0 ? line_of(block, copy.waited) : "");
  switch (copy.lack) {
    case Finding::Copy::commit:
      return text + "  " + wait + " passes over it, because it was in no group; missing: a " +
             "cp_async_commit() between the two";
    case Finding::Copy::wait:
      return text + "  " + thread + " has not waited for it; missing: a " +
             (copy.committed ? "" : "cp_async_commit() and a ") + "cp_async_wait " +
             (copy.thread == f.thread ? std::string("between the copy and ") + noun(f.access)
                                      : "in " + thread + ", before the barrier");
    case Finding::Copy::smaller_wait:
      return text + "  " + wait + " leaves it under way, as " +
             (copy.pending == 1 ? "the latest group"
                                : "one of the latest " + counted(copy.pending, "group")) +
             "; missing: a cp_async_wait<" + std::to_string(copy.enough) + ">()";
    case Finding::Copy::mbarrier:
    case Finding::Copy::barrier:
      return text +
             "  a thread waits for its own copies only; missing: a __syncthreads() between " +
             "the wait at " + line_of(block, copy.waited) + " and " + noun(f.access);
  }
  return text;
}

}  // namespace

void keep(const Finding& finding) { last = finding; }

void found(const Finding& finding) {
  keep(finding);
  current_block->fail(error_of_finding(), nullptr, Block::Blamed::block);
}

cudaError_t error_of_finding() {
  switch (last.what) {
    case Finding::outside:
    case Finding::host_memory:
    case Finding::nowhere:
    case Finding::not_begun:
    case Finding::ended: return cudaErrorIllegalAddress;
    case Finding::wrong_memory:
      return last.access.kind == Kind::read ? kFromWrongMemory : kToWrongMemory;
    case Finding::misaligned: return cudaErrorMisalignedAddress;
    case Finding::unwritten:
    case Finding::race:
    case Finding::unfenced:
    case Finding::registers_under_way:
    case Finding::no_fence:
    case Finding::no_fence_before_atomic:
    case Finding::under_way: break;
  }
  return cudaErrorLaunchFailure;
}

std::string describe_same_store(const Finding& f, const Block& block) {
  const auto name = [&](uint32_t thread, uint32_t of_block) {
    return "thread " + block.thread_name(thread) +
           (f.earlier.block != f.block ? " of block " + block.block_name(of_block) : "");
  };
  bool certain = false;
  const std::string cause = f.array ? cause_of_race(f, block, &certain) : std::string();
  return "several threads store the same value to " + place(f, block) + ", among them " +
         name(f.earlier.thread, f.earlier.block) + " and " + name(f.thread, f.block) + "\n" +
         line_of(f.access, block) +
         "  CUDA lets one of them win, so the result is the same whichever it is; if one thread is "
         "to write it, let only that one do so\n" +
         (cause.empty() ? "" : "  " + cause + "\n");
}

std::string name_of(uintptr_t address) {
  const Array* array = shared_array_at(address);
  return array ? element(*array, address) : "shared memory";
}

std::string describe_finding(const Block& block) {
  const Finding& f = last;
  const std::string what = "thread " + block.thread_name(f.thread) + " " + verb(f.access);
  const std::string by =
      f.access.copies ? " by cp.async"
      : f.access.wgmma != 0 || (f.access.async_proxy && f.access.flight == Flight::none)
          ? " by wgmma"
          : check::by(f.access.flight);
  const std::string at = std::string("\n  at ") + line_of(block, f.access.place);
  switch (f.what) {
    case Finding::outside: return what + place(f, block) + by + beyond(f) + at;
    case Finding::misaligned:
      return what + place(f, block) + by + " at an address that is no multiple of " +
             std::to_string(f.access.bytes) +
             (f.access.copies ? ", its size" : ", as its type asks") + at;
    case Finding::host_memory:
      return what + "memory of the host" + by + ", which a GPU cannot reach" + at;
    case Finding::nowhere: return what + address(f) + by + ", where there is no memory" + at;
    case Finding::unwritten:
      return what + place(f, block) + by + ", which nothing has written" + at;
    case Finding::race: return what + place(f, block) + by + race(f, block);
    case Finding::wrong_memory:
      return what + place(f, block) + by +
             (f.access.kind == Kind::read ? ", which reads global memory only"
              : f.shared                  ? ", which writes shared memory of its own block only"
                                          : ", which writes shared memory only") +
             at;
    case Finding::under_way: return what + place(f, block) + by + under_way(f, block);
    case Finding::unfenced:
      return what + place(f, block) + by + ", which thread " + block.thread_name(f.earlier.thread) +
             " wrote without a fence for that\n" +
             line_of(Kind::write, f.earlier.copied, block, f.earlier.place) +
             line_of(f.access, block) + "  missing: a fence_async_proxy() in thread " +
             block.thread_name(f.earlier.thread) + " between the write and the barrier after it";
    case Finding::registers_under_way: return what + registers_under_way(f, block);
    case Finding::no_fence_before_atomic:
      return what + place(f, block) + ", which block " + block.block_name(f.earlier.block) +
             "'s thread " + block.thread_name(f.earlier.thread) +
             " wrote: both are volatile, which does not put them in an order\n" +
             line_of(Kind::write, false, block, f.earlier.place) +
             line_of("told of by an atomic", block, f.told_by) + line_of(f.access, block) +
             "  missing: a __threadfence() between the write and the atomic, and one after the "
             "atomic of the reader";
    case Finding::no_fence:
      return "thread " + block.thread_name(f.thread) + " " + no_fence(f, block);
    case Finding::not_begun:
      return what + place(f, block) + by + ", which may not have begun" + at +
             "\n  missing: a cluster_sync() before " + noun(f.access);
    case Finding::ended:
      if (f.access.flight != Flight::none) {
        return what + place(f, block) + by + ", which may have ended" + at +
               "\n  missing: an mbarrier_wait() in block " + block.block_name(f.owner) +
               " before its end";
      }
      return what + place(f, block) + by + ", which may have ended" + at +
             "\n  missing: a cluster_sync() between " + noun(f.access) + " and the end of block " +
             block.block_name(f.owner);
  }
  return {};
}

}  // namespace cpu_device::check
