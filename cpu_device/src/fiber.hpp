// A fiber: a stack of its own and a place to go on. One carries each simulated CUDA thread that
// has started and waits. Boost.Context's fcontext does the switch, in about 5 ns.
#pragma once

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>
#include <vector>

#include "asan.hpp"

namespace cpu_device {

using boost::context::detail::fcontext_t;
using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

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
  fcontext_t prepare(int stack, void (*entry)(transfer_t)) const;

  /// Goes on at `to`, on one of the stacks or on that of the OS thread. The place that is left
  /// is stored in `*left` by the thread that runs next; `left` may be null if none comes back here.
  void switch_to(fcontext_t to, fcontext_t* left) {
    void* fake_stack = nullptr;
    if constexpr (kAsan) tell_asan_before(to, left ? &fake_stack : nullptr);
    const transfer_t arrived = jump_fcontext(to, left);
    if constexpr (kAsan) tell_asan_after(fake_stack);
    store(arrived);
  }
  /// What a context's entry does first.
  void begin(transfer_t arrived) {
    if constexpr (kAsan) tell_asan_after(nullptr);
    store(arrived);
  }
  /// Whether a signal handler has interrupted a switch. It must not leave then.
  bool switching() const { return kAsan && switching_; }

 private:
  static void store(transfer_t arrived) {
    if (arrived.data) *static_cast<fcontext_t*>(arrived.data) = arrived.fctx;
  }
  void tell_asan_before(fcontext_t to, void** left_fake_stack);
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
