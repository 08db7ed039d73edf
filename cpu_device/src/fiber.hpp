// A fiber: a stack of its own and a place to go on. One carries each simulated CUDA thread that
// has started and waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "asan.hpp"

namespace cpu_device {

/// Where a fiber goes on: its stack pointer. There lie its frame pointer and the address of its
/// next instruction.
using Context = void*;

/// Goes on at `to`, and stores in `*left` where this fiber goes on. The compiler has to save the
/// registers that it needs afterwards, since all but the frame pointer are clobbered; the
/// floating-point modes stay, which device code cannot set.
inline __attribute__((always_inline)) void jump(Context to, Context* left) {
#if defined(__x86_64__)
  // 128 bytes below the stack pointer may be in use: the red zone (System V ABI for AMD64, 3.2.2).
  asm volatile(
      "leaq -128(%%rsp), %%rsp\n\t"
      "leaq 1f(%%rip), %%rax\n\t"
      "pushq %%rax\n\t"
      "pushq %%rbp\n\t"
      "movq %%rsp, (%%rsi)\n\t"
      "movq %%rdi, %%rsp\n\t"
      "popq %%rbp\n\t"
      "popq %%rax\n\t"
      "jmpq *%%rax\n"
      "1:\n\t"
      "leaq 128(%%rsp), %%rsp"
      : "+D"(to), "+S"(left)::"rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13",
        "r14", "r15", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
        "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "memory", "cc");
#elif defined(__aarch64__)
  // The hint is `bti jc`: the label may be the target of a jump where the kernel enforces that.
  register Context to_register asm("x0") = to;
  register Context* left_register asm("x1") = left;
  asm volatile(
      "adr x16, 1f\n\t"
      "stp x29, x16, [sp, #-16]!\n\t"
      "mov x17, sp\n\t"
      "str x17, [x1]\n\t"
      "mov sp, x0\n\t"
      "ldp x29, x16, [sp], #16\n\t"
      "mov x30, xzr\n\t"
      "br x16\n"
      "1:\n\t"
      "hint #38"
      : "+r"(to_register), "+r"(left_register)::"x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9",
        "x10", "x11", "x12", "x13", "x14", "x15", "x16", "x17", "x18", "x19", "x20", "x21", "x22",
        "x23", "x24", "x25", "x26", "x27", "x28", "x30", "v0", "v1", "v2", "v3", "v4", "v5", "v6",
        "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19",
        "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31",
        "memory", "cc");
#else
#error "the CPU device runs on x86-64 and on 64-bit Arm"
#endif
}

/// The stacks of one OS thread: as many as a block can have threads, in one stretch of addresses.
/// Memory is used by those only that have run.
class Stacks {
 public:
  explicit Stacks(int count);
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;
  ~Stacks();

  /// A stack that is not in use.
  int take() {
    const int stack = free_.back();
    free_.pop_back();
    return stack;
  }
  void give_back(int stack) { free_.push_back(stack); }
  /// Forgets whatever runs on any of them.
  void give_back_all();

  /// Whether the address lies in any of them.
  bool hold(const void* address) const;
  /// Whether it lies in one, and so many bytes of that are below it.
  bool have_room_below(uintptr_t address, size_t bytes) const;

  /// A context that will call `entry` on the stack. `entry` must not return.
  Context prepare(int stack, void (*entry)()) const;

  /// Goes on at `to`, on one of the stacks or on that of the OS thread. The place that is left
  /// is stored in `*left`, which may be null if none comes back here.
  void switch_to(Context to, Context* left) {
    void* fake_stack = nullptr;
    Context forgotten;
    if constexpr (kAsan) tell_asan_before(to, left ? &fake_stack : nullptr);
    jump(to, left ? left : &forgotten);
    if constexpr (kAsan) tell_asan_after(fake_stack);
  }
  /// What a context's entry does first.
  void begin() {
    if constexpr (kAsan) tell_asan_after(nullptr);
  }
  /// Whether a signal handler has interrupted a switch. It must not leave then.
  bool switching() const { return kAsan && switching_; }

 private:
  void tell_asan_before(Context to, void** left_fake_stack);
  void tell_asan_after(void* own_fake_stack);

  int count_;
  char* base_;
  std::vector<int> free_;

  // For AddressSanitizer.
  volatile bool switching_ = false;
  const void* thread_stack_ = nullptr;  // the OS thread's
  size_t thread_stack_bytes_ = 0;
};

}  // namespace cpu_device
