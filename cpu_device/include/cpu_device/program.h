// What nvcc gives each .cu file without being asked: the runtime, a part of C's library, and the
// macros by which headers know that they are compiled as CUDA.
#pragma once

#define __CUDACC__
#define __NVCC__

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <new>
#include <utility>

#include "cuda_runtime.h"

// What __CUDA_ARCH__ is in functions of the device alone. The others see none, as on a host.
#define CPU_DEVICE_ARCH 900

// `extern __shared__ T name[];` outside of functions.
#define CPU_DEVICE_DYNAMIC_SHARED(name, ...)                            \
  extern CPU_DEVICE_THREAD_LOCAL __typeof__(__VA_ARGS__)* name __asm__( \
      "_ZN10cpu_device12shared_arenaE")
