// What reports call a kernel.
#pragma once

#include <string>

#include "cpu_device/launch.h"

namespace cpu_device {

/// "scale<T = fp16, kPlain = true>": the source's words, and what its template arguments stand for
/// in `function`, if that is known. Without them, or for a pointer to a kernel: "scale<fp16,
/// true>".
std::string kernel_name(const KernelName& name, const void* function);

}  // namespace cpu_device
