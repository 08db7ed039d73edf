#include "faults.hpp"

#include <link.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <new>

#include "cluster.hpp"

#ifndef sigev_notify_thread_id  // glibc before 2.39 does not name it
#define sigev_notify_thread_id _sigev_un._tid
#endif

namespace cpu_device {
namespace {

// gdb passes these two on without stopping.
constexpr int kWatchdogSignal = SIGVTALRM;
constexpr int kGiveWaySignal = SIGURG;
constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, kWatchdogSignal, kGiveWaySignal};
constexpr int kSignalCount = sizeof kSignals / sizeof kSignals[0];
struct sigaction previous[kSignalCount];

// The watchdog looks at least this many times within Options::hang_seconds, and as often as this.
constexpr int kLooks = 4;
constexpr double kSecondsBetweenLooks = 0.05;

// A thread may wait in a loop for another one of its block, which then must run. The watchdog finds
// it at the same place of the program twice, without progress in between, and makes it give way.
// The first one of a launch may take its time; where there was one, there are more, and the looks
// come as often as the system allows.
constexpr double kPatience = 0.1, kSecondsAfterFirst = 0.001;
constexpr uintptr_t kLoopBytes = 512;         // of code, about
constexpr size_t kRoomToGiveWay = 16 * 1024;  // on the thread's stack: a signal's frame

struct PerThread {
  void* signal_stack = nullptr;  // a fault may be that a fiber's own stack is full
  stack_t previous_stack{};
  timer_t timer{};
  bool has_timer = false;
  uint64_t last_progress = 0;
  double progress_seconds = 0;  // of processor time, when that was seen
  const Block* last_block = nullptr;
  uint64_t last_yields = 0;
  uint32_t last_thread = 0;
  uintptr_t last_place = 0;
  uintptr_t waiting_place = 0;  // the first loop of the launch that had to give way, or 0
  volatile bool gives_way = false;

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

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The code of the module that the kernels and this file are linked into.
struct Code {
  uintptr_t begin = 0, end = 0;
};
int find_code(dl_phdr_info* module, size_t, void* result) {
  for (int i = 0; i < module->dlpi_phnum; ++i) {
    const auto& part = module->dlpi_phdr[i];
    const uintptr_t begin = module->dlpi_addr + part.p_vaddr;
    if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
    if (reinterpret_cast<uintptr_t>(&find_code) - begin >= part.p_memsz) continue;
    *static_cast<Code*>(result) = {begin, begin + part.p_memsz};
    return 1;
  }
  return 0;
}
Code code;  // set before the first kernel runs

// Where a signal has interrupted the program, and its stack; zeros where that is not known.
struct Interrupted {
  uintptr_t place = 0, stack = 0;
};
Interrupted interrupted_at([[maybe_unused]] const void* context) {
#if defined(__x86_64__)
  const auto& registers = static_cast<const ucontext_t*>(context)->uc_mcontext.gregs;
  return {static_cast<uintptr_t>(registers[REG_RIP]), static_cast<uintptr_t>(registers[REG_RSP])};
#elif defined(__aarch64__)
  const auto& registers = static_cast<const ucontext_t*>(context)->uc_mcontext;
  return {registers.pc, registers.sp};
#else
  return {};
#endif
}

bool is_near(uintptr_t a, uintptr_t b) { return a - b + kLoopBytes <= 2 * kLoopBytes; }

// Whether the kernel has made no progress for as long as a kernel may take for it. Notes whether
// the thread is to give way: only if it is in code of the kernel, and not in the CPU device's.
bool hangs(const Block& block, const void* context) {
  PerThread& watch = per_thread;
  const double now = processor_seconds();
  const uint64_t progress = block.cluster().progress();
  const bool is_same = progress == watch.last_progress && watch.last_block == &block;
  const Interrupted at = interrupted_at(context);
  const bool yields = block.yields() != watch.last_yields;  // then it may be about to do so
  const bool stays =
      is_same && block.current_thread() == watch.last_thread && is_near(at.place, watch.last_place);
  watch.last_block = &block;
  watch.last_yields = block.yields();
  watch.last_thread = block.current_thread();
  watch.last_place = at.place;
  if (progress != watch.last_progress) {
    watch.last_progress = progress;
    watch.progress_seconds = now;
    return false;
  }
  const double waited = now - watch.progress_seconds;
  if (waited >= options().hang_seconds && block.can_leave()) {
    watch.progress_seconds = now;
    return true;
  }
  // The check build has its own means (check/callbacks.cpp). In a library a thread might hold a
  // lock.
  if (kOneWorker || yields || at.place - code.begin >= code.end - code.begin) return false;
  const bool is_known = watch.waiting_place != 0 && is_near(at.place, watch.waiting_place);
  if (!is_known && !(stays && waited >= kPatience)) return false;
  watch.waiting_place = at.place;
  watch.gives_way = block.has_room_below(at.stack, kRoomToGiveWay);
  return false;
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
void set_timer(timer_t timer, double seconds);

// On the stack of the thread that gives way, which goes on from here when its turn comes.
void on_give_way(int signal, siginfo_t* info, void* context) {
  if (!per_thread.gives_way) {
    const auto& action = previous[kSignalCount - 1];  // SIGURG is ignored by default
    if (action.sa_handler != SIG_DFL) call_previous(signal, info, context);
    return;
  }
  per_thread.gives_way = false;
  Block* block = current_block;
  if (!block || !block->in_kernel()) return;
  const int error = errno;
  block->give_way();
  errno = error;
}

void on_signal(int signal, siginfo_t* info, void* context) {
  Block* block = current_block;
  if (!block || !block->in_kernel()) {
    if (signal != kWatchdogSignal) call_previous(signal, info, context);
    return;
  }
  if (signal == kWatchdogSignal && !hangs(*block, context)) {
    if (!per_thread.gives_way) return;
    set_timer(per_thread.timer, kSecondsAfterFirst);
    raise(kGiveWaySignal);  // comes when this handler has returned
    return;
  }
  if (signal == kWatchdogSignal) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, kGiveWaySignal);
    pthread_sigmask(SIG_UNBLOCK, &set, nullptr);  // this handler does not return
  }
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
  for (int i = 0; i < kSignalCount; ++i) {
    struct sigaction own = action;
    if (kSignals[i] == kWatchdogSignal) sigaddset(&own.sa_mask, kGiveWaySignal);
    if (kSignals[i] == kGiveWaySignal) {
      own.sa_sigaction = on_give_way;
      own.sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART;  // on the stack that was interrupted
    }
    sigaction(kSignals[i], &own, &previous[i]);
  }
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
  if (code.end == 0) dl_iterate_phdr(find_code, &code);
  watch.last_block = nullptr;
  watch.waiting_place = 0;
  watch.gives_way = false;
  watch.progress_seconds = processor_seconds();
  // A timer of 0 would be none at all, and the largest time_t is not a double.
  const double interval = std::clamp(options().hang_seconds / kLooks, 1e-3, kSecondsBetweenLooks);
  if (watch.has_timer) set_timer(watch.timer, interval);
}

ThreadWatch::~ThreadWatch() {
  PerThread& watch = per_thread;
  if (watch.has_timer) set_timer(watch.timer, 0);
  sigaltstack(&watch.previous_stack, nullptr);
}

}  // namespace cpu_device
