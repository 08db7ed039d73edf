// An address in shared memory, as the instructions of this folder take it.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#state-spaces
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace tile::ptx {

/// Made from a pointer to shared memory. On a GPU it has 32 bits instead of a pointer's 64: a loop
/// that keeps such addresses, and adds to them, needs half of the registers and no conversion (PTX
/// ISA, "cvta").
class SharedAddress {
 public:
  SharedAddress() = default;

#ifdef CPU_DEVICE
  SharedAddress(const void* pointer) : address_(static_cast<char*>(const_cast<void*>(pointer))) {}
  operator void*() const { return address_; }
#else
  __device__ __forceinline__ SharedAddress(const void* pointer)
      : address_(static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer))) {
    // Hides where the address comes from. ptxas recomputes the address of a shared array wherever
    // it is needed, also in loops, and that takes longer than an addition to a register.
    asm volatile("" : "+r"(address_));
  }
  __device__ __forceinline__ std::uint32_t value() const { return address_; }
#endif

  friend __device__ __forceinline__ SharedAddress operator+(SharedAddress address, int bytes) {
    address.address_ += bytes;
    return address;
  }
  /// For swizzled tiles: if two places of a row differ by an exclusive or of their columns, and the
  /// row begins at a multiple of its length, their addresses differ by it, too.
  friend __device__ __forceinline__ SharedAddress operator^(SharedAddress address, int bytes) {
#ifdef CPU_DEVICE
    const auto bits = reinterpret_cast<std::uintptr_t>(address.address_);
    address.address_ += static_cast<std::ptrdiff_t>((bits ^ static_cast<unsigned>(bytes)) - bits);
#else
    address.address_ ^= static_cast<std::uint32_t>(bytes);
#endif
    return address;
  }

 private:
#ifdef CPU_DEVICE
  char* address_;
#else
  std::uint32_t address_;
#endif
};

/// 16 bytes from shared memory, at a multiple of 16. The compiler takes a pointer that a loop
/// carries along for a generic one, and this address not.
///     ld.shared.v4.u32 {a, b, c, d}, [address];
__device__ __forceinline__ uint4 load_shared(SharedAddress address) {
#ifdef CPU_DEVICE
  return *static_cast<const uint4*>(static_cast<void*>(address));
#else
  uint4 words;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(address.value())
               : "memory");
  return words;
#endif
}

/// An element of 2 or 4 bytes.
///     ld.shared.b16 element, [address];
template <class T>
__device__ __forceinline__ T load_shared_element(SharedAddress address) {
#ifdef CPU_DEVICE
  return *static_cast<const T*>(static_cast<void*>(address));
#else
  T element;
  if constexpr (sizeof(T) == 2) {
    asm volatile("ld.shared.b16 %0, [%1];"
                 : "=h"(reinterpret_cast<unsigned short&>(element))
                 : "r"(address.value())
                 : "memory");
  } else {
    asm volatile("ld.shared.b32 %0, [%1];"
                 : "=r"(reinterpret_cast<unsigned&>(element))
                 : "r"(address.value())
                 : "memory");
  }
  return element;
#endif
}

///     st.shared.v4.u32 [address], {a, b, c, d};
__device__ __forceinline__ void store_shared(SharedAddress address, uint4 words) {
#ifdef CPU_DEVICE
  *static_cast<uint4*>(static_cast<void*>(address)) = words;
#else
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address.value()), "r"(words.x),
               "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
#endif
}

///     st.shared.u32 [address], word;
__device__ __forceinline__ void store_shared(SharedAddress address, std::uint32_t word) {
#ifdef CPU_DEVICE
  *static_cast<std::uint32_t*>(static_cast<void*>(address)) = word;
#else
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address.value()), "r"(word) : "memory");
#endif
}

}  // namespace tile::ptx
