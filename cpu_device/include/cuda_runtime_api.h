// The CPU device's stand-in for CUDA's header of the same name.
#pragma once

// By these, headers of others ask whether it has been included.
#define __DRIVER_TYPES_H__
#define __CUDA_RUNTIME_API_H__

#include "cpu_device/qualifiers.h"
#include "cpu_device/runtime_api.h"
