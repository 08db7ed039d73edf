#include "program.hpp"

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "translate.hpp"

namespace cpu_device {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> read(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return {};
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in || text.bad()) return {};
  return text.str();
}

void write(const fs::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (!out) throw "cu2cpp: cannot write " + path.string();
}

class ProgramTranslator {
 public:
  ProgramTranslator(const std::string& output, const ProgramOptions& options)
      : headers_(output + ".headers"), options_(options) {
    fs::remove_all(headers_);
    fs::create_directories(headers_);
  }

  /// Returns the text that takes the file's place.
  std::string translation(const fs::path& path, bool is_header) {
    const std::optional<std::string> source = read(path);
    if (!source) throw "cu2cpp: cannot read " + path.string();
    read_.push_back(path.string());
    const IncludeFinder find = [&](std::string_view name, bool is_quoted) {
      return header(path.parent_path(), name, is_quoted);
    };
    try {
      return translate(*source, path.string(), {is_header, find, &missing_});
    } catch (const TranslateError& error) {
      throw path.string() + ":" + std::to_string(error.line) + ":" + std::to_string(error.column) +
          ": error: " + error.message;
    }
  }

  const std::vector<std::string>& files_read() const { return read_; }

 private:
  /// The translated header, or nothing if it is not the program's.
  std::string header(const fs::path& folder, std::string_view name, bool is_quoted) {
    std::error_code ignored;
    std::vector<fs::path> places(options_.folders.begin(), options_.folders.end());
    if (is_quoted) places.insert(places.begin(), folder);
    if (fs::exists(fs::path(options_.device_headers) / name, ignored)) return {};
    for (const fs::path& place : places) {
      const fs::path path = (place / name).lexically_normal();
      if (!fs::is_regular_file(path, ignored)) continue;
      auto [known, is_new] = translated_.try_emplace(fs::absolute(path).lexically_normal());
      if (is_new) {
        // Told apart by number: headers in several folders may have one name.
        const std::string number = std::to_string(translated_.size());
        known->second = headers_ / (number + "_" + path.filename().string());
        write(known->second, translation(path, true));
      }
      return fs::absolute(known->second).string();
    }
    return {};
  }

  fs::path headers_;
  const ProgramOptions& options_;
  std::map<fs::path, fs::path> translated_;
  std::vector<std::string> read_;
  std::set<std::string> missing_;
};

/// A path as a depfile has it.
std::string escaped(const std::string& path) {
  std::string result;
  for (const char c : path) {
    if (c == ' ' || c == '#' || c == '\\') result += '\\';
    result += c == '$' ? "$$" : std::string(1, c);
  }
  return result;
}

}  // namespace

void translate_program(const std::string& input, const std::string& output,
                       const std::string& depfile, const ProgramOptions& options) {
  ProgramTranslator translator(output, options);
  write(output, translator.translation(input, false));
  std::string dependencies = escaped(output) + ":";
  for (const std::string& path : translator.files_read()) dependencies += " " + escaped(path);
  write(depfile, dependencies + "\n");
}

}  // namespace cpu_device
