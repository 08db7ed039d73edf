// Mbarriers and the stores that are counted there (PTX ISA, "Parallel Synchronization and
// Communication Instructions: mbarrier", "st.async").
#include "cpu_device/mbarrier.h"

#include <cstring>
#include <string>

#include "check/checker.hpp"
#include "cluster.hpp"
#include "cpu_device/tensor.h"
#include "instruction.hpp"
#include "tma.hpp"

namespace cpu_device {

Call begin_call(const char* instruction, Site site, int capability) {
  Block& block = block_of_caller(instruction);
  require_capability(instruction, capability, site);
  return {instruction, block, site};
}

void fail_call(const Call& call, const std::string& what, cudaError_t code, const void* address) {
  call.block.leaves_kernel();
  static thread_local std::string text;  // outlives the block that fails
  text = what + "\n  at " + call.site.file + ":" + std::to_string(call.site.line);
  if (address) text += "\n  the address is";  // which follows
  call.block.fail(code, text.c_str(), Block::Blamed::thread, address);
}

void fail_with(const Call& call, const char* operand, cudaError_t code, const void* address) {
  call.block.leaves_kernel();
  fail_call(call, std::string("calls ") + call.instruction + " with " + operand, code, address);
}

bool is_in_shared_memory(const Block& block, const void* address, size_t bytes) {
  const auto offset = static_cast<size_t>(static_cast<const char*>(address) - block.arena());
  return offset < kArenaBytes && offset + bytes <= block.launch().shared_bytes;
}

void check_mbarrier(const Call& call, const Block& owner, const Mbarrier* barrier) {
  if (!is_in_shared_memory(owner, barrier, sizeof *barrier)) {
    fail_with(call,
              call.block.cluster().owner_of(barrier) ? "an mbarrier of another block"
                                                     : "an mbarrier that is not in shared memory",
              cudaErrorIllegalAddress, barrier);
  }
  if (reinterpret_cast<uintptr_t>(barrier) % sizeof *barrier != 0) {
    fail_with(call, "an mbarrier at an address that is no multiple of 8",
              cudaErrorMisalignedAddress);
  }
}

namespace {

constexpr uint32_t kMostPending = (1u << 20) - 1;  // arrivals, and bytes on either side of 0
constexpr unsigned kTagOfInitialised = 2;          // fresh shared memory has 3, and zeros have 0

/// What the eight bytes hold.
struct Phase {
  uint64_t expected : 20;  // arrivals, of each phase
  uint64_t pending : 20;   // of them, in this phase
  int64_t bytes : 21;  // expected and not yet here; below 0 if they come before they are expected
  uint64_t parity : 1;
  uint64_t tag : 2;

  bool is_initialised() const {
    return tag == kTagOfInitialised && expected != 0 && pending <= expected;
  }
};
static_assert(sizeof(Phase) == sizeof(Mbarrier));

// `caller` is where device code called.
Phase read(const Call& call, const Mbarrier* barrier, const void* caller, bool arrives = false) {
  if constexpr (kChecking) {
    check::look_at({.address = reinterpret_cast<uintptr_t>(barrier),
                    .bytes = sizeof *barrier,
                    .kind = check::Kind::read,
                    .atomic = true,
                    .place = check::place_of(caller),
                    .of_mbarrier = true,
                    .arrives = arrives});
  }
  Phase phase;
  std::memcpy(&phase, barrier, sizeof phase);
  if (!phase.is_initialised()) fail_with(call, "an mbarrier that is not initialised");
  return phase;
}

void write(Mbarrier* barrier, const Phase& phase) { std::memcpy(barrier, &phase, sizeof phase); }

// Bytes are expected, or have come if there are less than 0.
void count_bytes(const Call& call, Phase& phase, int64_t bytes) {
  const int64_t count = phase.bytes + bytes;
  if (count > kMostPending || count < -int64_t{kMostPending}) {
    fail_call(call, "counts more than 2^20 - 1 bytes at an mbarrier in one phase");
  }
  phase.bytes = count;
}

// What has changed may have completed the phase.
void end_signal(const Call& call, Block& owner, Mbarrier* barrier, Phase phase,
                check::Signal signal) {
  if constexpr (kChecking) {
    check::mbarrier_signalled(reinterpret_cast<uintptr_t>(barrier), signal);
  }
  const bool is_complete = phase.pending == 0 && phase.bytes == 0;
  if (is_complete) {
    if constexpr (kChecking) {
      check::mbarrier_completed(reinterpret_cast<uintptr_t>(barrier), phase.parity);
    }
    phase.pending = phase.expected;
    phase.parity ^= 1;
  }
  write(barrier, phase);
  if (is_complete) call.block.cluster().wake_from(owner, barrier);
}

}  // namespace

void count_loaded_bytes(const Call& call, Block& owner, Mbarrier* barrier, uint32_t bytes,
                        const void* caller) {
  Phase phase = read(call, barrier, caller);
  count_bytes(call, phase, -int64_t{bytes});
  end_signal(call, owner, barrier, phase, check::Signal::load);
}

std::string missing_in_phase(const void* mbarrier) {
  Phase phase;
  std::memcpy(&phase, mbarrier, sizeof phase);
  const auto counted = [](uint64_t count, const char* noun) {
    return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
  };
  std::string text;
  const auto add = [&text](const std::string& what) {
    text += (text.empty() ? ", which " : " and ") + what;
  };
  if (phase.pending > 0) add("misses " + counted(phase.pending, "arrival"));
  if (phase.bytes > 0) {
    add((text.empty() ? "misses " : "") + counted(static_cast<uint64_t>(phase.bytes), "byte"));
  }
  if (phase.bytes < 0) {
    add("has " + counted(static_cast<uint64_t>(-phase.bytes), "byte") + " that no thread expects");
  }
  return text;
}

void mbarrier_init(Mbarrier* barrier, unsigned arrivals, Site site) {
  const Call call = begin_call("mbarrier.init", site);
  check_mbarrier(call, call.block, barrier);
  if (arrivals == 0 || arrivals > kMostPending) {
    fail_call(call, "calls mbarrier.init with a number of arrivals that is not 1 to 2^20 - 1");
  }
  if constexpr (kChecking) {
    check::look_at({reinterpret_cast<uintptr_t>(barrier), sizeof *barrier, check::Kind::write,
                    false, check::place_of(__builtin_return_address(0))});
    check::mbarrier_initialised(reinterpret_cast<uintptr_t>(barrier));
  }
  write(barrier, {arrivals, arrivals, 0, 0, kTagOfInitialised});
  call.block.cluster().forget_phases(barrier);
}

namespace {

void arrive(const Call& call, Block& owner, Mbarrier* barrier, unsigned bytes, const void* caller) {
  check_mbarrier(call, owner, barrier);
  Phase phase = read(call, barrier, caller, true);
  if (phase.pending == 0) {
    fail_call(call,
              "arrives at an mbarrier in a phase that waits for no more arrivals, only for bytes");
  }
  count_bytes(call, phase, bytes);
  --phase.pending;
  end_signal(call, owner, barrier, phase, check::Signal::arrival);
}

}  // namespace

void mbarrier_arrive_expect(Mbarrier* barrier, unsigned bytes, Site site) {
  const Call call = begin_call("mbarrier.arrive.expect_tx", site);
  arrive(call, call.block, barrier, bytes, __builtin_return_address(0));
}

void mbarrier_arrive(Mbarrier* barrier, Site site) {
  const Call call = begin_call("mbarrier.arrive", site);
  arrive(call, call.block, barrier, 0, __builtin_return_address(0));
}

void mbarrier_arrive(Mbarrier* barrier, unsigned rank, Site site) {
  const Call call = begin_call("mbarrier.arrive", site);
  const Cluster& cluster = call.block.cluster();
  auto* there = reinterpret_cast<Mbarrier*>(cluster.map(barrier, rank, site));
  if (!kChecking && cluster.has_ended(rank)) {
    fail_call(call, "arrives at an mbarrier of a block that has ended");
  }
  arrive(call, cluster.block(rank), there, 0, __builtin_return_address(0));
}

namespace {

void wait(Mbarrier* barrier, unsigned parity, bool sees_global_memory, Site site,
          const void* caller) {
  const Call call = begin_call("mbarrier.try_wait.parity", site);
  check_mbarrier(call, call.block, barrier);
  if (parity > 1) fail_call(call, "waits for a parity that is neither 0 nor 1");
  // Another phase may be complete by the time that the thread goes on. As on a GPU it waits again:
  // the parity says nothing of a phase that is two back.
  while (read(call, barrier, caller).parity == parity) {
    call.block.cluster().park_at(call.block, barrier, "mbarrier_wait()", site);
  }
  if constexpr (kChecking) {
    check::mbarrier_waited(reinterpret_cast<uintptr_t>(barrier), parity, sees_global_memory);
  }
  land_loads(call.block, barrier);
}

}  // namespace

void mbarrier_wait(Mbarrier* barrier, unsigned parity, Site site) {
  wait(barrier, parity, true, site, __builtin_return_address(0));
}

void mbarrier_wait_cluster(Mbarrier* barrier, unsigned parity, Site site) {
  wait(barrier, parity, false, site, __builtin_return_address(0));
}

void store_bytes_async(void* shared, const void* value, unsigned bytes, Mbarrier* barrier,
                       unsigned rank, Site site) {
  const Call call = begin_call("st.async", site);
  const Cluster& cluster = call.block.cluster();
  if (!call.block.launch().config.in_clusters) {  // as an H200 has it
    fail_call(call, "calls st.async in a launch without clusters", cudaErrorIllegalInstruction);
  }
  char* to = cluster.map(shared, rank, site);
  auto* counter = reinterpret_cast<Mbarrier*>(cluster.map(barrier, rank, site));
  Block& owner = cluster.block(rank);
  if (!is_in_shared_memory(owner, to, bytes)) {
    fail_with(call, "what is not in shared memory", cudaErrorIllegalAddress, shared);
  }
  if (reinterpret_cast<uintptr_t>(to) % bytes != 0) {
    fail_with(call, "an address that is no multiple of its size", cudaErrorMisalignedAddress);
  }
  check_mbarrier(call, owner, counter);
  if constexpr (kChecking) {
    check::look_at({.address = reinterpret_cast<uintptr_t>(to),
                    .bytes = bytes,
                    .kind = check::Kind::write,
                    .atomic = false,
                    .place = check::place_of(__builtin_return_address(0)),
                    .flight = check::Flight::st_async});
  } else if (cluster.has_ended(rank)) {
    fail_call(call, "calls st.async for a block that has ended");
  }
  Phase phase = read(call, counter, __builtin_return_address(0));
  std::memcpy(to, value, bytes);
  count_bytes(call, phase, -int64_t{bytes});
  end_signal(call, owner, counter, phase, check::Signal::st_async);
}

}  // namespace cpu_device
