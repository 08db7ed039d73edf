// Turns CUDA C++ into C++ for the CPU device: kernel launches and `__shared__` declarations, the
// two things that a header cannot define away (CUDA C++ Programming Guide, "Execution
// Configuration" and "__shared__").
#pragma once

#include <functional>
#include <set>
#include <string>
#include <string_view>

namespace cpu_device {

/// What is wrong and where; line and column (in bytes) count from 1.
struct TranslateError {
  int line;
  int column;
  std::string message;
};

/// The path of the translated header that `#include "name"`, or `#include <name>`, stands for;
/// empty if the line is to stay.
using IncludeFinder = std::function<std::string(std::string_view name, bool is_quoted)>;

/// A file of a program that is not part of this project (program.hpp).
struct ProgramFile {
  bool is_header;
  IncludeFinder find_include;
  std::set<std::string>* missing;  // libraries that the program has included, and that do not exist
};

/// The translation of `source`. It includes cuda_runtime.h and then, after `#line 1 "path"`, holds
/// every line of the source in its place, so that debuggers and compilers speak of the original.
///
///     kernel<T><<<grid, block>>>(a, b);
///         a call of cpu_device::launcher (launch.h); also inside #define
///     kernel<T>(a, b);
///         the same after a static_assert, which fails if it does call a kernel
///     __shared__ float tile[32][33];
///         a struct, and a reference to its member in the block's arena (shared.h)
///     __shared__ float tile[32];
///         outside of functions: a struct, and the reference in each function that uses the name
///     extern __shared__ float rows[];
///         a pointer to the arena's dynamic part
///     #pragma unroll
///         an empty line
///
/// Throws TranslateError for a launch or a shared declaration that it cannot make out.
std::string translate(std::string_view source, std::string_view path);

/// The same for a file of another program. It includes what nvcc gives each program, unless it is a
/// header; its own headers are included translated; and where it uses what the CPU device lacks
/// altogether the compiler says so. Headers of libraries that do not exist are left out: a program
/// may use nothing of them.
std::string translate(std::string_view source, std::string_view path, const ProgramFile& file);

}  // namespace cpu_device
