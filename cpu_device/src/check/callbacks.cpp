// The functions that a compiler calls under -fsanitize=thread, around every load and store. Their
// names and parameters are those of the ThreadSanitizer runtime
// (llvm-project/compiler-rt/lib/tsan/rtl/tsan_interface.h); what they do is ours. Atomic functions
// get their memory order as an argument, and must do the operation themselves.
#include <cstdint>
#include <cstring>

#include "../block.hpp"
#include "checker.hpp"

using namespace cpu_device;
using check::Kind;

namespace {

// A thread in a long loop may wait for another one: so that the loop ends, the others run, too.
constexpr uint32_t kPatience = 1 << 16;           // in basic blocks of the program
constexpr uint32_t kAtomicUses = kPatience / 64;  // an atomic is more likely to wait
uint32_t used = 0, user = 0;

inline bool in_kernel() { return current_block && current_block->in_kernel(); }

inline void use_patience(uint32_t amount) {
  if (user != current_block->current_thread()) {
    user = current_block->current_thread();
    used = 0;
  }
  used += amount;
  if (used < kPatience) return;
  used = 0;
  check::kernel_calls();
  current_block->yield();
}

inline void look(const volatile void* address, size_t bytes, Kind kind, bool atomic, const void* pc,
                 bool is_volatile = false, bool compares = false) {
  if (!in_kernel()) return;
  if (atomic) use_patience(kAtomicUses);  // before it acquires what the others have released
  check::look_at({.address = reinterpret_cast<uintptr_t>(address),
                  .bytes = bytes,
                  .kind = kind,
                  .atomic = atomic,
                  .place = check::place_of(pc),
                  .is_volatile = is_volatile,
                  .compares = compares});
}

}  // namespace

#define PC __builtin_return_address(0)
#define SIZE(bytes)                                                                           \
  void __tsan_read##bytes(void* p) { look(p, bytes, Kind::read, false, PC); }                 \
  void __tsan_write##bytes(void* p) { look(p, bytes, Kind::write, false, PC); }               \
  void __tsan_unaligned_read##bytes(void* p) { look(p, bytes, Kind::read, false, PC); }       \
  void __tsan_unaligned_write##bytes(void* p) { look(p, bytes, Kind::write, false, PC); }     \
  void __tsan_volatile_read##bytes(void* p) { look(p, bytes, Kind::read, true, PC, true); }   \
  void __tsan_volatile_write##bytes(void* p) { look(p, bytes, Kind::write, true, PC, true); } \
  void __tsan_unaligned_volatile_read##bytes(void* p) {                                       \
    look(p, bytes, Kind::read, true, PC, true);                                               \
  }                                                                                           \
  void __tsan_unaligned_volatile_write##bytes(void* p) {                                      \
    look(p, bytes, Kind::write, true, PC, true);                                              \
  }                                                                                           \
  void __tsan_read_write##bytes(void* p) {                                                    \
    look(p, bytes, Kind::read, false, PC);                                                    \
    look(p, bytes, Kind::write, false, PC);                                                   \
  }

#define ATOMIC(bits, T)                                                                            \
  T __tsan_atomic##bits##_load(const volatile T* p, int) {                                         \
    look(p, sizeof(T), Kind::read, true, PC);                                                      \
    return __atomic_load_n(p, __ATOMIC_RELAXED);                                                   \
  }                                                                                                \
  void __tsan_atomic##bits##_store(volatile T* p, T value, int) {                                  \
    look(p, sizeof(T), Kind::write, true, PC);                                                     \
    __atomic_store_n(p, value, __ATOMIC_RELAXED);                                                  \
  }                                                                                                \
  T __tsan_atomic##bits##_exchange(volatile T* p, T value, int) {                                  \
    look(p, sizeof(T), Kind::update, true, PC);                                                    \
    return __atomic_exchange_n(p, value, __ATOMIC_SEQ_CST);                                        \
  }                                                                                                \
  T __tsan_atomic##bits##_fetch_add(volatile T* p, T value, int) {                                 \
    look(p, sizeof(T), Kind::update, true, PC);                                                    \
    return __atomic_fetch_add(p, value, __ATOMIC_SEQ_CST);                                         \
  }                                                                                                \
  T __tsan_atomic##bits##_fetch_sub(volatile T* p, T value, int) {                                 \
    look(p, sizeof(T), Kind::update, true, PC);                                                    \
    return __atomic_fetch_sub(p, value, __ATOMIC_SEQ_CST);                                         \
  }                                                                                                \
  T __tsan_atomic##bits##_fetch_and(volatile T* p, T value, int) {                                 \
    look(p, sizeof(T), Kind::update, true, PC);                                                    \
    return __atomic_fetch_and(p, value, __ATOMIC_SEQ_CST);                                         \
  }                                                                                                \
  T __tsan_atomic##bits##_fetch_or(volatile T* p, T value, int) {                                  \
    look(p, sizeof(T), Kind::update, true, PC);                                                    \
    return __atomic_fetch_or(p, value, __ATOMIC_SEQ_CST);                                          \
  }                                                                                                \
  T __tsan_atomic##bits##_fetch_xor(volatile T* p, T value, int) {                                 \
    look(p, sizeof(T), Kind::update, true, PC);                                                    \
    return __atomic_fetch_xor(p, value, __ATOMIC_SEQ_CST);                                         \
  }                                                                                                \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile T* p, T* expected, T value,           \
                                                    int order, int) {                              \
    look(p, sizeof(T), Kind::update, true, PC, false, order == __ATOMIC_ACQ_REL);                  \
    return __atomic_compare_exchange_n(p, expected, value, false, __ATOMIC_SEQ_CST,                \
                                       __ATOMIC_SEQ_CST);                                          \
  }                                                                                                \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile T* p, T* expected, T value, int, int) { \
    look(p, sizeof(T), Kind::update, true, PC);                                                    \
    return __atomic_compare_exchange_n(p, expected, value, true, __ATOMIC_SEQ_CST,                 \
                                       __ATOMIC_SEQ_CST);                                          \
  }                                                                                                \
  T __tsan_atomic##bits##_compare_exchange_val(volatile T* p, T expected, T value, int order,      \
                                               int) {                                              \
    look(p, sizeof(T), Kind::update, true, PC, false, order == __ATOMIC_ACQ_REL);                  \
    __atomic_compare_exchange_n(p, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);   \
    return expected;                                                                               \
  }

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void* caller) {
  if (!in_kernel()) return;
  check::kernel_calls();
  check::function_entered(caller);
}
void __tsan_func_exit() {
  if (!in_kernel()) return;
  check::kernel_calls();
  check::function_left();
}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

SIZE(1)
SIZE(2)
SIZE(4)
SIZE(8)
SIZE(16)

void __tsan_read_range(void* p, unsigned long bytes) {
  if (bytes) look(p, bytes, Kind::read, false, PC);
}
void __tsan_write_range(void* p, unsigned long bytes) {
  if (bytes) look(p, bytes, Kind::write, false, PC);
}
void* __tsan_memcpy(void* to, const void* from, size_t bytes) {
  if (bytes) {
    look(from, bytes, Kind::read, false, PC);
    look(to, bytes, Kind::write, false, PC);
  }
  return std::memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, size_t bytes) {
  if (bytes) {
    look(from, bytes, Kind::read, false, PC);
    look(to, bytes, Kind::write, false, PC);
  }
  return std::memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int value, size_t bytes) {
  if (bytes) look(to, bytes, Kind::write, false, PC);
  return std::memset(to, value, bytes);
}

ATOMIC(8, uint8_t)
ATOMIC(16, uint16_t)
ATOMIC(32, uint32_t)
ATOMIC(64, uint64_t)

void __tsan_atomic_thread_fence(int) {
  if (in_kernel()) check::fence(check::Scope::device);
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
// __threadfence_block() (memory.h).
void __tsan_atomic_signal_fence(int) {
  if (in_kernel()) check::fence(check::Scope::block);
}

// From -fsanitize-coverage=trace-pc: a basic block begins. It is the only call from a loop out of
// which the compiler has moved the load.
void __sanitizer_cov_trace_pc() {
  if (in_kernel()) use_patience(1);
}

// From -fsanitize=alignment, for an address that its type forbids
// (llvm-project/compiler-rt/lib/ubsan/ubsan_handlers.h).
struct TypeMismatch {
  const char* file;
  uint32_t line, column;
  const void* type;
  unsigned char alignment_log2, kind;
};
void __ubsan_handle_type_mismatch_v1(TypeMismatch* mismatch, void* p) {
  if (!in_kernel()) return;
  constexpr unsigned char kStore = 1;
  check::look_at_misaligned({reinterpret_cast<uintptr_t>(p), size_t{1} << mismatch->alignment_log2,
                             mismatch->kind == kStore ? Kind::write : Kind::read, false,
                             check::place_of(PC)});
}
}
