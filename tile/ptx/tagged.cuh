// Messages between blocks through global memory, without a fence: a value and its tag in one word
// of 8 bytes. A thread that reads the tag it waits for has the value, too. PTX ISA, "Memory
// Consistency Model": a strong read or write of up to 8 bytes is one operation, and a vector's
// elements are read and written each by itself. So each value has a tag of its own.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#memory-consistency-model
#pragma once

#include <cuda_runtime.h>

namespace tile::ptx {

/// Two values, each with its tag in the upper half of its word.
struct alignas(16) TaggedPair {
  unsigned long long first, second;
};

/// Writes two values with this tag, for threads of any block. They see nothing else of what this
/// thread has done.
///     st.relaxed.gpu.global.v2.b64 [to], {first, second};
__device__ __forceinline__ void store_tagged(TaggedPair* to, float first, float second,
                                             unsigned tag) {
  const unsigned long long upper = static_cast<unsigned long long>(tag) << 32;
  const unsigned long long words[2] = {upper | __float_as_uint(first),
                                       upper | __float_as_uint(second)};
#ifdef CPU_DEVICE
  atomicExch(&to->first, words[0]);
  atomicExch(&to->second, words[1]);
#else
  asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)),
               "l"(words[0]), "l"(words[1])
               : "memory");
#endif
}

/// Reads two values. Returns whether both have this tag; if not, they mean nothing.
///     ld.relaxed.gpu.global.v2.b64 {first, second}, [from];
__device__ __forceinline__ bool load_tagged(TaggedPair* from, unsigned tag, float2* values) {
#ifdef CPU_DEVICE
  const unsigned long long first = atomicAdd(&from->first, 0ULL);
  const unsigned long long second = atomicAdd(&from->second, 0ULL);
#else
  unsigned long long first, second;
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
               : "=l"(first), "=l"(second)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
#endif
  *values = make_float2(__uint_as_float(static_cast<unsigned>(first)),
                        __uint_as_float(static_cast<unsigned>(second)));
  return first >> 32 == tag && second >> 32 == tag;
}

}  // namespace tile::ptx
