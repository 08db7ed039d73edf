// The CPU device's stand-in for the header of CUDA's driver API, of which it has the version only.
#pragma once

#include "cuda_runtime.h"

#define CUDA_VERSION CUDART_VERSION
