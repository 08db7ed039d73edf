#include "translate.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "lexer.hpp"
#include "syntax.hpp"

namespace cpu_device {
namespace {

/// Text as the inside of a string literal.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return result;
}

// What a foreign program may ask for and the CPU device lacks altogether.
struct Missing {
  std::string_view spelling;
  const char* what;
};
// Beginnings of headers' names, and of the names in them.
struct MissingLibrary {
  std::string_view header, names;
  const char* what;
};
constexpr MissingLibrary kMissingLibraries[] = {{"cublas", "cublas", "cuBLAS"},
                                                {"cub/", "cub", "CUB"},
                                                {"cudnn", "cudnn", "cuDNN"},
                                                {"cufft", "cufft", "cuFFT"},
                                                {"curand", "curand", "cuRAND"},
                                                {"cusolver", "cusolver", "cuSOLVER"},
                                                {"cusparse", "cusparse", "cuSPARSE"},
                                                {"cuda/", "cuda", "libcu++"},
                                                {"thrust/", "thrust", "Thrust"},
                                                {"nvrtc", "nvrtc", "NVRTC"},
                                                {"nccl", "nccl", "NCCL"},
                                                {"nvml", "nvml", "NVML"},
                                                {"npp", "npp", "NPP"},
                                                {"mma.h", "wmma", "wmma"},
                                                {"nvtx3", "nvtx", "NVTX"},
                                                {"nvToolsExt", "nvtx", "NVTX"},
                                                {"cuda_gl_interop", "cudaGL", "OpenGL"},
                                                {"cudaGL", "cuGL", "OpenGL"}};
// Beginnings of identifiers.
constexpr Missing kMissingNames[] = {{"tex1D", "textures"},
                                     {"tex2D", "textures"},
                                     {"tex3D", "textures"},
                                     {"texCubemap", "textures"},
                                     {"surf1D", "surfaces"},
                                     {"surf2D", "surfaces"},
                                     {"surf3D", "surfaces"},
                                     {"cudaTexture", "textures"},
                                     {"cudaSurface", "surfaces"},
                                     {"cudaArray", "CUDA arrays"},
                                     {"cudaMallocArray", "CUDA arrays"},
                                     {"cudaGraphics", "OpenGL"},
                                     {"cudaGraph", "CUDA graphs"},
                                     {"cudaStreamBeginCapture", "CUDA graphs"},
                                     {"cudaIpc", "memory shared by processes"},
                                     {"cuInit", "driver API"},
                                     {"cuModuleLoad", "driver API"},
                                     {"cuLaunchKernel", "driver API"},
                                     {"cuCtxCreate", "driver API"}};

const Missing* find_missing(std::string_view name) {
  const auto found = std::ranges::find_if(
      kMissingNames, [name](const Missing& missing) { return name.starts_with(missing.spelling); });
  return found == std::end(kMissingNames) ? nullptr : found;
}

class Translator {
 public:
  /// `program` is null for a file of this project.
  Translator(std::string_view source, const ProgramFile* program)
      : source_(source), lexed_(lex(source)), program_(program) {}

  std::string run() {
    // First, so that it is known which libraries are missing.
    for (const Directive& directive : lexed_.directives) {
      if (directive.name() == "include" && program_) translate_include(directive.tokens);
    }
    translate_code();
    mark_called_kernels();
    for (const Directive& directive : lexed_.directives) {
      if (directive.name() == "define") translate_macro(directive.tokens);
      if (directive.name() == "pragma") translate_pragma(directive.tokens);
    }
    return apply_edits();
  }

 private:
  struct Edit {
    size_t begin, end;
    std::string text;
  };
  struct OpenScope {
    Scope kind = Scope::kNamespace;
    bool on_device = false;  // code that no host runs
  };

  size_t begin_of(const Token& token) const {
    return static_cast<size_t>(token.text.data() - source_.data());
  }
  size_t end_of(const Token& token) const { return begin_of(token) + token.text.size(); }

  void replace(size_t begin, size_t end, std::string text) {
    edits_.push_back({begin, end, std::move(text)});
  }

  /// The comments and newlines after each token, up to `end`. Where tokens move, these stay, so
  /// that later lines keep their place.
  std::string gaps(TokenSpan tokens, size_t end) const {
    std::string result;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const size_t next = i + 1 < tokens.size() ? begin_of(tokens[i + 1]) : end;
      const std::string_view gap = source_.substr(end_of(tokens[i]), next - end_of(tokens[i]));
      if (gap.find_first_not_of(" \t") != gap.npos) result += gap;
    }
    return result;
  }

  void translate_code() {
    std::vector<OpenScope> scopes;
    std::vector<std::vector<OpenScope>>
        at_if;  // the scopes at each open #if: its branches begin alike
    auto directive = lexed_.directives.begin();
    const TokenSpan tokens = lexed_.code;
    size_t head = 0;  // where the statement or declaration begins
    for (size_t i = 0; i < tokens.size(); ++i) {
      for (; directive != lexed_.directives.end() && directive->code_index <= i; ++directive) {
        const std::string_view name = directive->name();
        if (program_) name_arch(*directive, scopes.empty() ? OpenScope{} : scopes.back());
        if (name == "if" || name == "ifdef" || name == "ifndef") {
          at_if.push_back(scopes);
        } else if (!at_if.empty() && (name == "else" || name == "elif")) {
          scopes = at_if.back();
        } else if (!at_if.empty() && name == "endif") {
          at_if.pop_back();
        }
      }
      const bool in_function = !scopes.empty() && scopes.back().kind == Scope::kFunction;
      if (tokens[i].is("__global__")) note_kernel(tokens, i);
      if (tokens[i].is("(") && in_function) check_call(tokens, i);
      if (tokens[i].is("__shared__") && !in_function) {
        i = translate_global_shared(tokens, head, i);
      } else {
        if (program_) look_for_missing(tokens, i, !scopes.empty() && scopes.back().on_device);
        i = translate_token(tokens, head, i, /*in_macro=*/false);
      }
      if (tokens[i].is("{")) {
        scopes.push_back(open_scope(scopes, tokens.subspan(head, i - head)));
        if (!in_function && scopes.back().kind == Scope::kFunction && scopes.back().on_device) {
          refer_to_global_shared(tokens, head, i);
        }
      }
      if (tokens[i].is("}") && !scopes.empty()) scopes.pop_back();
      if (is_one_of(tokens[i], ";", "{", "}")) head = i + 1;
    }
  }

  static OpenScope open_scope(const std::vector<OpenScope>& around, TokenSpan head) {
    const auto has = [head](const char* word) {
      return std::ranges::any_of(head, [word](const Token& token) { return token.is(word); });
    };
    return {scope_of(head), (!around.empty() && around.back().on_device) || has("__global__") ||
                                (has("__device__") && !has("__host__"))};
  }

  /// nvcc compiles a file for the host and for the device, and __CUDA_ARCH__ tells which it is.
  /// Here it is compiled once: in functions of the device alone conditions are those of the device,
  /// and around functions those that compare and do not ask whether there is a device.
  void name_arch(const Directive& directive, OpenScope scope) {
    const auto asks = [](const Token& token) { return token.is("defined"); };
    const bool compares = (directive.name() == "if" || directive.name() == "elif") &&
                          std::ranges::none_of(directive.tokens, asks);
    if (!scope.on_device && (scope.kind == Scope::kFunction || !compares)) return;
    for (const Token& token : directive.tokens) {
      if (token.is("__CUDA_ARCH__")) replace(begin_of(token), end_of(token), "CPU_DEVICE_ARCH");
    }
  }

  /// The compiler is made to say it, so that code that is not compiled may use anything.
  void refuse(const Token& token, const std::string& what) {
    replace(begin_of(token), begin_of(token),
            "_Pragma(\"GCC error \\\"the CPU device has no " + what + "\\\"\") ");
  }

  /// A name of a library whose header the program has included.
  void look_for_library(TokenSpan tokens, size_t i) {
    for (const MissingLibrary& library : kMissingLibraries) {
      if (!program_->missing->contains(library.what)) continue;
      if (!tokens[i].text.starts_with(library.names)) continue;
      const bool is_whole = tokens[i].text.size() == library.names.size();
      const bool is_namespace = (i + 1 < tokens.size() && tokens[i + 1].is("::")) ||
                                (i > 0 && tokens[i - 1].is("namespace"));
      // What has a folder of headers has a namespace.
      if (is_whole ? is_namespace : library.header.back() != '/') {
        return refuse(tokens[i], library.what);
      }
    }
  }

  void look_for_missing(TokenSpan tokens, size_t i, bool on_device) {
    const Token& token = tokens[i];
    if (token.kind == TokenKind::kLaunch && on_device) {
      refuse(tokens[kernel_begin(tokens, i)], "launches from kernels");
    }
    if (token.kind != TokenKind::kIdentifier) return;
    if (on_device && is_one_of(token, "asm", "__asm__", "__asm")) refuse(token, "inline PTX");
    if (const Missing* missing = find_missing(token.text)) refuse(token, missing->what);
    look_for_library(tokens, i);
  }

  /// `extern __shared__ TYPE NAME[];` outside of functions: a pointer by another name for the one
  /// to the arena, where the dynamic part begins. Without extern, the struct of the declaration;
  /// the functions that use its names declare the references.
  size_t translate_global_shared(TokenSpan tokens, size_t head, size_t word) {
    const char* inside = "declare shared memory inside the kernel that uses it";
    if (!program_) fail(tokens[word], inside);
    const SharedDeclaration shared = parse_shared(tokens, head, word, /*in_macro=*/false);
    if (!shared.is_extern) {
      const std::string references = translate_shared(shared, tokens[word], true);
      for (size_t i = 0; i < shared.names.size(); ++i) global_shared_[shared.names[i]] = references;
      return static_cast<size_t>(shared.tokens.data() - tokens.data()) + shared.tokens.size();
    }
    const size_t end = end_of(shared.tokens.back());
    replace(begin_of(shared.tokens.front()), end,
            "CPU_DEVICE_DYNAMIC_SHARED(" + shared.names[0] + ", " + shared.extern_type + ")" +
                gaps(shared.tokens, end));
    return static_cast<size_t>(shared.tokens.data() - tokens.data()) + shared.tokens.size();
  }

  /// The body of the function that begins at `head` opens at `open`.
  void refer_to_global_shared(TokenSpan tokens, size_t head, size_t open) {
    if (global_shared_.empty()) return;
    const size_t end = std::min(partner(tokens, open), tokens.size());
    std::set<std::string> references;  // one for all names of a declaration
    for (size_t i = head; i < end; ++i) {
      const auto shared = global_shared_.find(std::string(tokens[i].text));
      if (shared == global_shared_.end()) continue;
      if (i < open) return;  // a parameter has the name
      references.insert(shared->second);
    }
    for (const std::string& text : references) {
      replace(end_of(tokens[open]), end_of(tokens[open]), text + ";");
    }
  }

  /// `tokens` begin with `# define NAME`.
  void translate_macro(TokenSpan tokens) {
    if (tokens.size() < 4) return;
    const bool has_parameters = tokens[3].is("(") && tokens[2].text.end() == tokens[3].text.begin();
    const size_t body = has_parameters ? required_partner(tokens, 3) + 1 : 3;
    tokens = tokens.subspan(body);
    size_t head = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (program_ && tokens[i].kind == TokenKind::kIdentifier) look_for_library(tokens, i);
      i = translate_token(tokens, head, i, /*in_macro=*/true);
      if (i < tokens.size() && is_one_of(tokens[i], ";", "{", "}")) head = i + 1;
    }
  }

  /// Translates what begins or is marked at token `i`, in the statement that begins at `head`.
  /// Returns the last token that is done.
  size_t translate_token(TokenSpan tokens, size_t head, size_t i, bool in_macro) {
    const bool is_operator = i > 0 && tokens[i - 1].is("operator");  // operator<< <T>
    if (tokens[i].kind == TokenKind::kLaunch && !is_operator) {
      translate_launch(tokens, i);
    } else if (tokens[i].is("__shared__")) {
      const SharedDeclaration shared = parse_shared(tokens, head, i, in_macro);
      translate_shared(shared, tokens[i]);
      return static_cast<size_t>(shared.tokens.data() - tokens.data()) + shared.tokens.size();
    } else if (tokens[i].is("__noinline__") && (i < 2 || !tokens[i - 2].is("__attribute__")) &&
               (i < 3 || !tokens[i - 3].is("__attribute__"))) {
      replace(begin_of(tokens[i]), end_of(tokens[i]), "__attribute__((noinline))");
    } else if (program_ && is_one_of(tokens[i], "cudaLaunchKernel", "cudaLaunchCooperativeKernel",
                                     "cudaLaunchKernelExC")) {
      keep_type_of_kernel(tokens, i);
    } else if (tokens[i].is("_Pragma") && i + 3 < tokens.size() && tokens[i + 3].is(")")) {
      const std::string_view text = tokens[i + 2].text;
      if (text.starts_with("\"unroll") || text.starts_with("\"nounroll")) {
        erase(tokens.subspan(i, 4));
      }
    }
    return i;
  }

  /// The kernel that is declared at this `__global__`, if its name is no macro's.
  void note_kernel(TokenSpan tokens, size_t i) {
    const Token* name = nullptr;
    std::string cluster;
    size_t end = kNone;  // of its parameters
    while (++i < tokens.size() && !is_one_of(tokens[i], "{", ";", "=", "__global__", "template")) {
      const bool is_word = tokens[i].kind == TokenKind::kIdentifier;
      size_t open = i + 1;
      if (is_word && open < tokens.size() && tokens[open].is("<")) open = after(tokens, open);
      if (open >= tokens.size() || !tokens[open].is("(")) continue;
      const size_t close = partner(tokens, open);
      if (close == kNone) return;
      if (tokens[i].is("__cluster_dims__")) {
        cluster = on_one_line(tokens.subspan(open, close + 1 - open));
      }
      // __launch_bounds__(256) is no name.
      if (is_word && !tokens[i].text.starts_with("__")) {
        name = &tokens[i];
        end = close;
      }
      i = close;
    }
    if (!name) return;
    kernels_[name->text].ends.push_back(end_of(tokens[end]));
    if (!cluster.empty()) kernels_[name->text].cluster = cluster;
  }

  /// The token after the bracket's partner, or kNone.
  static size_t after(TokenSpan tokens, size_t bracket) {
    const size_t other = partner(tokens, bracket);
    return other == kNone ? kNone : other + 1;
  }

  /// A statement that calls a kernel as if it were a function, its arguments in the parentheses at
  /// `open`, must not compile. Which of the functions of that name it calls only the compiler
  /// knows: the kernels are made noexcept, as no other function of that name is likely to be.
  void check_call(TokenSpan tokens, size_t open) {
    size_t name = open - 1;  // a function's body has begun, so there are tokens in front
    if (tokens[name].is(">")) {
      name = partner(tokens, name);
      if (name == kNone || name == 0) return;
      --name;
    }
    const auto kernel = kernels_.find(tokens[name].text);
    if (kernel == kernels_.end()) return;
    if (is_one_of(tokens[name - 1], ".", "->")) return;
    const size_t begin = kernel_begin(tokens, open);
    const size_t end = after(tokens, open);
    // The standard library has functions that are noexcept; `swap` is often called without std::.
    if (tokens[begin].is("std") || kernel->first == "swap") return;
    if (end >= tokens.size() || !tokens[end].is(";") || !begins_statement(tokens, begin)) return;
    const TokenSpan call = tokens.subspan(begin, end - begin);
    const bool is_plain = std::ranges::none_of(call, [](const Token& token) {
      return token.kind == TokenKind::kLaunch || token.text.find('\n') != token.text.npos;
    });
    const bool has_directive =
        std::ranges::any_of(lexed_.directives, [begin, end](const Directive& directive) {
          return directive.code_index > begin && directive.code_index <= end;
        });
    if (!is_plain || has_directive) return;
    kernel->second.is_called = true;
    const std::string text(kernel->first);
    replace(begin_of(tokens[begin]), begin_of(tokens[begin]),
            "{ static_assert(!noexcept(" + on_one_line(call) + "), \"" + text +
                " is a kernel, which has to be launched: " + text +
                "<<<blocks, threads>>>(...)\"); ");
    replace(end_of(tokens[end]), end_of(tokens[end]), " }");
  }

  static bool begins_statement(TokenSpan tokens, size_t i) {
    const Token& before = tokens[i - 1];
    if (!before.is(")")) return is_one_of(before, ";", "{", "}", "else", "do");
    const size_t open = partner(tokens, i - 1);
    return open != kNone && open > 0 &&
           is_one_of(tokens[open - 1], "if", "constexpr", "for", "while");
  }

  void mark_called_kernels() {
    for (const auto& [name, kernel] : kernels_) {
      for (const size_t end : kernel.ends) {
        if (kernel.is_called) replace(end, end, " noexcept");
      }
    }
  }

  /// cudaLaunchKernel((void*)kernel, …) without the cast, because the kernel's type tells what its
  /// arguments are.
  void keep_type_of_kernel(TokenSpan tokens, size_t i) {
    size_t begin = i + 2;                       // of the cast, in parentheses; const void* as well
    if (tokens[i].is("cudaLaunchKernelExC")) {  // its second argument
      while (begin < tokens.size() && !is_one_of(tokens[begin], ",", ";")) ++begin;
      ++begin;
    }
    size_t end = begin;
    if (end + 3 >= tokens.size() || !tokens[i + 1].is("(") || !tokens[end].is("(")) return;
    while (end < tokens.size() && !tokens[end].is(")")) ++end;
    const TokenSpan cast = tokens.subspan(begin, end + 1 - begin);
    if (end < tokens.size() && cast.size() >= 4 && cast[cast.size() - 3].is("void") &&
        cast[cast.size() - 2].is("*")) {
      erase(cast);
    }
  }

  // kernel<<<config>>>(arguments) becomes
  //     launcher(KernelName{...}, call, find, Config(config))(arguments)
  // `call` and `find` are generic lambdas: a kernel template cannot be passed itself. They stand on
  // the line of the name, where the kernel is called as far as debug information knows.
  void translate_launch(TokenSpan tokens, size_t open) {
    const size_t begin = kernel_begin(tokens, open);
    const size_t close = config_end(tokens, open);
    const size_t paren = close + 3;
    if (paren >= tokens.size() || !tokens[paren].is("(")) {
      fail(tokens[close], "expected '(' and the kernel's arguments after this '>>>'");
    }
    const size_t end = required_partner(tokens, paren);

    const TokenSpan kernel_tokens = tokens.subspan(begin, open - begin);
    const std::string kernel = on_one_line(kernel_tokens);
    const std::string call =
        "[&](auto&... cpu_device_args) { " + kernel + "(cpu_device_args...); }";
    const std::string pointer = "::cpu_device::kernel_pointer(" + kernel + ", cpu_device_type)";
    const std::string find = "[&](auto cpu_device_type) { if constexpr (requires { " + pointer +
                             "; }) return " + pointer + "; else return nullptr; }";
    replace(begin_of(tokens[begin]), end_of(tokens[open]),
            "::cpu_device::launcher(::cpu_device::KernelName{\"" + escaped(kernel) +
                "\", __FILE__, __LINE__}, " + call + ", " + find + ", " +
                gaps(kernel_tokens, begin_of(tokens[open])) + "::cpu_device::Config(");

    const TokenSpan arguments = tokens.subspan(paren + 1, end - paren - 1);
    // Where the kernel's parameters are deduced, NULL would be a number.
    for (size_t i = 0; i < arguments.size(); ++i) {
      const bool is_whole = (i == 0 || arguments[i - 1].is(",")) &&
                            (i + 1 == arguments.size() || arguments[i + 1].is(","));
      if (is_whole && arguments[i].is("NULL")) {
        replace(begin_of(arguments[i]), end_of(arguments[i]), "nullptr");
      }
    }
    const std::string cluster = cluster_of(kernel_tokens);
    replace(begin_of(tokens[close]), end_of(tokens[paren]),
            ")" + cluster + ")" + gaps(tokens.subspan(close, 3), begin_of(tokens[paren])) + "(");
  }

  /// What a launch of a kernel with __cluster_dims__ adds to its configuration.
  std::string cluster_of(TokenSpan kernel) const {
    for (const Token& token : kernel) {
      if (token.is("<")) break;
      const auto known = kernels_.find(token.text);
      if (known != kernels_.end() && !known->second.cluster.empty()) {
        return ".with_cluster" + known->second.cluster;
      }
    }
    return {};
  }

  /// Returns the references to what is declared, which follow it unless it is outside of functions.
  std::string translate_shared(const SharedDeclaration& shared, const Token& word,
                               bool is_global = false) {
    const Token& first = shared.tokens.front();
    const Token& last = shared.tokens.back();
    const std::string type =
        "cpu_device_shared_" + std::to_string(word.line) + "_" + std::to_string(word.column);
    std::string names, attributes;
    for (const std::string& name : shared.names) {
      names += (names.empty() ? "" : ", ") + name;
    }
    for (const TokenSpan attribute : shared.attributes) attributes += on_one_line(attribute) + " ";
    const std::string where = "(::cpu_device::SharedName{\"" + names + "\", __FILE__, __LINE__})";

    if (shared.is_extern) {
      // The alignment may be given by a type or by several attributes: an empty struct has it.
      std::string text, alignment = "0";
      if (!attributes.empty()) {
        text = "struct " + attributes + type + " {}; ";
        alignment = "alignof(" + type + ")";
      }
      text += "[[maybe_unused]] auto* const " + names + " = ::cpu_device::dynamic_shared<" +
              shared.extern_type + ", " + alignment + ">" + where;
      replace(begin_of(first), end_of(last), text + gaps(shared.tokens, end_of(last)));
      return {};
    }
    // Attributes go to the front, where they hold for all names.
    replace(begin_of(first), begin_of(first), "struct " + type + " { " + attributes);
    for (const TokenSpan words : shared.storage) erase(words);
    for (const TokenSpan attribute : shared.attributes) erase(attribute);
    std::string references;
    for (size_t i = 0; i < shared.names.size(); ++i) {
      const std::string& name = shared.names[i];
      references += "; [[maybe_unused]] auto& " + name + " = ::cpu_device::shared_array<" +
                    std::to_string(i) + ">(::cpu_device::shared<" + type + ">" + where + "." +
                    name + ", \"" + name + "\")";
    }
    replace(end_of(last), end_of(last), is_global ? "; }" : "; }" + references);
    return references;
  }

  void erase(TokenSpan tokens) {
    const size_t end = end_of(tokens.back());
    replace(begin_of(tokens.front()), end, gaps(tokens, end));
  }

  // Only an optimisation, and not always one on a CPU: `GCC unroll 16` made a register tile up to
  // twice as fast with g++ 12 -O2 and half as fast with -O3. Nor may its count depend on a
  // template.
  void translate_pragma(TokenSpan tokens) {
    if (tokens.size() > 2 && is_one_of(tokens[2], "unroll", "nounroll")) erase(tokens);
  }

  void translate_include(TokenSpan tokens) {
    if (tokens.size() < 3 || tokens[2].kind != TokenKind::kLiteral) return;
    // "name", or <name and a token for its >
    const std::string_view text = tokens[2].text;
    const bool is_quoted = text.starts_with('"');
    const std::string header =
        program_->find_include(text.substr(1, text.size() - (is_quoted ? 2 : 1)), is_quoted);
    if (header.empty()) {
      for (const MissingLibrary& library : kMissingLibraries) {
        if (!text.substr(1).starts_with(library.header)) continue;
        program_->missing->insert(library.what);
        replace(begin_of(tokens[0]), end_of(tokens.back()), "");
        return;
      }
      return;
    }
    replace(begin_of(tokens[2]), end_of(tokens[is_quoted ? 2 : 3]), '"' + escaped(header) + '"');
  }

  std::string apply_edits() {
    std::ranges::stable_sort(edits_, {}, &Edit::begin);
    std::string result;
    result.reserve(source_.size() + source_.size() / 4);
    size_t copied = 0;
    for (const Edit& edit : edits_) {
      if (edit.begin < copied) continue;  // in a directive among tokens that moved
      result += source_.substr(copied, edit.begin - copied);
      result += edit.text;
      copied = edit.end;
    }
    result += source_.substr(copied);
    return result;
  }

  std::string_view source_;
  Lexed lexed_;
  const ProgramFile* program_;
  std::vector<Edit> edits_;
  struct Kernel {
    std::vector<size_t> ends;  // of the parameters, in the source, of each declaration
    bool is_called = false;    // like a function, so that the declarations need noexcept
    std::string cluster;       // the argument of its __cluster_dims__
  };
  std::map<std::string_view, Kernel> kernels_;
  std::map<std::string, std::string> global_shared_;  // references, by name
};

std::string in_its_place(std::string_view source, std::string_view path,
                         const ProgramFile* program) {
  const std::string_view byte_order_mark = "\xef\xbb\xbf";
  if (source.starts_with(byte_order_mark)) source.remove_prefix(byte_order_mark.size());
  return "#line 1 \"" + escaped(path) + "\"\n" + Translator(source, program).run();
}

}  // namespace

std::string translate(std::string_view source, std::string_view path) {
  return "#include <cuda_runtime.h>\n" + in_its_place(source, path, nullptr);
}

std::string translate(std::string_view source, std::string_view path, const ProgramFile& file) {
  // Beside .cu files, nvcc leaves a program's sources to the host's compiler.
  const std::string included =
      file.is_header || !path.ends_with(".cu") ? "" : "#include <cpu_device/program.h>\n";
  return included + in_its_place(source, path, &file);
}

}  // namespace cpu_device
