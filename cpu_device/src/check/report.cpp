// What a finding says.
#include <cstdio>
#include <string>

#include "../block.hpp"
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

std::string place(const Finding& f) {
  if (f.array) return element(*f.array, f.access.address);
  const auto offset = static_cast<intptr_t>(f.access.address - f.space_begin);
  return "byte " + std::to_string(offset) +
         (f.shared ? " of shared memory"
                   : " of an allocation of " + counted(f.space_bytes, "byte"));
}

// The line of an access. That a kernel was called where it was launched is told anyway.
std::string place_of(const Block& block, uintptr_t pc) {
  std::string place = source_of(pc);
  const KernelName& kernel = block.launch().name;
  const std::string launched =
      std::string(", called at ") + kernel.file + ":" + std::to_string(kernel.line);
  if (place.ends_with(launched)) place.resize(place.size() - launched.size());
  return place;
}

std::string address(const Finding& f) {
  char text[32];
  std::snprintf(text, sizeof text, "address 0x%zx", size_t{f.access.address});
  return text;
}

std::string verb(const Access& access) {
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
                     : f.access.address < begin + bytes ? ", in the padding behind a row"
                                                        : ", past the end";
  if (!f.array) return side;
  const std::vector<size_t>& extents = f.array->extents;
  const std::string size = extents.empty()         ? counted(f.array->bytes, "byte")
                           : f.array->padding != 0 ? counted(extents[0], "row") + " of " +
                                                         with_commas(extents[1] - f.array->padding)
                                                   : counted(f.array->elements(), "element");
  return side + (" of " + f.array->name + " (" + size + ")");
}

// What would have ordered the two accesses of a race.
std::string missing(const Finding& f) {
  const Stamp& earlier = f.earlier;
  if (earlier.block != current_block_number()) {
    return "blocks of one launch have no order; missing: an atomic, with a __threadfence() before "
           "it if "
           "it tells of other memory, or a second launch";
  }
  const std::string between =
      f.earlier_was_first    ? "between the write and the read, which came too early"
      : !f.earlier_was_write ? "between the read and the write, which may be a turn of a loop later"
      : f.access.kind == Kind::read ? "between the write and the read"
                                    : "between the two writes";
  if (earlier.atomic != f.access.atomic) {
    return "one of the two is atomic or volatile, the other is not; missing: a __syncthreads() " +
           between;
  }
  if (earlier.thread / kLanes == f.thread / kLanes) {
    return "both are in one warp, whose threads need not run in step; missing: a __syncwarp() or "
           "__syncthreads() " +
           between;
  }
  return "missing: a __syncthreads() " + between;
}

std::string race(const Finding& f, const Block& block) {
  std::string text = ", which ";
  if (f.earlier.block != current_block_number()) {
    text += "block " + block.block_name(f.earlier.block) + "'s ";
  }
  text += "thread " + block.thread_name(f.earlier.thread) +
          (f.earlier_was_write   ? " wrote"
           : f.earlier_was_first ? " read before anything was written there"
                                 : " read") +
          ": a race\n";
  text += std::string("  ") + (f.earlier_was_write ? "written" : "read") + " at " +
          place_of(block, from_place(f.earlier.place)) + "\n  " +
          (f.access.kind == Kind::read ? "read" : "written") + " at " +
          place_of(block, f.access.pc) + "\n  ";
  return text + missing(f);
}

}  // namespace

void keep(const Finding& finding) { last = finding; }

void found(const Finding& finding) {
  keep(finding);
  current_block->fail(error_of_finding(), nullptr, Block::Who::block);
}

cudaError_t error_of_finding() {
  switch (last.what) {
    case Finding::outside:
    case Finding::host_memory:
    case Finding::nowhere: return cudaErrorIllegalAddress;
    case Finding::misaligned: return cudaErrorMisalignedAddress;
    case Finding::unwritten:
    case Finding::race: break;
  }
  return cudaErrorLaunchFailure;
}

std::string describe_finding(const Block& block) {
  const Finding& f = last;
  const std::string what = "thread " + block.thread_name(f.thread) + " " + verb(f.access);
  const std::string at = std::string("\n  at ") + place_of(block, f.access.pc);
  switch (f.what) {
    case Finding::outside: return what + place(f) + beyond(f) + at;
    case Finding::misaligned:
      return what + place(f) + " at an address that is no multiple of " +
             std::to_string(f.access.bytes) + ", as its type asks" + at;
    case Finding::host_memory: return what + "memory of the host, which a GPU cannot reach" + at;
    case Finding::nowhere: return what + address(f) + ", where there is no memory" + at;
    case Finding::unwritten: return what + place(f) + ", which nothing has written" + at;
    case Finding::race: return what + place(f) + race(f, block);
  }
  return {};
}

}  // namespace cpu_device::check
