// elect.sync (PTX ISA, "elect.sync"), for tile/ptx/elect.cuh. It takes compute capability 9.0: on a
// lesser card (Options::capability) it ends the launch.
#pragma once

#include "cpu_device/site.h"

namespace cpu_device {

/// Waits for all lanes of the warp. True in the lowest of them, as on an H200. It orders no memory.
bool elect_one(Site site = Site::here());

}  // namespace cpu_device
