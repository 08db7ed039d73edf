// threadIdx and its like (CUDA C++ Programming Guide, "Built-in Variables").
#pragma once

#include "cpu_device/vector_types.h"

// Thread-local to the OS thread that runs the block; the scheduler rewrites threadIdx at every
// switch. `initial-exec` keeps the access one instruction in a shared library too: the general
// model calls a function for each access there (3.7 times the time of a vector add).
#define CPU_DEVICE_THREAD_LOCAL __thread __attribute__((tls_model("initial-exec")))

extern CPU_DEVICE_THREAD_LOCAL uint3 threadIdx;
extern CPU_DEVICE_THREAD_LOCAL uint3 blockIdx;
extern CPU_DEVICE_THREAD_LOCAL dim3 blockDim;
extern CPU_DEVICE_THREAD_LOCAL dim3 gridDim;

inline constexpr int warpSize = 32;
