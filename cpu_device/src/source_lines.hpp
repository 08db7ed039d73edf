// From addresses in the program's text to lines of its source. Only a report asks, so that the time
// does not matter.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace cpu_device {

/// Where a thread or the host is: of its calls, given by their return addresses, the innermost in
/// the source of a program, not in a header of the system or the CPU device. Says
/// "02_matmul/step3_shared_tile.cu:42", and of a helper ", called at " and the line of its caller
/// in a .cu file. "?" if there is no line.
std::string source_of(std::span<const void* const> calls);
/// The same of the function that asks.
std::string source_of_caller();

/// A path as the reader knows it: in this project, or in the folder where the program was started.
std::string shortened(std::string_view file);

}  // namespace cpu_device
