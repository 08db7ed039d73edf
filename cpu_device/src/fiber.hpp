// A fiber: a stack of its own and a place to go on. One carries each simulated CUDA thread that
// has started and waits. Boost.Context's fcontext does the switch, in about 5 ns.
#pragma once

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>
#include <vector>

namespace cpu_device {

using boost::context::detail::fcontext_t;
using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

/// Goes on at `to`. The place left behind is stored in `*left` by whoever runs next; `left` may be
/// null if nobody is to come back here.
inline void switch_fiber(fcontext_t to, fcontext_t* left) {
  const transfer_t arrived = jump_fcontext(to, left);
  if (arrived.data) *static_cast<fcontext_t*>(arrived.data) = arrived.fctx;
}

/// The stacks of one OS thread: as many as a block can have threads, in one stretch of addresses.
/// Memory is used by those only that have run.
class Stacks {
 public:
  explicit Stacks(int count);
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;
  ~Stacks();

  /// A stack that nobody uses.
  int take() {
    const int stack = free_.back();
    free_.pop_back();
    return stack;
  }
  void give_back(int stack) { free_.push_back(stack); }
  /// Forgets whatever runs on any of them.
  void give_back_all();

  /// A context that will call `entry` on the stack. `entry` must not return.
  fcontext_t prepare(int stack, void (*entry)(transfer_t)) const;

 private:
  int count_;
  char* base_;
  std::vector<int> free_;
};

}  // namespace cpu_device
