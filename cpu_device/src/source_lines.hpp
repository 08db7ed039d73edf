// From addresses in the program's text to lines of its source. Only a report asks, so that the time
// does not matter.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cpu_device {

/// Where a thread is: the return addresses of its calls, the innermost first.
using Calls = std::vector<const void*>;

/// Where a thread or the host is: of its calls, given by their return addresses, the innermost in
/// the source of a program, not in a header of the system or the CPU device. Says
/// "02_matmul/step3_shared_tile.cu:42", and of a helper ", called at " and the line of its caller
/// in a .cu file. "?" if there is no line.
std::string source_of(std::span<const void* const> calls);
/// For each of them its innermost line in a .cu file, or without one its innermost line. Asks once
/// for all.
std::vector<std::string> kernel_lines_of(std::span<const Calls> all);
/// The same as source_of for the function that asks.
std::string source_of_caller();

/// A path as the reader knows it: in this project, or in the folder where the program was started.
std::string shortened(std::string_view file);
/// The folder of the project, with a slash at its end.
std::string project_folder();

}  // namespace cpu_device
