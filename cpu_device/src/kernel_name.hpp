// What reports call a kernel, or a variable of the program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "cpu_device/launch.h"

namespace cpu_device {

/// "scale<T = fp16, kPlain = true>": the source's words, and what its template arguments stand for
/// in `function`, if that is known. Without them, or for a pointer to a kernel: "scale<fp16,
/// true>".
std::string kernel_name(const KernelName& name, const void* function);

/// The variable of the program that holds the address, without namespaces; no name if none does.
struct Variable {
  std::string name;
  uintptr_t begin;
  size_t bytes;
};
Variable variable_at(const void* address);

}  // namespace cpu_device
