#include "kernel_name.hpp"

#include <cxxabi.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>
#include <vector>

namespace cpu_device {
namespace {

struct Symbol {
  const char* name = "";
  uintptr_t address = 0;
  size_t bytes = 0;
};

// The symbol of a function or variable in a program or library, of which these are the bytes. The
// dynamic linker knows only of those that can be seen from outside, which kernels cannot.
Symbol find_symbol(const char* bytes, uintptr_t address, int type) {
  const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(bytes);
  const auto* sections = reinterpret_cast<const ElfW(Shdr)*>(bytes + header->e_shoff);
  for (int s = 0; s < header->e_shnum; ++s) {
    if (sections[s].sh_type != SHT_SYMTAB) continue;
    const auto* symbols = reinterpret_cast<const ElfW(Sym)*>(bytes + sections[s].sh_offset);
    const char* names = bytes + sections[sections[s].sh_link].sh_offset;
    for (size_t i = 0; i < sections[s].sh_size / sizeof *symbols; ++i) {
      const auto& symbol = symbols[i];
      if ((symbol.st_info & 0xf) != type) continue;
      const bool is_there = type == STT_FUNC ? symbol.st_value == address
                                             : address - symbol.st_value < symbol.st_size;
      if (is_there) return {names + symbol.st_name, symbol.st_value, symbol.st_size};
    }
  }
  return {};
}

struct Place {
  uintptr_t address;
  std::string file;   // the program or library in which it is
  uintptr_t in_file;  // as its symbols have it
};

int look_in(dl_phdr_info* module, size_t, void* place) {
  auto* p = static_cast<Place*>(place);
  p->in_file = p->address - module->dlpi_addr;
  for (int i = 0; i < module->dlpi_phnum; ++i) {
    const auto& part = module->dlpi_phdr[i];
    if (part.p_type != PT_LOAD || p->in_file - part.p_vaddr >= part.p_memsz) continue;
    p->file = *module->dlpi_name ? module->dlpi_name : "/proc/self/exe";
    return 1;
  }
  return 0;
}

// "void matmul::(anonymous namespace)::tiles<float, 4>(float const*)", or no name.
Variable declaration_of(const void* address, int type) {
  Place place{reinterpret_cast<uintptr_t>(address), {}, 0};
  if (!address || dl_iterate_phdr(look_in, &place) == 0) return {};
  const int file = open(place.file.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  struct stat status {};
  fstat(file, &status);
  const auto bytes = static_cast<size_t>(status.st_size);
  void* const mapped = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file, 0);
  close(file);
  if (mapped == MAP_FAILED) return {};
  const Symbol symbol = find_symbol(static_cast<const char*>(mapped), place.in_file, type);
  Variable result{"", place.address - place.in_file + symbol.address, symbol.bytes};
  if (char* name = abi::__cxa_demangle(symbol.name, nullptr, nullptr, nullptr)) {
    result.name = name;
    std::free(name);
  } else if (type == STT_OBJECT) {
    result.name = symbol.name;  // as it is, outside of namespaces
  }
  munmap(mapped, bytes);
  return result;
}

struct Parts {
  std::string name;  // without namespaces
  std::vector<std::string> arguments;
};

std::string trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return std::string(text);
}

// Of a declaration, or of what stands in front of <<<.
Parts parts_of(std::string text) {
  constexpr std::string_view kNowhere = "(anonymous namespace)::";
  for (size_t at; (at = text.find(kNowhere)) != text.npos;) text.erase(at, kNowhere.size());
  Parts parts;
  int depth = 0;
  size_t begin = 0;  // of the name or the argument
  for (size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : '(';
    if (depth == 0 && c == '(') {
      if (parts.arguments.empty())
        parts.name = trimmed(std::string_view(text).substr(begin, i - begin));
      break;
    }
    if (depth == 0 && (c == ' ' || c == ':')) {
      begin = i + 1;
      parts = {};
    } else if (c == '<' || c == '(') {
      if (depth++ > 0) continue;
      parts = {trimmed(std::string_view(text).substr(begin, i - begin)), {}};
      begin = i + 1;
    } else if (c == '>' || c == ')' || (c == ',' && depth == 1)) {
      if (c != ',' && --depth > 0) continue;
      parts.arguments.push_back(trimmed(std::string_view(text).substr(begin, i - begin)));
      begin = i + 1;
    }
  }
  return parts;
}

// As everywhere in the project.
std::string word_for(const std::string& argument) {
  if (argument == "float") return "fp32";
  if (argument == "__half") return "fp16";
  if (argument == "__nv_bfloat16") return "bf16";
  return argument;
}

}  // namespace

std::string kernel_name(const KernelName& name, const void* function) {
  const Parts kernel = parts_of(declaration_of(function, STT_FUNC).name),
              source = parts_of(name.text);
  if (kernel.name.empty()) return name.text;
  const bool has_words =
      kernel.name == source.name && kernel.arguments.size() == source.arguments.size();
  std::string arguments;
  for (size_t i = 0; i < kernel.arguments.size(); ++i) {
    const std::string& value = kernel.arguments[i];
    if (!arguments.empty()) arguments += ", ";
    if (has_words && source.arguments[i] != value) arguments += source.arguments[i] + " = ";
    arguments += word_for(value);
  }
  return kernel.name + (arguments.empty() ? "" : "<" + arguments + ">");
}

Variable variable_at(const void* address) {
  Variable variable = declaration_of(address, STT_OBJECT);
  if (const size_t colon = variable.name.rfind(':'); colon != std::string::npos) {
    variable.name.erase(0, colon + 1);
  }
  return variable;
}

}  // namespace cpu_device
