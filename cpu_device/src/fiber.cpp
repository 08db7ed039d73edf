#include "fiber.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

namespace cpu_device {
namespace {

// Room for the local arrays of a kernel and for printf in one. AddressSanitizer puts redzones
// between locals, and reports from where it finds an error.
constexpr size_t kStackBytes = (kAsan ? 256 : 64) * 1024;
// Below each stack lie pages that must not be touched: an overflow is a fault and not a mystery.
// With them, stacks are no power of two apart. That matters: the tops of 1,024 stacks a power of
// two apart fall into the same few sets of the caches and of the page tables' cache, and a switch
// then takes 27 ns instead of 15.
const size_t kGuardBytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
const size_t kSpacing = kGuardBytes + kStackBytes;

// What jump() pops where a fiber begins, and then the return address, which a call pushes on
// x86-64. Where a function begins, 16 divides the stack pointer on Arm (AAPCS64, 6.4.5) and the
// stack pointer plus 8 on x86-64 (System V ABI for AMD64, 3.2.2).
#ifdef __x86_64__
constexpr int kWordsOfStart = 5;
#else
constexpr int kWordsOfStart = 4;
#endif

}  // namespace

Stacks::Stacks(int count) : count_(count) {
  void* base = mmap(nullptr, static_cast<size_t>(count) * kSpacing, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (base == MAP_FAILED) throw std::bad_alloc();
  base_ = static_cast<char*>(base);
  for (int i = 0; i < count; ++i) {
    if (mprotect(base_ + static_cast<size_t>(i) * kSpacing, kGuardBytes, PROT_NONE) != 0) {
      munmap(base, static_cast<size_t>(count) * kSpacing);
      throw std::bad_alloc();
    }
  }
  give_back_all();
}

Stacks::~Stacks() {
  give_back_all();
  munmap(base_, static_cast<size_t>(count_) * kSpacing);
}

void Stacks::give_back_all() {
  // The frames that stand there are forgotten.
  if constexpr (kAsan) __asan_unpoison_memory_region(base_, static_cast<size_t>(count_) * kSpacing);
  free_.clear();
  for (int i = count_; i-- > 0;) free_.push_back(i);
}

bool Stacks::hold(const void* address) const {
  return static_cast<size_t>(static_cast<const char*>(address) - base_) <
         static_cast<size_t>(count_) * kSpacing;
}

bool Stacks::have_room_below(uintptr_t address, size_t bytes) const {
  const size_t offset = address - reinterpret_cast<uintptr_t>(base_);
  return offset < static_cast<size_t>(count_) * kSpacing &&
         offset % kSpacing >= kGuardBytes + bytes;
}

Context Stacks::prepare(int stack, void (*entry)()) const {
  // For the same reason each top is moved by another multiple of a cache line; 61 is prime to
  // every power of two.
  const size_t shift = static_cast<size_t>(stack % 61) * 64;
  char* top = base_ + static_cast<size_t>(stack + 1) * kSpacing - shift;
  // The thread that had the stack last left it in the middle of the scheduler's few frames.
  constexpr size_t kFrames = 4096;
  if constexpr (kAsan) __asan_unpoison_memory_region(top - kFrames, kFrames);
  auto* const words = reinterpret_cast<uintptr_t*>(top) - kWordsOfStart;
  words[0] = 0;  // zeros end a backtrace
  words[1] = reinterpret_cast<uintptr_t>(entry);
  words[2] = 0;
  return words;
}

// A context is an address on its stack.
void Stacks::tell_asan_before(Context to, void** left_fake_stack) {
  switching_ = true;
  const void* bottom = thread_stack_;
  size_t bytes = thread_stack_bytes_;
  if (hold(to)) {
    const auto stack = static_cast<size_t>(static_cast<char*>(to) - base_) / kSpacing;
    bottom = base_ + stack * kSpacing + kGuardBytes;
    bytes = kStackBytes;
  }
  if constexpr (kAsan) __sanitizer_start_switch_fiber(left_fake_stack, bottom, bytes);
}

void Stacks::tell_asan_after(void* own_fake_stack) {
  const void* left = nullptr;
  size_t bytes = 0;
  if constexpr (kAsan) __sanitizer_finish_switch_fiber(own_fake_stack, &left, &bytes);
  if (!hold(left)) {
    thread_stack_ = left;
    thread_stack_bytes_ = bytes;
  }
  switching_ = false;
}

}  // namespace cpu_device
