// The CPU device's stand-in for CUDA's header of the same name: what a .cu file sees.
#pragma once

// By these, headers of others ask whether it has been included.
#define __CUDA_RUNTIME_H__
#define __DRIVER_TYPES_H__
#define __CUDA_RUNTIME_API_H__

#include "cpu_device/atomics.h"
#include "cpu_device/builtins.h"
#include "cpu_device/launch.h"
#include "cpu_device/math.h"
#include "cpu_device/memory.h"
#include "cpu_device/qualifiers.h"
#include "cpu_device/runtime_api.h"
#include "cpu_device/runtime_templates.h"
#include "cpu_device/shared.h"
#include "cpu_device/sync.h"
#include "cpu_device/vector_types.h"
