// Translates a program that is not part of this project. Its kernels, launches and shared
// declarations may stand in headers, so those are translated as well.
#pragma once

#include <string>
#include <vector>

namespace cpu_device {

struct ProgramOptions {
  std::string device_headers;        // what is found here is the CPU device's, and is left alone
  std::vector<std::string> folders;  // where the program's headers are, after the folder of a file
};

/// Translates the source file `input` to `output`, and each header that it includes, directly or
/// not, into the folder `output`.headers, where the translations then include it from. Headers of
/// the system are not looked at. Writes what it has read to `depfile`, for Make or Ninja.
///
/// Throws std::string, a message with file and line if it is about the source.
void translate_program(const std::string& input, const std::string& output,
                       const std::string& depfile, const ProgramOptions& options);

}  // namespace cpu_device
