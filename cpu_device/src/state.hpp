// What the runtime's parts know of one another: the card, the errors, the limits of a kernel.
#pragma once

#include <string>

#include "cpu_device/launch.h"
#include "cpu_device/report.h"
#include "cpu_device/runtime_api.h"

namespace cpu_device {

/// The simulated card.
const cudaDeviceProp& properties();

/// Remembers an error for cudaGetLastError and returns it.
cudaError_t note(cudaError_t error);

/// CUDA's answer to an impossible configuration, and for the report the reason. The second is what
/// it says of clusters alone.
cudaError_t check_config(const Config& config, const void* function, std::string* why);
cudaError_t check_cluster(const Config& config, const void* function, std::string* why);

/// A launch or a copy that was not made. Returns the error.
cudaError_t refused(cudaError_t error, std::string report);
/// Of a kernel that is right, and still deserves a word.
void remark(std::string text);
/// A kernel that did not end well: for cudaGetLastError and for the next synchronisation.
void kernel_failed(cudaError_t error, std::string report);
/// The failure of an earlier kernel, once.
cudaError_t take_kernel_error();

void count_activity(const char* kernel, const Activity& more);

bool valid_stream(cudaStream_t stream);

/// Frees all memory that the program has allocated.
void release_all();

/// Bytes of dynamic shared memory that a launch of `function` may ask for.
size_t dynamic_shared_limit(const void* function);
/// Bytes of static and dynamic shared memory together: all that a block can have, if it was said
/// how many of them are dynamic, and otherwise 48 KiB. So an H200 has it.
size_t shared_limit(const void* function);
/// Whether a launch of `function` may have clusters of more than the portable size.
bool may_have_large_clusters(const void* function);

}  // namespace cpu_device
