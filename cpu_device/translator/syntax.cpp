#include "syntax.hpp"

#include <algorithm>

#include "translate.hpp"

namespace cpu_device {
namespace {

bool is_identifier(const Token& token) { return token.kind == TokenKind::kIdentifier; }

bool is_class_key(const Token& token) {
  return is_one_of(token, "struct", "class", "union", "enum");
}

/// A word that an expression follows.
bool precedes_expression(const Token& token) {
  return is_one_of(token, "return", "co_return", "else", "do", "if", "constexpr", "while", "for",
                   "switch", "case", "throw", "and", "or", "not");
}

bool opens(const Token& token) { return is_one_of(token, "(", "[", "{"); }
bool closes(const Token& token) { return is_one_of(token, ")", "]", "}"); }

/// Whether the token in front of `i` ends something that is called or qualified there, such as the
/// f of f(x); not the if of if (x), nor the (void) of a cast.
bool continues_before(TokenSpan tokens, size_t i) {
  if (i > 0 && tokens[i - 1].is(")")) {
    i = partner(tokens, i - 1);
    if (i == kNone || i == 0 || !is_identifier(tokens[i - 1])) return false;
  }
  if (i == 0 || precedes_expression(tokens[i - 1])) return false;
  return is_identifier(tokens[i - 1]) || is_one_of(tokens[i - 1], "]", ">");
}

/// The first token of the name that ends at `last`; a macro may paste it together: a##b##_c.
size_t name_begin(TokenSpan tokens, size_t last) {
  while (last >= 2 && tokens[last - 1].is("##")) last -= 2;
  return last;
}

/// The name that `tokens`, one declarator up to its array bounds, declares: TYPE NAME or, after a
/// comma, NAME; also TYPE (*NAME).
std::string declared_name(TokenSpan tokens, bool needs_type, const Token& word) {
  const char* form = "expected __shared__ TYPE NAME[SIZE];";
  if (tokens.empty()) fail(word, form);
  size_t name = tokens.size() - 1;
  if (tokens[name].is(")")) {
    name = partner(tokens, name) + 1;
    if (!tokens[name].is("*")) fail(word, "shared memory cannot have an initialiser");
    while (tokens[name].is("*")) ++name;
  }
  const size_t begin = name_begin(tokens, name);
  if (!is_identifier(tokens[begin]) || (needs_type && begin == 0)) fail(word, form);
  return on_one_line(tokens.subspan(begin, name + 1 - begin));
}

/// Sets the names, and an extern declaration's type. `tokens` are those without storage classes and
/// attributes.
void read_declarators(SharedDeclaration& declaration, TokenSpan tokens, const Token& word) {
  size_t begin = 0;       // of the declarator
  size_t bounds = kNone;  // where its [...] begin
  for (size_t i = 0; i <= tokens.size(); ++i) {
    if (i == tokens.size() || tokens[i].is(",")) {
      const size_t end = std::min(i, bounds);
      const bool is_first = declaration.names.empty();
      declaration.names.push_back(
          declared_name(tokens.subspan(begin, end - begin), is_first, word));
      begin = i + 1;
      if (i < tokens.size()) bounds = kNone;
    } else if (opens(tokens[i]) || tokens[i].is("<")) {
      if (tokens[i].is("[")) bounds = std::min(bounds, i);
      i = partner(tokens, i);
    }
  }
  if (!declaration.is_extern) return;
  const bool is_array = declaration.names.size() == 1 && bounds != kNone &&
                        !tokens[bounds - 1].is(")") && tokens[bounds + 1].is("]");
  if (!is_array) fail(word, "expected extern __shared__ TYPE NAME[];");
  declaration.extern_type = on_one_line(tokens.first(name_begin(tokens, bounds - 1))) +
                            on_one_line(tokens.subspan(bounds + 2));
}

}  // namespace

void fail(const Token& token, const std::string& message) {
  throw TranslateError{token.line, token.column, message};
}

size_t partner(TokenSpan tokens, size_t from) {
  const std::string_view opening = "([{<", closing = ")]}>";
  const bool forward = opening.find(tokens[from].text) != opening.npos;
  const std::string_view entering = forward ? opening : closing;
  const std::string_view leaving = forward ? closing : opening;
  std::string awaited;  // the partners of the brackets entered, innermost last
  for (size_t i = from; i < tokens.size(); i += forward ? 1 : kNone) {
    if (tokens[i].text.size() != 1) continue;
    const char c = tokens[i].text[0];
    const bool in_angles = !awaited.empty() && (awaited.back() == '<' || awaited.back() == '>');
    if ((c == '<' || c == '>') && i != from && !in_angles) continue;  // a comparison
    if (c == ';' && in_angles) return kNone;
    if (const size_t kind = entering.find(c); kind != entering.npos) {
      awaited += leaving[kind];
    } else if (leaving.find(c) != leaving.npos) {
      if (c != awaited.back()) return kNone;
      awaited.pop_back();
      if (awaited.empty()) return i;
    }
  }
  return kNone;
}

size_t required_partner(TokenSpan tokens, size_t from) {
  const size_t other = partner(tokens, from);
  if (other == kNone) {
    const std::string bracket(tokens[from].text);
    fail(tokens[from], "expected a bracket that matches this '" + bracket + "'");
  }
  return other;
}

std::string on_one_line(TokenSpan tokens) {
  std::string result;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].text.find('\n') != std::string_view::npos) {
      fail(tokens[i], "expected a literal that ends on its line");
    }
    if (i > 0 && tokens[i - 1].text.end() != tokens[i].text.begin()) result += ' ';
    result += tokens[i].text;
  }
  return result;
}

// A kernel is a postfix expression, read here from its end: f, a::b<T>::f<U>, table[i], p->f, (f).
size_t kernel_begin(TokenSpan tokens, size_t open) {
  size_t i = open;
  while (true) {
    if (i > 0 && is_one_of(tokens[i - 1], ")", "]")) {
      i = required_partner(tokens, i - 1);
      if (tokens[i].is("(") && !continues_before(tokens, i)) return i;
      continue;
    }
    if (i > 0 && tokens[i - 1].is(">")) i = required_partner(tokens, i - 1);
    if (i > 0) i = name_begin(tokens, i - 1);
    if (i == open || !is_identifier(tokens[i]) || precedes_expression(tokens[i])) {
      fail(tokens[open], "expected a kernel in front of this '<<<'");
    }
    if (i > 0 && tokens[i - 1].is("template")) --i;
    const bool is_member = i > 0 && is_one_of(tokens[i - 1], ".", "->");
    const bool is_qualified = i > 0 && tokens[i - 1].is("::");
    if (is_member || is_qualified) --i;
    if (!is_member && !(is_qualified && continues_before(tokens, i))) return i;
  }
}

size_t config_end(TokenSpan tokens, size_t open) {
  int commas = 0;
  size_t angles = 0;  // a `<` may open template arguments or compare: later `>` tell
  for (size_t i = open + 1; i < tokens.size(); ++i) {
    const Token& token = tokens[i];
    const bool follows_separator = i == open + 1 || tokens[i - 1].is(",");
    if (opens(token)) {
      i = required_partner(tokens, i);
    } else if (closes(token) || token.is(";") || token.kind == TokenKind::kLaunch) {
      fail(token, "expected '>>>' before this to end the launch configuration");
    } else if (token.is("<")) {
      ++angles;
    } else if (token.is(",") && angles == 0) {
      if (follows_separator) fail(token, "expected a launch parameter in front of this ','");
      if (++commas == 4) {
        fail(token, "expected at most 4 launch parameters: grid, block, shared bytes, stream");
      }
    } else if (token.is(">")) {
      size_t run = 1;  // of `>`: the first ones close template argument lists
      while (i + run < tokens.size() && tokens[i + run].is(">")) ++run;
      if (run >= 3 && angles < run) {
        if (follows_separator) fail(token, "expected a launch parameter in front of this '>>>'");
        return i + run - 3;
      }
      angles -= std::min(angles, run);
      i += run - 1;
    }
  }
  fail(tokens[open], "expected '>>>' to end the launch configuration that begins here");
}

SharedDeclaration parse_shared(TokenSpan tokens, size_t head, size_t word, bool in_macro) {
  for (size_t i = head; i < word; ++i) {
    if (tokens[i].is(":")) head = i + 1;  // case 0: __shared__ ...
  }
  SharedDeclaration result;
  Tokens rest;
  bool has_class_key = false;
  size_t end = head;
  for (; end < tokens.size() && !tokens[end].is(";"); ++end) {
    const Token& token = tokens[end];
    if (closes(token)) fail(token, "expected ';' before this to end the shared declaration");
    if (token.is("=") || (token.is("{") && !has_class_key)) {
      fail(token, "shared memory cannot have an initialiser");
    }
    has_class_key = has_class_key || is_class_key(token);
    result.is_extern = result.is_extern || token.is("extern");

    const bool is_attribute = is_one_of(token, "alignas", "__align__", "__attribute__") &&
                              end + 1 < tokens.size() && tokens[end + 1].is("(");
    size_t last = is_attribute ? end + 1 : end;
    if (opens(tokens[last]) || token.is("<")) last = required_partner(tokens, last);
    const TokenSpan piece = tokens.subspan(end, last + 1 - end);
    if (is_attribute) {
      result.attributes.push_back(piece);
    } else if (is_one_of(token, "__shared__", "static", "extern")) {
      result.storage.push_back(piece);
    } else if (!token.is("[") || !piece[1].is("[")) {  // [[maybe_unused]] declares nothing
      rest.insert(rest.end(), piece.begin(), piece.end());
    }
    end = last;
  }
  if (end == tokens.size() && !in_macro) {
    fail(tokens[word], "expected ';' to end the shared declaration that begins here");
  }
  result.tokens = tokens.subspan(head, end - head);
  read_declarators(result, rest, tokens[word]);
  return result;
}

Scope scope_of(TokenSpan head) {
  const size_t size = head.size();
  const bool is_linkage = size >= 2 && head[size - 2].is("extern") &&
                          head[size - 1].kind == TokenKind::kLiteral;  // extern "C" {
  if (is_linkage) return Scope::kNamespace;
  bool is_class = false;
  for (size_t i = 0; i < size; ++i) {
    const Token& token = head[i];
    if (token.is("namespace")) return Scope::kNamespace;
    if (is_class && token.is(":")) return Scope::kClass;
    if (is_class && is_one_of(token, "=", "(")) return Scope::kFunction;  // struct S f() {
    if (is_class_key(token)) {
      is_class = true;
      while (i + 2 < size && is_identifier(head[i + 1]) && head[i + 2].is("(")) {
        i = std::min(partner(head, i + 2), size);  // struct alignas(8) S {
      }
    } else if (opens(token) || token.is("<")) {
      const size_t close = partner(head, i);  // template <class T>
      if (close != kNone) i = close;
    }
  }
  return is_class ? Scope::kClass : Scope::kFunction;
}

}  // namespace cpu_device
