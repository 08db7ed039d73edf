// cu2cpp INPUT.cu OUTPUT.cpp: translates a CUDA source for the CPU device.
// cu2cpp --program HEADERS [-I DIR]… INPUT.cu OUTPUT.cpp DEPFILE: one of a program that is not part
// of this project, with its headers; HEADERS is the folder of the CPU device's own.
// Exit status: 0 translated, 1 the source has an error, 2 wrong use or a file that cannot be read
// or written. OUTPUT.cpp is always written anew, because build systems look at its time; if there
// is an error, it is removed.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "program.hpp"
#include "translate.hpp"

namespace {

int fail(int status, const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  return status;
}

/// An old translation must not outlive an error. What is no regular file, such as a terminal,
/// stays.
void remove_file(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) std::filesystem::remove(path, ignored);
}

int program(int argc, char** argv) {
  if (argc < 6)
    return fail(2, "usage: cu2cpp --program HEADERS [-I DIR]... INPUT.cu OUTPUT.cpp DEPFILE");
  cpu_device::ProgramOptions options{argv[2], {}};
  for (int i = 3; i < argc - 3; i += 2) options.folders.push_back(argv[i + 1]);
  const std::string output = argv[argc - 2];
  try {
    cpu_device::translate_program(argv[argc - 3], output, argv[argc - 1], options);
  } catch (const std::string& message) {
    remove_file(output);
    return fail(1, message);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "--program") return program(argc, argv);
  if (argc != 3) return fail(2, "usage: cu2cpp INPUT.cu OUTPUT.cpp");
  const std::string input = argv[1], output = argv[2];

  std::error_code ignored;
  if (std::filesystem::equivalent(input, output, ignored)) {
    return fail(2, "cu2cpp: " + output + " would overwrite its own source");
  }
  std::ifstream in(input, std::ios::binary);
  std::ostringstream source;
  source << in.rdbuf();
  if (!in || source.bad() || std::filesystem::is_directory(input, ignored)) {
    remove_file(output);
    return fail(2, "cu2cpp: cannot read " + input);
  }
  std::string translation;
  try {
    translation = cpu_device::translate(source.view(), input);
  } catch (const cpu_device::TranslateError& error) {
    remove_file(output);
    return fail(1, input + ":" + std::to_string(error.line) + ":" + std::to_string(error.column) +
                       ": error: " + error.message);
  }
  std::ofstream out(output, std::ios::binary);
  out << translation;
  out.close();
  if (!out) {
    remove_file(output);
    return fail(2, "cu2cpp: cannot write " + output);
  }
  return 0;
}
