// The CPU device's stand-in for CUDA's header of the same name.
#pragma once

#include "cpu_device/qualifiers.h"
#include "cpu_device/runtime_api.h"
