// Every atomic function on every type that CUDA has it for.
#pragma once

#include <cuda_runtime_api.h>

#include <type_traits>

namespace device_test {

enum class Atomic { add, sub, exch, min, max, inc, dec, cas, and_, or_, xor_ };

/// Whether CUDA has the function for the type (CUDA C++ Programming Guide, "Atomic Functions").
template <class T>
constexpr bool has_atomic(Atomic f) {
  constexpr bool kWord = std::is_same_v<T, int> || std::is_same_v<T, unsigned>;
  constexpr bool kLong = std::is_same_v<T, unsigned long long>;
  constexpr bool kFloat = std::is_same_v<T, float>;
  switch (f) {
    case Atomic::add: return kWord || kLong || std::is_floating_point_v<T>;
    case Atomic::sub: return kWord;
    case Atomic::exch: return kWord || kLong || kFloat;
    case Atomic::min:
    case Atomic::max: return kWord || kLong || std::is_same_v<T, long long>;
    case Atomic::inc:
    case Atomic::dec: return std::is_same_v<T, unsigned>;
    case Atomic::cas: return kWord || kLong || std::is_same_v<T, unsigned short>;
    default: return kWord || kLong;
  }
}

/// One thread applies the function once: *cell becomes f(*cell, operand), `*old` what it returned.
/// atomicCAS expects `expected`.
template <class T>
void apply_once(Atomic f, T* cell, T operand, T expected, T* old);

/// Every thread of many blocks applies the function to one cell. Thread i's operand is in[i], and
/// old[i] what the function returned; for atomicCAS the thread adds in[i] by a loop.
template <class T>
void apply_by_all(Atomic f, T* cell, const T* in, T* old, unsigned blocks, unsigned threads);

/// Counts in[i] in bins[in[i]], each block in shared memory first. Instantiated for int, unsigned,
/// unsigned long long, float and double.
inline constexpr unsigned kBins = 40;
template <class T>
void histogram(const unsigned char* in, T* bins, unsigned count, unsigned blocks);

/// The sum of in[count], by the last block to finish, which reads what the others wrote before
/// their __threadfence(). `partial` has a place for each block, `done` is 0 and will be again.
void sum_by_last_block(const int* in, unsigned count, int* partial, unsigned* done, int* sum,
                       unsigned blocks);

}  // namespace device_test
