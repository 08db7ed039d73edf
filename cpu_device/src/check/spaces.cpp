// Which memory a thread may touch, what it is called, and what has been written there.
#include <link.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "../cluster.hpp"
#include "../kernel_name.hpp"
#include "../state.hpp"
#include "checker.hpp"
#include "finding.hpp"
#include "xray.hpp"

namespace cpu_device::check {
namespace {

constexpr size_t kWord = 4;  // bytes to a Word of races.cpp
// Unused addresses on either side of an allocation: an access there is taken to be out of the
// bounds of that allocation.
constexpr size_t kGuard = 1 << 20;

/// Zeroed memory that occupies pages only where it is used.
template <class T>
class LazyArray {
 public:
  LazyArray() = default;
  explicit LazyArray(size_t count) : count_(std::max<size_t>(count, 1)) {
    void* memory = mmap(nullptr, count_ * sizeof(T), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<T*>(memory);
  }
  LazyArray(LazyArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(other.count_) {}
  LazyArray& operator=(LazyArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~LazyArray() {
    if (data_) munmap(data_, count_ * sizeof(T));
  }
  T& operator[](size_t i) { return data_[i]; }

 private:
  T* data_ = nullptr;
  size_t count_ = 0;
};

/// Memory of one kind in one piece, with what is known about each of its words.
struct Space {
  uintptr_t begin = 0;
  size_t bytes = 0;
  LazyArray<uint8_t> written;  // for each word a bit for each of its bytes
  LazyArray<Word> words;
  std::list<Array> arrays;   // ascending; findings point to them
  Block* block = nullptr;    // whose shared memory it is
  uint32_t last_writer = 0;  // number of a launch
  bool of_program = false;   // variables of the program, which have values before it begins

  Space() = default;
  Space(uintptr_t address, size_t size)
      : begin(address), bytes(size), written(size / kWord + 1), words(size / kWord + 1) {}
  bool holds(uintptr_t address) const { return address - begin < bytes; }
};

/// The last access of a thread of another block to a block's shared memory.
struct Visit {
  Access access{};
  Stamp stamp{};  // bytes 0: nothing
};

/// The shared memory of a block of the running cluster.
struct Arena : Space {
  uint32_t tag = 0;              // changes with each block
  LazyArray<uint8_t> under_way;  // bytes that a cp.async will write
  size_t copies_under_way = 0;
  LazyArray<Visit> visits;  // by rank and thread
  bool any_visit = false;
  bool ended = false;  // the block

  Arena() = default;
  explicit Arena(uintptr_t address)
      : Space(address, kArenaBytes),
        under_way(kArenaBytes / kWord),
        visits(size_t{kLargestCluster} * kMaxThreads) {}
};

// The bits of the bytes of [first, end) that lie in the word.
uint8_t bytes_in_word(uintptr_t word, uintptr_t first, uintptr_t end) {
  const uintptr_t from = std::max(word, first) - word, to = std::min(word + kWord, end) - word;
  return static_cast<uint8_t>((1u << to) - (1u << from));
}

// Calls visit(index of the word, bits of its bytes) for all words of [address, address + bytes).
template <class Visit>
void for_each_word(const Space& space, uintptr_t address, size_t bytes, Visit visit) {
  const uintptr_t end = address + bytes;
  for (uintptr_t word = address / kWord * kWord; word < end; word += kWord) {
    visit((word - space.begin) / kWord, bytes_in_word(word, address, end));
  }
}

struct Segment {
  uintptr_t begin, end;
  bool holds(uintptr_t address) const { return address - begin < end - begin; }
};

// While a kernel runs, other host threads wait here with their calls. Recursive, so that a kernel
// that allocates memory does not wait for its own end.
std::recursive_mutex turn;
std::map<uintptr_t, Space> allocations;     // by address
Space* last_used = nullptr;                 // of them
std::array<Arena, kLargestCluster> arenas;  // of the running cluster, by rank
Arena* own = nullptr;                       // of the running block
uint32_t arena_tag = 0;
const Launch* launch = nullptr;
Segment host_stack;            // of the thread that launched
std::vector<Segment> program;  // segments of the program itself, which may be accessed
std::list<Space> variables;    // those of them that can be written, of the module with the kernels

Space* allocation_of(uintptr_t address) {
  if (last_used && last_used->holds(address)) return last_used;
  const auto next = allocations.upper_bound(address);
  if (next == allocations.begin()) return nullptr;
  Space& candidate = std::prev(next)->second;
  if (!candidate.holds(address)) return nullptr;
  return last_used = &candidate;
}

Arena* arena_of(uintptr_t address) {
  for (uint32_t rank = 0; rank < launch->cluster_blocks; ++rank) {
    if (arenas[rank].holds(address)) return &arenas[rank];
  }
  return nullptr;
}

// The allocation in whose guard the address lies.
const Space* allocation_near(uintptr_t address) {
  const auto next = allocations.upper_bound(address);
  if (next != allocations.begin()) {
    const Space& before = std::prev(next)->second;
    if (address - before.begin < before.bytes + kGuard) return &before;
  }
  if (next != allocations.end() && next->first - address <= kGuard) return &next->second;
  return nullptr;
}

bool is_mapped(uintptr_t address) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  unsigned char resident = 0;
  return mincore(reinterpret_cast<void*>(address / page * page), 1, &resident) == 0;
}

// Globals of the program, and its thread-local variables, such as threadIdx.
int add_segments(dl_phdr_info* module, size_t, void*) {
  for (int i = 0; i < module->dlpi_phnum; ++i) {
    const auto& header = module->dlpi_phdr[i];
    uintptr_t begin = 0;
    if (header.p_type == PT_LOAD) begin = module->dlpi_addr + header.p_vaddr;
    if (header.p_type == PT_TLS) begin = reinterpret_cast<uintptr_t>(module->dlpi_tls_data);
    if (begin) program.push_back({begin, begin + header.p_memsz});
  }
  return 0;
}

int add_variables(dl_phdr_info* module, size_t, void*) {
  const auto here = reinterpret_cast<uintptr_t>(&variables);
  std::list<Space> spaces;
  bool is_own = false;
  for (int i = 0; i < module->dlpi_phnum; ++i) {
    const auto& header = module->dlpi_phdr[i];
    if (header.p_type != PT_LOAD || (header.p_flags & PF_W) == 0) continue;
    const uintptr_t begin = (module->dlpi_addr + header.p_vaddr) / kWord * kWord;
    spaces.emplace_back(begin, module->dlpi_addr + header.p_vaddr + header.p_memsz - begin);
    spaces.back().of_program = true;
    is_own |= spaces.back().holds(here);
  }
  if (is_own) variables = std::move(spaces);
  return is_own;
}

Space* variables_at(uintptr_t address) {
  for (Space& space : variables) {
    if (space.holds(address)) return &space;
  }
  return nullptr;
}

// The variable at which the access begins, or null.
const Array* variable_of(const Access& access) {
  static std::list<Array> known;
  for (const Array& array : known) {
    if (array.holds(access.address, 1)) return &array;
  }
  const Variable found = variable_at(reinterpret_cast<const void*>(access.address));
  if (found.name.empty()) return nullptr;
  Array& array =
      known.emplace_back(Array{found.name, found.begin, found.bytes, access.bytes, {}, 0});
  array.element_bytes = std::min(access.bytes, found.bytes);
  if (array.element_bytes < found.bytes) array.extents = {found.bytes / array.element_bytes};
  return &array;
}

Segment stack_of_caller() {
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return {};
  void* lowest = nullptr;
  size_t bytes = 0;
  pthread_attr_getstack(&attributes, &lowest, &bytes);
  pthread_attr_destroy(&attributes);
  const auto begin = reinterpret_cast<uintptr_t>(lowest);
  return {begin, begin + bytes};
}

bool belongs_to_program(uintptr_t address) {
  for (const Segment& segment : program) {
    if (segment.holds(address)) return true;
  }
  return false;
}

void mark_written(Space& space, uintptr_t address, size_t bytes, bool written) {
  for_each_word(space, address, bytes, [&](size_t word, uint8_t bits) {
    uint8_t& known = space.written[word];
    known = static_cast<uint8_t>(written ? known | bits : known & ~bits);
  });
}

const Array* array_at(const Space& space, uintptr_t address, size_t bytes) {
  for (const Array& array : space.arrays) {
    if (array.holds(address, bytes)) return &array;
  }
  return nullptr;
}

// The array that an address outside of all arrays probably belongs to: the nearest.
const Array* array_near(const Space& space, uintptr_t address) {
  const Array* nearest = nullptr;
  uintptr_t least = ~uintptr_t{0};
  for (const Array& array : space.arrays) {
    const uintptr_t end = array.begin + array.bytes;
    const uintptr_t apart = address < array.begin ? array.begin - address
                            : address >= end      ? address - end
                                                  : 0;
    if (apart < least) {
      least = apart;
      nearest = &array;
    }
  }
  return nearest;
}

Finding finding_by(uint32_t block, uint32_t thread, Finding::What what, const Space& space,
                   const Access& access, const Array* array) {
  Finding finding;
  finding.what = what;
  finding.block = block;
  finding.thread = thread;
  finding.access = access;
  finding.array = !array && space.of_program ? variable_of(access) : array;
  finding.space_begin = space.begin;
  finding.space_bytes = space.bytes;
  finding.shared = space.block != nullptr;
  if (space.block) finding.owner = static_cast<uint32_t>(space.block->index());
  return finding;
}

Finding finding_at(Finding::What what, const Space& space, const Access& access,
                   const Array* array) {
  return finding_by(current_block_number(), current_thread(), what, space, access, array);
}

// A thread has read bytes that nothing had written. Perhaps another thread writes them later, and
// only a barrier is missing: so the block goes on until that is known. Until then nothing else is
// reported.
struct {
  bool exists = false;
  Finding finding;
} pending;

[[noreturn, gnu::cold, gnu::noinline]] void end_with(const Finding& finding) {
  found(pending.exists ? pending.finding : finding);
}

// Whether both are in the same declaration, in one block of a cluster or in two.
bool in_same_array(const Finding& a, const Finding& b) {
  if (!a.array || !b.array || a.shared != b.shared) return a.array == b.array;
  return a.array->begin - a.space_begin == b.array->begin - b.space_begin &&
         (a.shared || a.space_begin == b.space_begin);
}

[[gnu::cold, gnu::noinline]] void read_unwritten(const Space& space, const Access& access,
                                                 const Array* array) {
  if (pending.exists) return;
  pending = {true, finding_at(Finding::unwritten, space, access, array)};
}

bool is_bulk(const Access& access) { return access.by_tma() || access.async_proxy; }

bool has_stamp_of(const Stamp (&stamps)[Word::kWriters], uint32_t block, uint32_t thread) {
  return std::ranges::any_of(stamps, [&](const Stamp& stamp) {
    return stamp.bytes != 0 && stamp.block == block && stamp.thread == thread;
  });
}

// Whether the earlier thread of a race has read, or written, everything in global memory that the
// later one has read. Some of very many readers of a word are forgotten.
bool has_same_reads(const Finding& race) {
  bool any = false;
  for (auto& [begin, space] : allocations) {
    for (size_t i = 0; i <= space.bytes / kWord; ++i) {
      const Word& word = space.words[i];
      if (word.tag != launch->number) continue;
      if (!has_stamp_of(word.readers, race.block, race.thread)) continue;
      any = true;
      if (!has_stamp_of(word.readers, race.earlier.block, race.earlier.thread) &&
          !has_stamp_of(word.writers, race.earlier.block, race.earlier.thread)) {
        return false;
      }
    }
  }
  return any;
}

// Whether a warp of the block has read of the space's arrays what another has written.
bool crosses_warps(Space& space, uint32_t tag, uint32_t block) {
  bool crosses = false;
  const auto is_of_block = [&](const Stamp& s) { return s.bytes != 0 && s.block == block; };
  for (const Array& array : space.arrays) {
    for_each_word(space, array.begin, array.bytes, [&](size_t index, uint8_t) {
      const Word& word = space.words[index];
      if (word.tag != tag) return;
      for (const Stamp& writer : word.writers) {
        crosses |= is_of_block(writer) && std::ranges::any_of(word.readers, [&](const Stamp& s) {
                     return is_of_block(s) && s.thread / kLanes != writer.thread / kLanes;
                   });
      }
    });
  }
  return crosses;
}

// Collects what other accesses say about a race.
void look_around(Finding& race, Space& space, uint32_t tag) {
  Finding::Around& around = race.around;
  const Array& array = *race.array;
  const Stamp& earlier = race.earlier;
  const Place line = race.earlier_was_write ? earlier.place : race.access.place;
  const size_t unit = std::max(array.element_bytes, race.access.bytes);
  around.index = (race.access.address - array.begin) / unit;
  for_each_word(space, array.begin, array.bytes, [&](size_t index, uint8_t bits) {
    const Word& word = space.words[index];
    if (word.tag != tag) return;
    for (const Stamp& stamp : word.writers) {
      if (stamp.bytes == 0 || !same_line(stamp.place, line)) continue;
      const bool by_earlier = stamp.block == earlier.block && stamp.thread == earlier.thread;
      const bool by_later = stamp.block == race.block && stamp.thread == race.thread;
      around.others |= stamp.block == earlier.block && !by_earlier && !by_later;
      around.later_in_turn |= by_later && stamp.epoch == earlier.epoch;
      if (!by_earlier && !by_later) continue;
      for (size_t byte = 0; byte < kWord; ++byte) {
        const size_t offset = space.begin + index * kWord + byte - array.begin;
        if (((stamp.bytes & bits) >> byte & 1) == 0 || offset % unit != 0) continue;
        (by_earlier ? around.earlier : around.later).add(offset / unit);
      }
    }
  });
  around.same_reads = has_same_reads(race);
  around.across_warps = crosses_warps(space, tag, race.block);
}

// Whether the element of a third thread would help to explain the race.
bool asks_for_third(const Finding& race) {
  return race.array && race.array->elements() > 1 && race.earlier.block == race.block &&
         !race.around.others && race.around.earlier.count == 1;
}

// Whether others wait at a barrier that may never be complete, which then explains the race.
bool asks_for_barrier(const Finding& race) {
  return race.earlier.block == race.block && current_block->has_arrived() &&
         race.earlier_was_write == (race.access.kind == Kind::read);
}

Finding race_of(const Space& space, const Access& access, size_t word, uint8_t unwritten,
                const Array* array, const Stamp& earlier, bool earlier_was_write) {
  Finding finding = finding_at(Finding::race, space, access, array);
  finding.access.address = std::max(access.address, space.begin + word * kWord);
  if (is_bulk(access) && array) finding.access.bytes = array->element_bytes;
  finding.earlier = earlier;
  finding.in_cluster = earlier.block != finding.block && rank_of(earlier.block) != no_rank;
  finding.earlier_was_write = earlier_was_write;
  finding.earlier_was_first = !earlier_was_write && (earlier.bytes & unwritten) != 0;
  finding.arrived_relaxed = arrived_relaxed_after(earlier);
  finding.limit = limit_of_order(earlier);
  return finding;
}

bool both_store(const Finding& race) {
  return race.earlier_was_write && race.access.kind == Kind::write && !race.access.copies &&
         !is_bulk(race.access) && same_line(race.access.place, race.earlier.place);
}

[[gnu::cold, gnu::noinline]] void raced(Space& space, uint32_t tag, Finding finding) {
  const Access& access = finding.access;
  const Stamp& earlier = finding.earlier;
  if (finding.array && !finding.in_cluster) look_around(finding, space, tag);
  // In the same array, this finding explains the read that was held back.
  if (in_same_array(pending.finding, finding)) pending.exists = false;
  const bool both_write = both_store(finding);
  const bool may_update = access.kind == Kind::read && earlier.updates;
  const bool more_to_come =
      both_write ? asks_for_third(finding) : may_update || asks_for_barrier(finding);
  finding.until_barrier = !both_write && !may_update;
  const bool by_tma =
      is_bulk(access) || (earlier.is_in_flight() && earlier.flight() != Flight::st_async);
  if (!pending.exists && more_to_come && !by_tma && cluster_size() == 1) {
    pending = {true, finding};
    return;
  }
  end_with(finding);
}

// A plain read before a loop of atomicCAS, which corrects what it has read: races that this
// explains if the thread comes to such an atomic before the next barrier.
struct Doubt {
  uint32_t block, thread;  // the reader
  uintptr_t address;
  Finding finding;
};
std::vector<Doubt> doubts;

bool may_precede_cas(const Finding& race) {
  const bool reads = race.access.kind == Kind::read;
  return reads ? race.earlier.compares && !race.access.atomic && !is_bulk(race.access) &&
                     !race.access.copies
               : race.access.compares && !race.earlier_was_write && !race.earlier.atomic &&
                     !race.earlier.is_in_flight() && rank_of(race.earlier.block) != no_rank;
}

[[gnu::cold, gnu::noinline]] void doubt(const Finding& race) {
  const bool reads = race.access.kind == Kind::read;
  const Doubt next{reads ? race.block : race.earlier.block,
                   reads ? race.thread : race.earlier.thread, race.access.address, race};
  const auto is_same = [&](const Doubt& other) {
    return other.block == next.block && other.thread == next.thread &&
           other.address / kWord == next.address / kWord;
  };
  if (std::ranges::none_of(doubts, is_same)) doubts.push_back(next);
}

[[gnu::cold, gnu::noinline]] void settle_doubts(const Access& access) {
  std::erase_if(doubts, [&](const Doubt& d) {
    return d.block == current_block_number() && d.thread == current_thread() &&
           d.address - access.address < access.bytes;
  });
}

// A store to an element that another thread has stored to at the same line, of what may be the same
// value. That is known when the kernel calls the next time.
struct {
  bool exists = false;
  Finding finding;
  uintptr_t address = 0;
  size_t bytes = 0;
  unsigned char before[16];
} store;
std::vector<Finding> same_stores;  // of this launch, one a line

bool may_store_the_same(const Finding& race) {
  return options().same_stores && both_store(race) && !race.access.atomic && !race.earlier.atomic &&
         race.access.bytes <= sizeof store.before;
}

bool is_in_same_stores(Place place) {
  return std::ranges::any_of(
      same_stores, [place](const Finding& f) { return same_line(f.access.place, place); });
}

[[gnu::cold, gnu::noinline]] void wait_for_store(Space& space, uint32_t tag, const Access& access,
                                                 Finding race) {
  if (store.exists) return;  // the second word of one access
  if (race.array && !race.in_cluster && !is_in_same_stores(access.place))
    look_around(race, space, tag);
  store.exists = true;
  store.finding = race;
  store.address = access.address;
  store.bytes = access.bytes;
  std::memcpy(store.before, reinterpret_cast<const void*>(access.address), access.bytes);
}

bool has_stored_the_same() {
  const auto* now = reinterpret_cast<const void*>(store.address);
  return std::memcmp(store.before, now, store.bytes) == 0;
}

[[gnu::cold, gnu::noinline]] void look_at_store() {
  store.exists = false;
  if (!has_stored_the_same()) end_with(store.finding);
  constexpr size_t kMost = 8;
  if (same_stores.size() < kMost && !is_in_same_stores(store.finding.access.place)) {
    same_stores.push_back(store.finding);
  }
}

// After a race the block goes on until it is known whether a thread that has read what another has
// updated updates it too, whether a third thread comes to the same element, or whether a barrier
// will be complete at which others wait.
[[gnu::cold, gnu::noinline]] void follow_race(const Access& access) {
  Finding& race = pending.finding;
  if (access.kind == Kind::read || race.until_barrier) return;
  const uint32_t me = current_thread();
  const bool is_there = same_line(access.place, race.earlier.place);
  const bool is_same = access.address == race.access.address;
  const bool both_write = race.updates || race.access.kind != Kind::read;
  if (!both_write) {
    race.updates = me == race.thread && is_there && is_same;
    race.until_barrier = !race.updates;
    if (race.updates ? asks_for_third(race) : asks_for_barrier(race)) return;
  } else {
    if (!is_there || me == race.thread || me == race.earlier.thread) return;
    if (is_same) race.around.third = me;
  }
  end_with(race);
}

// An access to bytes that a copy will write. Every thread knows of the issue, or there would be a
// race.
[[noreturn, gnu::cold, gnu::noinline]] void touched_too_early(const Arena& arena,
                                                              const Access& access, size_t word,
                                                              uint8_t bytes, const Array* array) {
  Finding finding = finding_at(Finding::under_way, arena, access, array);
  const uint32_t me = finding.thread;
  const size_t offset = word * kWord + static_cast<size_t>(std::countr_zero(bytes));
  finding.access.address = arena.begin + offset;
  Finding::Copy& f = finding.copy;
  for (uint32_t t = 0; t < launch->threads; ++t) {
    const AsyncCopies& copies = arena.block->copies_of(t);
    for (const AsyncCopy& copy : copies.under_way) {
      if (offset - copy.to >= copy.bytes) continue;
      f.thread = t;
      f.issued = copy.place;
      const AsyncCopies::Wait& wait = copies.last_wait;
      f.waited = wait.place;
      f.committed = copy.group < copies.groups;
      f.lack = !copy.passed_over          ? Finding::Copy::wait
               : wait.groups > copy.group ? Finding::Copy::smaller_wait
                                          : Finding::Copy::commit;
      f.pending = wait.pending;
      f.enough = wait.groups - 1 - copy.group;
    }
  }
  for (const PendingLoad& load : arena.block->bulk().loads) {
    if (offset - load.to >= load.from.footprint()) continue;
    f.thread = load.issuing_thread;
    f.issuing_block = static_cast<uint32_t>(load.issuing_block);
    f.issued = load.place;
    f.lack = Finding::Copy::mbarrier;
    end_with(finding);
  }
  // A thread that has just waited takes it that all threads have.
  const AsyncCopies::Wait& waited = current_block->copies_of(me).last_wait;
  const Moment now = current_moment();
  if (arena.block == current_block && f.thread != me && waited.place != 0 &&
      waited.epoch == now.epoch && (f.thread / kLanes != me / kLanes || waited.tick == now.tick)) {
    f.lack = Finding::Copy::barrier;
    f.waited = waited.place;
  }
  end_with(finding);
}

[[noreturn, gnu::cold, gnu::noinline]] void not_fenced(const Space& space, const Access& access,
                                                       size_t word, const Array* array,
                                                       const Stamp& writer) {
  Finding finding = finding_at(Finding::unfenced, space, access, array);
  finding.access.address = std::max(access.address, space.begin + word * kWord);
  finding.earlier = writer;
  end_with(finding);
}

Space* space_of(uintptr_t address) {
  Space* space = arena_of(address);
  return space ? space : allocation_of(address);
}

[[noreturn, gnu::cold, gnu::noinline]] void in_wrong_memory(const Access& access) {
  if (const Space* space = space_of(access.address)) {
    const Array* array = array_at(*space, access.address, 1);
    end_with(finding_at(Finding::wrong_memory, *space, access, array));
  }
  end_with({.what = Finding::wrong_memory,
            .block = current_block_number(),
            .thread = current_thread(),
            .access = access});
}

[[noreturn, gnu::cold, gnu::noinline]] void strayed(const Space& space, Access access) {
  const Array* array = array_near(space, access.address);
  // Of an access that begins in an array, the first byte after it counts.
  const uintptr_t end = array ? array->begin + array->bytes : space.begin + space.bytes;
  if (access.address < end && access.address + access.bytes > end) access.address = end;
  end_with(finding_at(Finding::outside, space, access, array));
}

// `arena` is the space, or null.
void look_at_space(Space& space, Arena* arena, uint32_t tag, const Access& access) {
  const Array* array = array_at(space, access.address, access.bytes);
  if (!array && (arena || !space.arrays.empty() ||
                 access.address + access.bytes > space.begin + space.bytes)) {
    strayed(space, access);
  }
  if (!space.of_program) {
    const auto kind = !arena         ? XraySpace::global
                      : arena == own ? XraySpace::shared
                                     : XraySpace::none;
    xray_access(access, kind, array ? std::string_view(array->name) : "");
  }
  const bool is_issue = access.copies && access.wait == 0;
  for_each_word(space, access.address, access.bytes, [&](size_t word, uint8_t bits) {
    bool earlier_was_write = false;
    uint8_t& written = space.written[word];
    const bool again = access.kind != Kind::read && (written & bits) != 0;
    const uintptr_t location = space.begin + word * kWord;
    while (const Stamp* earlier = conflict(space.words[word], location, tag, bits, access, again,
                                           &earlier_was_write)) {
      const Finding race = race_of(space, access, word, static_cast<uint8_t>(bits & ~written),
                                   array, *earlier, earlier_was_write);
      if (may_precede_cas(race)) {
        doubt(race);
        if (access.kind == Kind::read) return;
      } else if (may_store_the_same(race)) {
        wait_for_store(space, tag, access, race);
      } else {
        return raced(space, tag, race);
      }
      forget(space.words[word], *earlier, bits);
    }
    if (access.is_volatile && access.kind == Kind::read && !arena) {
      Place atomic = 0;
      if (const Stamp* writer = told_without_fence(space.words[word], location, bits, &atomic)) {
        Finding finding = finding_at(Finding::no_fence_before_atomic, space, access, array);
        finding.earlier = *writer;
        finding.told_by = atomic;
        end_with(finding);
      }
    }
    if (arena && arena->copies_under_way != 0 && (arena->under_way[word] & bits) != 0) {
      touched_too_early(*arena, access, word, arena->under_way[word] & bits, array);
    }
    if (access.kind != Kind::write && !access.of_mbarrier && (bits & ~written) != 0 &&
        !space.of_program) {
      read_unwritten(space, access, array);
    }
    if (access.async_proxy && arena) {
      if (const Stamp* writer = unfenced_writer(space.words[word], access.address, bits)) {
        not_fenced(space, access, word, array, *writer);
      }
    }
    if (access.kind != Kind::read && !is_issue) written |= bits;
  });
  if (access.kind != Kind::read) space.last_writer = launch->number;
  if (!access.atomic || access.of_mbarrier || access.flight != Flight::none) return;
  if (access.is_volatile && access.kind == Kind::write && !arena) stored_to_volatile();
  if (access.compares && !doubts.empty()) settle_doubts(access);
  synchronise_through(access);
}

// The shared memory of another block exists from its begin to its end: the thread must know that
// the block has begun, and the block must know of the access before it ends.
void look_at_other_block(Arena& arena, const Access& access) {
  const Array* array = array_at(arena, access.address, access.bytes);
  if (!knows_of_begin(arena.block->rank())) {
    end_with(finding_at(Finding::not_begun, arena, access, array));
  }
  if (arena.ended) end_with(finding_at(Finding::ended, arena, access, array));
  look_at_space(arena, &arena, arena.tag, access);
  // The copy whose bytes it counts has been recorded.
  if (access.of_mbarrier && !access.arrives) return;
  arena.any_visit = true;
  arena.visits[current_block->rank() * kMaxThreads + current_thread()] = {access,
                                                                          current_stamp(access)};
}

}  // namespace

void* allocate(size_t bytes) {
  void* guarded = mmap(nullptr, bytes + 2 * kGuard, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (guarded == MAP_FAILED) return nullptr;
  char* memory = static_cast<char*>(guarded) + kGuard;
  if (mprotect(memory, bytes, PROT_READ | PROT_WRITE) != 0) {
    munmap(guarded, bytes + 2 * kGuard);
    return nullptr;
  }
  const std::lock_guard lock(turn);
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  allocations.insert_or_assign(begin, Space(begin, bytes));
  return memory;
}

void release(void* memory) {
  const std::lock_guard lock(turn);
  last_used = nullptr;
  const auto space = allocations.find(reinterpret_cast<uintptr_t>(memory));
  munmap(static_cast<char*>(memory) - kGuard, space->second.bytes + 2 * kGuard);
  allocations.erase(space);
}

void written_by_host(const void* memory, size_t bytes, const void* from) {
  const std::lock_guard lock(turn);
  const auto address = reinterpret_cast<uintptr_t>(memory);
  Space* space = allocation_of(address);
  if (!space || bytes == 0) return;
  const auto source_address = reinterpret_cast<uintptr_t>(from);
  Space* source = from ? allocation_of(source_address) : nullptr;
  if (!source) return mark_written(*space, address, bytes, true);
  for (size_t i = 0; i < bytes; ++i) {
    const uintptr_t at = source_address + i - source->begin;
    const bool written = source->written[at / kWord] >> at % kWord & 1;
    mark_written(*space, address + i, 1, written);
  }
}

bool is_written_by_kernel(uintptr_t memory) {
  const std::lock_guard lock(turn);
  return allocations.at(memory).last_writer == launch->number;
}

void name_array_in_check_build(const NamedArray& named) {
  const std::lock_guard lock(turn);
  const auto begin = reinterpret_cast<uintptr_t>(named.data);
  Space* space = allocation_of(begin);
  if (!space) return;
  Array array{named.name, begin, 0, named.element_bytes, {}, 0};
  if (named.rows > 1) {
    array.extents = {static_cast<size_t>(named.rows), static_cast<size_t>(named.ld)};
    array.padding = static_cast<size_t>(named.ld - named.cols);
  } else {
    array.extents = {static_cast<size_t>(named.rows * named.cols)};
  }
  array.bytes = array.elements() * array.element_bytes;
  const auto place = std::ranges::lower_bound(space->arrays, begin, {}, &Array::begin);
  if (place != space->arrays.end() && place->begin == begin) {
    *place = array;
  } else {
    space->arrays.insert(place, array);
  }
  if (!named.written) mark_written(*space, begin, array.bytes, false);
}

void launch_begins(const Launch& next) {
  turn.lock();
  launch = &next;
  for (Arena& arena : arenas) arena.arrays.clear();
  launch_begins_for_races();
  xray_launch(next);
  program.clear();  // thread-local variables are the launching thread's
  dl_iterate_phdr(add_segments, nullptr);
  if (variables.empty()) dl_iterate_phdr(add_variables, nullptr);
  // glibc reads all of /proc/self/maps for it, where each thread's stack has two lines.
  static thread_local const Segment stack = stack_of_caller();
  host_stack = stack;
}

void launch_ends() {
  same_stores.clear();
  turn.unlock();
}

void block_begins(Block& block) {
  const uint32_t rank = block.rank();
  const auto begin = reinterpret_cast<uintptr_t>(block.arena());
  Arena& arena = arenas[rank];
  if (arena.begin != begin) arena = Arena(begin);
  arena.block = &block;
  arena.tag = ++arena_tag;
  arena.ended = false;
  if (rank == 0) cluster_begins_for_races();
  xray_block_begins(rank);
  block_begins_for_races(rank, block.index(), launch->threads);
}

void block_runs(uint32_t rank) {
  own = &arenas[rank];
  block_runs_for_races(rank);
}

uint32_t block_ends(uint32_t rank) {
  Arena& arena = arenas[rank];
  arena.ended = true;
  xray_block_met(rank);
  if (!arena.any_visit || pending.exists) return no_rank;
  for (uint32_t other = 0; other < cluster_size(); ++other) {
    for (uint32_t t = 0; t < launch->threads; ++t) {
      const Visit& visit = arena.visits[other * kMaxThreads + t];
      if (visit.stamp.bytes == 0 || is_known_to_block(rank, visit.stamp)) continue;
      const Access& access = visit.access;
      keep(finding_by(visit.stamp.block, visit.stamp.thread % kMaxThreads, Finding::ended, arena,
                      access, array_at(arena, access.address, access.bytes)));
      return other;
    }
  }
  return no_rank;
}

uint32_t cluster_ends(bool threads_missed) {
  for (uint32_t rank = 0; rank < cluster_size(); ++rank) {
    Arena& arena = arenas[rank];
    for (const Array& array : arena.arrays) mark_written(arena, array.begin, array.bytes, false);
    if (arena.copies_under_way != 0) std::memset(&arena.under_way[0], 0, kArenaBytes / kWord);
    arena.copies_under_way = 0;
    if (!arena.any_visit) continue;
    for (uint32_t other = 0; other < cluster_size(); ++other) {
      for (uint32_t t = 0; t < launch->threads; ++t) {
        arena.visits[other * kMaxThreads + t].stamp = {};
      }
    }
    arena.any_visit = false;
  }
  if (store.exists && !has_stored_the_same() && !pending.exists) pending = {true, store.finding};
  store.exists = false;
  const bool all_ended = std::ranges::all_of(std::span(arenas).first(cluster_size()),
                                             [](const Arena& arena) { return arena.ended; });
  if (all_ended && !pending.exists && !doubts.empty()) pending = {true, doubts.front().finding};
  doubts.clear();
  if (threads_missed && pending.finding.what == Finding::race) pending.exists = false;
  if (!pending.exists) return no_rank;
  keep(pending.finding);
  pending.exists = false;
  return rank_of(pending.finding.block);
}

uint32_t cluster_size() { return launch->cluster_blocks; }

uint32_t rank_at(uintptr_t address) {
  const Arena* arena = arena_of(address);
  return arena ? arena->block->rank() : no_rank;
}

uint32_t rank_of(uint64_t block) {
  for (uint32_t rank = 0; rank < cluster_size(); ++rank) {
    if (arenas[rank].block->index() == block) return rank;
  }
  return no_rank;
}

const Array* shared_array_at(uintptr_t address) {
  const Arena* arena = arena_of(address);
  return arena ? array_at(*arena, address, 1) : nullptr;
}

void settle() {
  if (store.exists) look_at_store();
  if (!pending.exists && !doubts.empty()) pending = {true, doubts.front().finding};
  if (pending.exists) end_with(pending.finding);
}

void kernel_calls() {
  if (store.exists) look_at_store();
}

std::string describe_same_stores() {
  std::string text;
  for (const Finding& finding : same_stores) {
    text += describe_same_store(finding, *arenas[0].block);
  }
  return text;
}

// All blocks of a cluster have their declarations at the same offsets.
void name_shared_in_check_build(const void* data, const SharedArray& shared) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  const auto place = std::ranges::lower_bound(own->arrays, address, {}, &Array::begin);
  if (place != own->arrays.end() && place->begin == address) return;
  current_block->leaves_kernel();
  Array array{shared.name, address, 0, shared.shape.element_bytes, {}, 0};
  array.extents.assign(shared.shape.extents, shared.shape.extents + shared.shape.rank);
  if (shared.is_dynamic) {
    const size_t bytes = launch->config.shared_bytes;
    array.extents = {(bytes + array.element_bytes - 1) / array.element_bytes};
  }
  array.bytes = array.elements() * array.element_bytes;
  for (uint32_t rank = 0; array.bytes > 0 && rank < cluster_size(); ++rank) {
    std::list<Array>& arrays = arenas[rank].arrays;
    array.begin = arenas[rank].begin + (address - own->begin);
    arrays.insert(std::ranges::lower_bound(arrays, array.begin, {}, &Array::begin), array);
  }
  current_block->enters_kernel();
}

void look_at(const Access& access) {
  Block* block = current_block;
  if (!block || !block->in_kernel()) return;
  if (store.exists) look_at_store();
  if (pending.exists && pending.finding.what == Finding::race) return follow_race(access);
  const uintptr_t address = access.address;
  if (own->holds(address)) return look_at_space(*own, own, own->tag, access);
  if (block->owns_stack(reinterpret_cast<const void*>(address))) return look_at_registers(access);
  if (Space* space = allocation_of(address)) {
    return look_at_space(*space, nullptr, launch->number, access);
  }
  if (Arena* other = arena_of(address)) return look_at_other_block(*other, access);
  if (launch->holds_argument(reinterpret_cast<const void*>(address))) return;
  // A launch through a pointer reads the pointer where the host has it.
  if (access.kind == Kind::read && access.bytes == sizeof(void*) && host_stack.holds(address))
    return;
  if (Space* space = variables_at(address)) {
    return look_at_space(*space, nullptr, launch->number, access);
  }
  if (belongs_to_program(address)) return;
  if (const Space* near = allocation_near(address)) strayed(*near, access);
  end_with({.what = is_mapped(address) ? Finding::host_memory : Finding::nowhere,
            .block = current_block_number(),
            .thread = current_thread(),
            .access = access});
}

void look_at_copy(const void* shared, AsyncCopy& copy, Place place) {
  copy.place = place;
  Access write{reinterpret_cast<uintptr_t>(shared), copy.bytes, Kind::write, false, place, true};
  Access read{reinterpret_cast<uintptr_t>(copy.from), copy.bytes, Kind::read, false, place, true};
  const bool reads = copy.source_bytes > 0;
  if (!own->holds(write.address)) in_wrong_memory(write);
  if (reads && (arena_of(read.address) || current_block->owns_stack(copy.from))) {
    in_wrong_memory(read);
  }
  if (write.address % copy.bytes != 0) look_at_misaligned(write);
  if (read.address % copy.bytes != 0) look_at_misaligned(read);
  read.bytes = copy.source_bytes;
  if (reads) {
    write.source = read.address;
    look_at(read);
  }
  look_at(write);
  for_each_word(*own, write.address, write.bytes,
                [](size_t word, uint8_t bits) { own->under_way[word] |= bits; });
  ++own->copies_under_way;
}

void copy_lands(const AsyncCopy& copy) {
  const Access write{own->begin + copy.to,
                     copy.bytes,
                     Kind::write,
                     false,
                     copy.place,
                     true,
                     current_block->copies_of(current_thread()).last_wait.place};
  for_each_word(*own, write.address, write.bytes, [](size_t word, uint8_t bits) {
    own->under_way[word] &= static_cast<uint8_t>(~bits);
  });
  --own->copies_under_way;
  look_at(write);
}

void load_begins(uint32_t rank, const void* shared, size_t bytes) {
  Arena& arena = arenas[rank];
  for_each_word(arena, reinterpret_cast<uintptr_t>(shared), bytes,
                [&](size_t word, uint8_t bits) { arena.under_way[word] |= bits; });
  ++arena.copies_under_way;
}

void load_lands(size_t offset, size_t bytes) {
  for_each_word(*own, own->begin + offset, bytes, [](size_t word, uint8_t bits) {
    own->under_way[word] &= static_cast<uint8_t>(~bits);
  });
  --own->copies_under_way;
}

void look_at_misaligned(const Access& access) {
  Space* space = space_of(access.address);
  if (!space) return;  // of no array; the access itself comes next
  end_with(finding_at(Finding::misaligned, *space, access, array_at(*space, access.address, 1)));
}

}  // namespace cpu_device::check
