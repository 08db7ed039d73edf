#include "faults.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <new>

#include "cluster.hpp"

#ifndef sigev_notify_thread_id  // glibc before 2.39 does not name it
#define sigev_notify_thread_id _sigev_un._tid
#endif

namespace cpu_device {
namespace {

// gdb passes this one on without stopping.
constexpr int kWatchdogSignal = SIGVTALRM;
constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, kWatchdogSignal};
constexpr int kSignalCount = sizeof kSignals / sizeof kSignals[0];
struct sigaction previous[kSignalCount];

// The watchdog looks this many times within Options::hang_seconds.
constexpr int kLooks = 4;

struct PerThread {
  void* signal_stack = nullptr;  // a fault may be that a fiber's own stack is full
  stack_t previous_stack{};
  timer_t timer{};
  bool has_timer = false;
  uint64_t last_progress = 0;
  int looks_without_progress = 0;

  ~PerThread() {
    if (has_timer) timer_delete(timer);
    if (signal_stack) munmap(signal_stack, kSignalStackBytes);
  }
  static constexpr size_t kSignalStackBytes = 64 * 1024;
};
thread_local PerThread per_thread;

void call_previous(int signal, siginfo_t* info, void* context) {
  for (int i = 0; i < kSignalCount; ++i) {
    if (kSignals[i] != signal) continue;
    if (previous[i].sa_flags & SA_SIGINFO) return previous[i].sa_sigaction(signal, info, context);
    if (previous[i].sa_handler == SIG_IGN) return;
    if (previous[i].sa_handler != SIG_DFL) return previous[i].sa_handler(signal);
    sigaction(signal, &previous[i], nullptr);  // and the faulting instruction is tried again
  }
}

// Whether kLooks looks in a row have found no progress, and the block can be left now.
bool hangs(const Block& block) {
  PerThread& watch = per_thread;
  if (const uint64_t progress = block.cluster().progress(); progress != watch.last_progress) {
    watch.last_progress = progress;
    watch.looks_without_progress = 0;
    return false;
  }
  if (++watch.looks_without_progress < kLooks || !block.can_leave()) return false;
  watch.looks_without_progress = 0;
  return true;
}

// A processor that asks for aligned vectors does not say where one was not: x86 gives no address
// (SI_KERNEL), nor does it for one with too many bits.
bool is_misaligned(int signal, const siginfo_t& info) {
  return (signal == SIGSEGV && info.si_code == SI_KERNEL) ||
         (signal == SIGBUS && info.si_code == BUS_ADRALN);
}
constexpr const char* kMisaligned =
    kChecking
        ? "touched an address that is not aligned as its type asks, or that no memory has"
        : "touched an address that is not aligned as its type asks (a float4: to 16 bytes), or "
          "that no memory has\n  run it with --check to see which line and which array";

// Leaving a handler by a jump is safe here: the handler is not masked while it runs (SA_NODEFER),
// and what it interrupted is device code, which is abandoned.
void on_signal(int signal, siginfo_t* info, void* context) {
  Block* block = current_block;
  if (!block || !block->in_kernel()) {
    if (signal != kWatchdogSignal) call_previous(signal, info, context);
    return;
  }
  if (signal == kWatchdogSignal && !hangs(*block)) return;
  // From here on a signal is not the kernel's. AddressSanitizer reads a file of the system before a
  // call that does not return, with a lock held: a second strike of the watchdog would wait for it
  // for ever.
  block->leaves_kernel();
  switch (signal) {
    case kWatchdogSignal:
      block->fail(cudaErrorLaunchTimeout,
                  "does not end: an endless loop, or a wait for what no thread writes",
                  Block::Blamed::thread);
    case SIGFPE:
      block->fail(cudaErrorLaunchFailure, "divided an integer by zero", Block::Blamed::thread);
    default:
      if (is_misaligned(signal, *info)) {
        block->fail(cudaErrorMisalignedAddress, kMisaligned, Block::Blamed::thread);
      }
      block->fail(cudaErrorIllegalAddress,
                  "touched a bad address, or overflowed its stack:", Block::Blamed::thread,
                  info->si_addr);
  }
}

void set_timer(timer_t timer, double seconds) {
  itimerspec every{};
  every.it_interval.tv_sec = static_cast<time_t>(seconds);
  every.it_interval.tv_nsec =
      static_cast<long>((seconds - static_cast<double>(every.it_interval.tv_sec)) * 1e9);
  every.it_value = every.it_interval;
  timer_settime(timer, 0, &every, nullptr);
}

}  // namespace

FaultHandlers::FaultHandlers() {
  struct sigaction action {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK | SA_RESTART;
  for (int i = 0; i < kSignalCount; ++i) sigaction(kSignals[i], &action, &previous[i]);
}

FaultHandlers::~FaultHandlers() {
  for (int i = 0; i < kSignalCount; ++i) sigaction(kSignals[i], &previous[i], nullptr);
}

ThreadWatch::ThreadWatch() {
  PerThread& watch = per_thread;
  if (!watch.signal_stack) {
    watch.signal_stack = mmap(nullptr, PerThread::kSignalStackBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (watch.signal_stack == MAP_FAILED) throw std::bad_alloc();
    sigevent event{};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = kWatchdogSignal;
    event.sigev_notify_thread_id = gettid();
    // Where such timers do not exist there is no watchdog; everything else works.
    watch.has_timer = timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &watch.timer) == 0;
  }
  // The handler that ended a kernel has left its frames there.
  if constexpr (kAsan) {
    __asan_unpoison_memory_region(watch.signal_stack, PerThread::kSignalStackBytes);
  }
  stack_t stack{};
  stack.ss_sp = watch.signal_stack;
  stack.ss_size = PerThread::kSignalStackBytes;
  sigaltstack(&stack, &watch.previous_stack);
  watch.looks_without_progress = 0;
  // A timer of 0 would be none at all, and the largest time_t is not a double.
  const double interval = std::clamp(options().hang_seconds / kLooks, 1e-3, 1e9);
  if (watch.has_timer) set_timer(watch.timer, interval);
}

ThreadWatch::~ThreadWatch() {
  PerThread& watch = per_thread;
  if (watch.has_timer) set_timer(watch.timer, 0);
  sigaltstack(&watch.previous_stack, nullptr);
}

}  // namespace cpu_device
