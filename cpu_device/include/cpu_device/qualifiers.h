// CUDA's qualifiers, as plain C++ sees them. Every function of the program can run in a simulated
// thread, so most of them say nothing here. `__shared__` is left to the translator.
#pragma once

#define __global__
#define __device__
#define __host__
#define __constant__
// In a section of their own, managed variables are known to copies and fills (src/memory.cpp).
#define __managed__ __attribute__((section("cpu_device_managed")))
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __cluster_dims__(...)  // the translator tells it to the launches of the kernel
#define __align__(bytes) alignas(bytes)

// `__noinline__` cannot be a macro: libstdc++ 12 spells an attribute with that word.
