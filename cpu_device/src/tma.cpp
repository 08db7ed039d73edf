// What TMA copies, when (cpu_device/tma.h has that), and what can be wrong with it.
#include "cpu_device/tma.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "check/checker.hpp"
#include "cluster.hpp"
#include "cpu_device/async_proxy.h"
#include "cpu_device/small_float.h"
#include "instruction.hpp"

namespace cpu_device {
namespace {

constexpr uint32_t kChunk = 16;         // bytes
constexpr uint32_t kSwizzleLine = 128;  // bytes, within which a chunk changes its place
constexpr size_t kLongestRow = 256 * 8;

// ---- Boxes ----

GlobalBox box_of(const Call& call, const TensorMap& map, const int32_t* at, int rank) {
  if (map.tag != TensorMap::kTag)
    fail_with(call, "a tensor map that make_tensor_map() has not made");
  if (map.rank != rank) {
    fail_call(call, std::string("calls ") + call.instruction + " with " + std::to_string(rank) +
                        " coordinates, for a tensor of " + std::to_string(map.rank) + " axes");
  }
  // Seen on an H200; PTX ISA does not say it.
  if (at[0] * map.element_bytes % static_cast<int32_t>(kChunk) != 0) {
    fail_with(call, "a box that begins at no multiple of 16 bytes of its rows",
              cudaErrorIllegalInstruction);
  }
  GlobalBox box;
  box.map = map;
  std::copy_n(at, rank, box.at);
  box.bytes = map.element_bytes;
  for (const int32_t extent : map.box) box.bytes *= static_cast<uint32_t>(extent);
  return box;
}

GlobalBox run_of(const Call& call, const void* global, unsigned bytes) {
  if (bytes % kChunk != 0) fail_with(call, "a number of bytes that is no multiple of 16");
  if (reinterpret_cast<uintptr_t>(global) % kChunk != 0) {
    fail_with(call, "an address in global memory that is no multiple of 16",
              cudaErrorMisalignedAddress);
  }
  GlobalBox box;
  box.run = static_cast<char*>(const_cast<void*>(global));
  box.bytes = bytes;
  return box;
}

// Where in shared memory a chunk lies: some bits of its number in the line change with the line's
// number (PTX ISA, "Swizzling Modes"). The address itself counts, not the offset in the box.
uintptr_t swizzled(uintptr_t address, uint32_t swizzle_bytes) {
  return swizzle_bytes == 0 ? address : address ^ (address >> 3 & (swizzle_bytes - kChunk));
}

/// A row of a box, of which a part lies in the tensor.
struct Row {
  uint32_t begin, bytes;                // in the box
  uint32_t inside_begin, inside_bytes;  // in the row
  char* inside;                         // in global memory
};

/// At the end of a row a store writes whole chunks, as an H200 does: what follows the tensor's
/// last column in its last 16 bytes is written as well.
enum class Edge { of_elements, of_chunks };

template <class Visit>
void for_each_row(const GlobalBox& box, Edge edge, Visit visit) {
  if (box.run) return visit(Row{0, box.bytes, 0, box.bytes, box.run});
  const TensorMap& map = box.map;
  const int64_t element = map.element_bytes;
  const int64_t first = std::clamp<int64_t>(-int64_t{box.at[0]}, 0, map.box[0]);
  const int64_t chunk = edge == Edge::of_chunks ? int64_t{kChunk} / element : 1;
  const int64_t extent = (map.extents[0] + chunk - 1) / chunk * chunk;
  const int64_t last = std::clamp<int64_t>(extent - box.at[0], first, map.box[0]);
  Row row{0, static_cast<uint32_t>(map.box[0] * element), 0, 0, nullptr};
  int64_t i[5] = {};
  do {
    char* begin = map.data + (box.at[0] + first) * element;
    bool is_inside = first < last;
    for (int axis = 1; axis < 5; ++axis) {
      const int64_t at = box.at[axis] + i[axis];
      is_inside = is_inside && at >= 0 && at < map.extents[axis];
      begin += at * map.strides[axis];
    }
    row.inside_begin = is_inside ? static_cast<uint32_t>(first * element) : 0;
    row.inside_bytes = is_inside ? static_cast<uint32_t>((last - first) * element) : 0;
    row.inside = is_inside ? begin : nullptr;
    visit(row);
    row.begin += row.bytes;
    for (int axis = 1; axis < 5; ++axis) {
      if (++i[axis] < map.box[axis]) break;
      i[axis] = 0;
    }
  } while (row.begin < box.bytes);
}

// Calls move(offset in the row, chunk) for where the row's chunks lie in `memory`, which holds what
// lies at `address`.
template <class Move>
void for_each_chunk(const Row& row, uint32_t swizzle_bytes, uintptr_t address, char* memory,
                    Move move) {
  for (uint32_t o = 0; o < row.bytes; o += kChunk) {
    move(o, memory + (swizzled(address + row.begin + o, swizzle_bytes) - address));
  }
}

void land(char* arena, const PendingLoad& load) {
  char* to = arena + load.to;
  const uint32_t swizzle = load.from.map.swizzle_bytes;
  for_each_row(load.from, Edge::of_elements, [&](const Row& row) {
    if (row.inside_bytes == row.bytes && swizzle == 0) {
      std::memcpy(to + row.begin, row.inside, row.bytes);
      return;
    }
    char values[kLongestRow] = {};  // only a box's row has a part outside
    if (row.inside_bytes > 0) {
      std::memcpy(values + row.inside_begin, row.inside, row.inside_bytes);
    }
    for_each_chunk(row, swizzle, reinterpret_cast<uintptr_t>(to), to,
                   [&](uint32_t o, char* chunk) { std::memcpy(chunk, values + o, kChunk); });
  });
}

template <class Bits, class Add>
void add_at(char* to, const char* value, Add add) {
  Bits more, before, after;
  std::memcpy(&more, value, sizeof more);
  auto* sum = reinterpret_cast<Bits*>(to);
  before = __atomic_load_n(sum, __ATOMIC_RELAXED);
  do {
    after = add(before, more);
  } while (
      !__atomic_compare_exchange_n(sum, &before, after, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}

template <class Format>
uint16_t add_small(uint16_t a, uint16_t b) {
  return from_double<Format>(double{to_float<Format>(a)} + double{to_float<Format>(b)});
}

void add_element(TensorType type, char* to, const char* value) {
  switch (type) {
    case TensorType::fp32:
      return add_at<uint32_t>(to, value, [](uint32_t a, uint32_t b) {
        return std::bit_cast<uint32_t>(std::bit_cast<float>(a) + std::bit_cast<float>(b));
      });
    case TensorType::fp64:
      return add_at<uint64_t>(to, value, [](uint64_t a, uint64_t b) {
        return std::bit_cast<uint64_t>(std::bit_cast<double>(a) + std::bit_cast<double>(b));
      });
    case TensorType::fp16: return add_at<uint16_t>(to, value, add_small<Fp16>);
    case TensorType::bf16: return add_at<uint16_t>(to, value, add_small<Bf16>);
    case TensorType::byte: return;  // store_box() has refused it
  }
}

void finish(char* arena, const PendingStore& store) {
  const GlobalBox& box = store.to;
  const uint32_t element = box.run ? sizeof(float) : box.map.element_bytes;
  const auto address = reinterpret_cast<uintptr_t>(arena + store.from);
  for_each_row(box, store.adds ? Edge::of_elements : Edge::of_chunks, [&](const Row& row) {
    if (row.inside_bytes == 0) return;
    const char* values = store.read.get() + row.begin;
    char in_order[kLongestRow];
    if (box.map.swizzle_bytes != 0) {
      for_each_chunk(row, box.map.swizzle_bytes, address, store.read.get(),
                     [&](uint32_t o, char* chunk) { std::memcpy(in_order + o, chunk, kChunk); });
      values = in_order;
    }
    values += row.inside_begin;
    if (!store.adds) {
      std::memcpy(row.inside, values, row.inside_bytes);
      return;
    }
    for (uint32_t o = 0; o < row.inside_bytes; o += element) {
      add_element(box.run ? TensorType::fp32 : box.map.type, row.inside + o, values + o);
    }
  });
}

// ---- What can be wrong ----

void check_shared(const Call& call, const void* shared, const GlobalBox& box) {
  const uintptr_t alignment = box.run ? kChunk : kSwizzleLine;
  if (!is_in_shared_memory(call.block, shared, box.footprint())) {
    fail_with(call, "what is not in shared memory of its block", cudaErrorIllegalAddress, shared);
  }
  if (reinterpret_cast<uintptr_t>(shared) % alignment != 0) {
    fail_with(call,
              box.run ? "an address in shared memory that is no multiple of 16"
                      : "an address in shared memory that is no multiple of 128",
              cudaErrorMisalignedAddress);
  }
}

// Bad addresses end the kernel here, and not when the copy lands, maybe in another thread.
void check_global(const Call& call, const GlobalBox& box, check::Access access) {
  const bool stores = access.kind == check::Kind::write && !access.atomic;
  for_each_row(box, stores ? Edge::of_chunks : Edge::of_elements, [&](const Row& row) {
    if (row.inside_bytes == 0) return;
    if (call.block.cluster().owner_of(row.inside) || call.block.owns_stack(row.inside)) {
      fail_with(call, "what is not in global memory",
                access.kind == check::Kind::read ? kFromWrongMemory : kToWrongMemory);
    }
    if constexpr (kChecking) {
      access.address = reinterpret_cast<uintptr_t>(row.inside);
      access.bytes = row.inside_bytes;
      check::look_at(access);
    } else {
      constexpr uint32_t kPage = 4096;
      for (uint32_t o = 0; o < row.inside_bytes; o += kPage) {
        static_cast<void>(*static_cast<const volatile char*>(row.inside + o));
      }
      static_cast<void>(*static_cast<const volatile char*>(row.inside + row.inside_bytes - 1));
    }
  });
}

check::Access access_of(check::Kind kind, check::Flight flight, const void* caller) {
  check::Access access{};
  access.kind = kind;
  access.flight = flight;
  if constexpr (kChecking) access.place = check::place_of(caller);
  return access;
}

// ---- Loads ----

// Notes how many bytes are on their way to the block.
void count_on_the_way(Block& owner) {
  uint64_t bytes = 0;
  for (const PendingLoad& load : owner.bulk().loads) bytes += load.from.bytes;
  std::atomic<uint64_t>& most = owner.launch().most_on_the_way;
  for (uint64_t seen = most; seen < bytes && !most.compare_exchange_weak(seen, bytes);) {
  }
}

void issue(const Call& call, void* shared, const GlobalBox& box, Mbarrier* barrier, uint32_t ranks,
           const void* caller) {
  Block& block = call.block;
  const Cluster& cluster = block.cluster();
  check_shared(call, shared, box);
  check_mbarrier(call, block, barrier);
  if (ranks == 0) fail_with(call, "no block to load for");
  check_global(call, box, access_of(check::Kind::read, check::Flight::load, caller));
  block.launch().loaded_bytes += box.bytes;
  for (; ranks != 0; ranks &= ranks - 1) {
    const auto rank = static_cast<unsigned>(std::countr_zero(ranks));
    char* to = cluster.map(shared, rank, call.site);
    auto* counter = reinterpret_cast<Mbarrier*>(cluster.map(barrier, rank, call.site));
    Block& owner = cluster.block(rank);
    check::Access write = access_of(check::Kind::write, check::Flight::load, caller);
    if constexpr (kChecking) {
      write.address = reinterpret_cast<uintptr_t>(to);
      write.bytes = box.footprint();
      check::look_at(write);
      check::load_begins(rank, to, box.footprint());
    } else if (cluster.has_ended(rank)) {
      fail_call(call, std::string("calls ") + call.instruction + " for a block that has ended");
    }
    {
      const OutsideKernel outside(block);
      owner.bulk().loads.push_back({box, static_cast<uint32_t>(to - owner.arena()), counter,
                                    cluster.complete_phases(counter), block.index(),
                                    block.current_thread(), write.place, call.site});
      count_on_the_way(owner);
    }
    count_loaded_bytes(call, owner, counter, box.bytes, caller);
  }
}

// ---- Stores ----

PendingStores& own_stores(Block& block) {
  block.bulk().any_stores = true;
  return block.bulk().stores[block.current_thread()];
}

void issue(const Call& call, const GlobalBox& box, const void* shared, bool adds,
           const void* caller) {
  Block& block = call.block;
  check_shared(call, shared, box);
  if constexpr (kChecking) {
    check::Access read = access_of(check::Kind::read, check::Flight::read_of_store, caller);
    read.address = reinterpret_cast<uintptr_t>(shared);
    read.bytes = box.footprint();
    read.async_proxy = true;
    check::look_at(read);
  }
  check::Access write = access_of(adds ? check::Kind::update : check::Kind::write,
                                  check::Flight::write_of_store, caller);
  write.atomic = adds;
  check_global(call, box, write);
  if constexpr (kChecking) check::store_begins();
  const OutsideKernel outside(block);
  PendingStores& stores = own_stores(block);
  stores.under_way.push_back(
      {box, adds, static_cast<uint32_t>(static_cast<const char*>(shared) - block.arena()),
       stores.groups, call.site, nullptr});
}

void wait_for_groups(Block& block, int pending, bool until_done) {
  PendingStores& stores = own_stores(block);
  const auto most = static_cast<uint32_t>(pending);
  const uint32_t waited_for = stores.groups > most ? stores.groups - most : 0;
  size_t count = 0;
  for (PendingStore& store : stores.under_way) {
    if (store.group >= waited_for) break;
    if (!store.read) {
      const OutsideKernel outside(block);
      const uint32_t bytes = store.to.footprint();
      store.read.reset(new char[bytes]);
      std::memcpy(store.read.get(), block.arena() + store.from, bytes);
      ++stores.read;
    }
    if (until_done) finish(block.arena(), store);
    ++count;
  }
  if (until_done && count > 0) {
    const OutsideKernel outside(block);
    stores.under_way.erase(stores.under_way.begin(),
                           stores.under_way.begin() + static_cast<std::ptrdiff_t>(count));
    stores.done += static_cast<uint32_t>(count);
  }
  if constexpr (kChecking) check::stores_waited_for(stores.read, stores.done);
}

}  // namespace

void land_loads(Block& block, const void* barrier) {
  auto& loads = block.bulk().loads;
  if (loads.empty()) return;
  const uint32_t complete = block.cluster().complete_phases(barrier);
  const auto has_come = [&](const PendingLoad& load) {
    return load.barrier == barrier && load.phase < complete;
  };
  for (const PendingLoad& load : loads) {
    if (!has_come(load)) continue;
    if constexpr (kChecking) check::load_lands(load.to, load.from.footprint());
    land(block.arena(), load);
  }
  const OutsideKernel outside(block);
  std::erase_if(loads, has_come);
}

bool end_copies(Block& block) {
  static thread_local std::string text;  // outlives the block that fails
  const auto at = [](Site site) {
    return std::string(site.file) + ":" + std::to_string(site.line) + "\n  missing: ";
  };
  BulkCopies& bulk = block.bulk();
  if (!bulk.loads.empty()) {
    const PendingLoad& load = bulk.loads.front();
    text = "a block has ended before a load into its shared memory\n  issued by ";
    if (load.issuing_block != block.index()) {
      text += "block " + block.block_name(load.issuing_block) + "'s ";
    }
    text += "thread " + block.thread_name(load.issuing_thread) + " at " + at(load.site) +
            "an mbarrier_wait() for it";
    block.ended_too_early(text.c_str());
    return false;
  }
  if (!bulk.any_stores) return true;
  LateStores late{block.arena(), {}};
  for (uint32_t t = 0; t < block.launch().threads; ++t) {
    for (PendingStore& store : bulk.stores[t].under_way) {
      if (store.read) {
        late.stores.push_back(std::move(store));
        continue;
      }
      text = "thread " + block.thread_name(t) +
             " has ended before its store has read shared memory\n  issued at " + at(store.site) +
             (store.group == bulk.stores[t].groups ? "a bulk_commit() and a " : "a ") +
             "bulk_wait_read<0>()";
      block.ended_too_early(text.c_str());
      return false;
    }
  }
  if (options().order != Order::random) {
    finish(late);
    return true;
  }
  constexpr size_t kMost = 4;  // blocks, whose stores are in memory
  Random random;
  random.seed(options().seed ^ block.index());
  Launch& launch = block.launch();
  const std::lock_guard lock(launch.ending);
  launch.late_stores.push_back(std::move(late));
  while (launch.late_stores.size() > random(kMost + 1)) {
    const auto any =
        launch.late_stores.begin() + random(static_cast<uint32_t>(launch.late_stores.size()));
    finish(*any);
    launch.late_stores.erase(any);
  }
  return true;
}

void finish(const LateStores& late) {
  for (const PendingStore& store : late.stores) finish(late.arena, store);
}

// ---- The doors through which device code comes in ----

void prefetch_tensor_map(const TensorMap& map, Site site) {
  const Call call = begin_call("prefetch.tensormap", site);
  if (map.tag != TensorMap::kTag)
    fail_with(call, "a tensor map that make_tensor_map() has not made");
}

void fence_async_proxy(Site site) {
  begin_call("fence.proxy.async", site);
  if constexpr (kChecking) check::fence_async_proxy();
}

void load_box(void* shared, const TensorMap& map, const int32_t* at, int rank, Mbarrier* barrier,
              Site site) {
  const Call call = begin_call("cp.async.bulk.tensor", site);
  issue(call, shared, box_of(call, map, at, rank), barrier, 1u << call.block.rank(),
        __builtin_return_address(0));
}

void load_box_to_ranks(void* shared, const TensorMap& map, const int32_t* at, int rank,
                       Mbarrier* barrier, uint16_t ranks, Site site) {
  const Call call = begin_call("cp.async.bulk.tensor", site);
  issue(call, shared, box_of(call, map, at, rank), barrier, ranks, __builtin_return_address(0));
}

void store_box(const TensorMap& map, const int32_t* at, int rank, const void* shared, bool adds,
               Site site) {
  const Call call = begin_call(adds ? "cp.reduce.async.bulk.tensor" : "cp.async.bulk.tensor", site);
  if (adds && map.type == TensorType::byte) fail_with(call, "bytes, which it cannot add");
  // CUDA C++ Programming Guide, "Using TMA to transfer multi-dimensional arrays"; seen on an H100.
  if (std::any_of(at, at + rank, [](int32_t x) { return x < 0; })) {
    fail_with(call, "a box to be stored that begins in front of the tensor",
              cudaErrorIllegalInstruction);
  }
  issue(call, box_of(call, map, at, rank), shared, adds, __builtin_return_address(0));
}

void bulk_load(void* shared, const void* global, unsigned bytes, Mbarrier* barrier, Site site) {
  const Call call = begin_call("cp.async.bulk", site);
  issue(call, shared, run_of(call, global, bytes), barrier, 1u << call.block.rank(),
        __builtin_return_address(0));
}

void bulk_store(void* global, const void* shared, unsigned bytes, Site site) {
  const Call call = begin_call("cp.async.bulk", site);
  issue(call, run_of(call, global, bytes), shared, false, __builtin_return_address(0));
}

void bulk_reduce_add(float* global, const void* shared, unsigned bytes, Site site) {
  const Call call = begin_call("cp.reduce.async.bulk", site);
  issue(call, run_of(call, global, bytes), shared, true, __builtin_return_address(0));
}

void bulk_commit(Site site) {
  Block& block = begin_call("cp.async.bulk.commit_group", site).block;
  ++own_stores(block).groups;
}

void wait_for_reads_of_stores(int pending, Site site) {
  wait_for_groups(begin_call("cp.async.bulk.wait_group.read", site).block, pending, false);
}

void wait_for_stores(int pending, Site site) {
  wait_for_groups(begin_call("cp.async.bulk.wait_group", site).block, pending, true);
}

}  // namespace cpu_device
