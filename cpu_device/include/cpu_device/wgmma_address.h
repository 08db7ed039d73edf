// What a wgmma descriptor needs of an address (tile/ptx/wgmma_descriptor.cuh).
#pragma once

#include <cstdint>

namespace cpu_device {

/// From the beginning of the block's shared memory. Of what is not there the launch ends.
std::uint32_t wgmma_address(const void* shared);

}  // namespace cpu_device
