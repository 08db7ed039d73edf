// The fence between the two ways to shared memory (PTX ISA, "Proxies"), for
// tile/ptx/async_proxy.cuh. It takes compute capability 9.0. Only the check build needs it.
#pragma once

#include "cpu_device/site.h"

namespace cpu_device {

void fence_async_proxy(Site site = Site::here());

}  // namespace cpu_device
