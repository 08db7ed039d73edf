// Splits a CUDA source into tokens, as a preprocessor sees it before any macro is expanded.
#pragma once

#include <string_view>
#include <vector>

namespace cpu_device {

enum class TokenKind { kIdentifier, kNumber, kLiteral, kPunctuation, kLaunch };

/// A piece of the source; `text` is a view into it. Line and column (in bytes) count from 1.
/// A literal is a string or character, without a prefix unless it is raw. kLaunch is `<<<`, or `<<
/// <` as some editors format it. Punctuation is one character, except for `::`, `->`, `##`, `<<`
/// and `<=`; every `>` stands alone because it may close a template argument list.
struct Token {
  TokenKind kind;
  std::string_view text;
  int line;
  int column;

  bool is(std::string_view spelling) const { return text == spelling; }
};

using Tokens = std::vector<Token>;

/// A preprocessor directive from its `#` to the end of its last line. `code_index` is the number of
/// code tokens that stand before it.
struct Directive {
  Tokens tokens;
  size_t code_index;

  std::string_view name() const { return tokens.size() > 1 ? tokens[1].text : ""; }
};

struct Lexed {
  Tokens code;
  std::vector<Directive> directives;
};

/// Never fails: what is wrong with a token is the compiler's to say. Comments are left out, and so
/// is everything that `#if 0`, `#if false` or the `#else` of `#if 1` and `#if true` switch off.
Lexed lex(std::string_view source);

}  // namespace cpu_device
