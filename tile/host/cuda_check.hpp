#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <string_view>
#include <vector>

#include "tile/host/status.hpp"

namespace tile {

/// What a CUDA runtime call returned, as a Status. A failure's message gives `call`, the error's
/// name and text, and on the CPU device the report of what went wrong; the runtime's last error is
/// cleared, so that the next launch is not blamed for it.
Status cuda_status(cudaError_t error, std::string_view call);

/// To be called right after `kernel<<<...>>>(...)`, which itself returns nothing: the status of
/// that launch (CUDA Programming Guide, "Error Checking"). A launch is refused here for its grid,
/// its block or its shared memory; what fails while it runs is reported by synchronize_status().
/// `kernel` is a literal.
Status launch_status(std::string_view kernel);

/// The names passed to this thread's launch_status() since the last call, at most the first 16.
std::vector<std::string> take_reported_launches();

/// Waits until all work in `stream` is done. Fails if any of it failed.
Status synchronize_status(cudaStream_t stream);

}  // namespace tile

/// Returns a failed Status from the enclosing function when a CUDA runtime call fails.
#define TILE_RETURN_IF_CUDA_ERROR(call)                                   \
  do {                                                                    \
    if (const cudaError_t tile_error = (call); tile_error != cudaSuccess) \
      return ::tile::cuda_status(tile_error, #call);                      \
  } while (false)
