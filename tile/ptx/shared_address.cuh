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
    // Hides where the address comes from. ptxas computes the address of a shared array anew
    // wherever it is needed, also in loops, and that takes longer than to add to a register.
    asm volatile("" : "+r"(address_));
  }
  __device__ __forceinline__ std::uint32_t value() const { return address_; }
#endif

  friend __device__ __forceinline__ SharedAddress operator+(SharedAddress address, int bytes) {
    address.address_ += bytes;
    return address;
  }

 private:
#ifdef CPU_DEVICE
  char* address_;
#else
  std::uint32_t address_;
#endif
};

}  // namespace tile::ptx
