// The CPU device has what CUDA's header of this name holds in cuda_runtime.h.
#pragma once

#include "cuda_runtime.h"
