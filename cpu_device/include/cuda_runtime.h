// The CPU device's stand-in for CUDA's header of the same name: what a .cu file sees.
#pragma once

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
