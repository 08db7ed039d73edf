// The CUDA syntax in a sequence of tokens: brackets, kernels, launch configurations and shared
// declarations. Positions are indices of tokens.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lexer.hpp"

namespace cpu_device {

using TokenSpan = std::span<const Token>;

constexpr size_t kNone = static_cast<size_t>(-1);

template <class... Spellings>
bool is_one_of(const Token& token, Spellings... spellings) {
  return (token.is(spellings) || ...);
}

/// Throws TranslateError at `token`.
[[noreturn]] void fail(const Token& token, const std::string& message);

/// The other bracket of the pair (), [], {} or <> that the bracket at `from` belongs to; kNone if
/// it has none. Looks backward from a closing bracket. <> are those of a template argument list,
/// where a comparison stands in parentheses, as C++ wants it.
size_t partner(TokenSpan tokens, size_t from);

/// Like `partner`, but fails where there is none.
size_t required_partner(TokenSpan tokens, size_t from);

/// The tokens on one line: blanks and comments between them become one space. Fails for a literal
/// that spans lines.
std::string on_one_line(TokenSpan tokens);

/// The first token of the kernel in front of the `<<<` at `open`.
size_t kernel_begin(TokenSpan tokens, size_t open);

/// The first `>` of the `>>>` that ends the configuration opened by the `<<<` at `open`.
size_t config_end(TokenSpan tokens, size_t open);

/// `[extern] __shared__ TYPE NAME[SIZE], NAME...;`, its storage classes and attributes in any
/// order.
struct SharedDeclaration {
  TokenSpan tokens;  // without the `;`
  bool is_extern = false;
  std::vector<TokenSpan> storage;     // __shared__, static, extern
  std::vector<TokenSpan> attributes;  // alignas(16), __align__(16), __attribute__((aligned(16)))
  std::vector<std::string> names;
  std::string extern_type;  // of an element: extern __shared__ TYPE NAME[];
};

/// Reads the declaration that holds the `__shared__` at `word`; `head` is the first token of its
/// statement. A macro's body may leave the `;` to its user.
SharedDeclaration parse_shared(TokenSpan tokens, size_t head, size_t word, bool in_macro);

/// What a `{` opens.
enum class Scope { kNamespace, kClass, kFunction };

/// The scope opened by a `{`; `head` is what stands in front of it in its statement.
Scope scope_of(TokenSpan head);

}  // namespace cpu_device
