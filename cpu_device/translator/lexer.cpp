#include "lexer.hpp"

#include <string>
#include <utility>

namespace cpu_device {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_word(char c) {
  // Bytes above 127 belong to UTF-8 letters, which identifiers may contain.
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_' || c == '$' ||
         static_cast<unsigned char>(c) > 127;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  Lexed run() {
    bool at_line_start = true;
    while (skip_blanks_and_comments(/*stop_at_newline=*/false, at_line_start)) {
      if (peek() == '#' && at_line_start) {
        directive();
        at_line_start = true;
        continue;
      }
      at_line_start = false;
      const Token token = next();
      if (!dead_) lexed_.code.push_back(token);
    }
    return std::move(lexed_);
  }

 private:
  char peek(size_t ahead = 0) const {
    return position_ + ahead < source_.size() ? source_[position_ + ahead] : '\0';
  }

  bool at(std::string_view text) const { return source_.substr(position_).starts_with(text); }

  void advance(size_t count) {
    for (; count > 0 && position_ < source_.size(); --count) {
      if (source_[position_++] == '\n') {
        ++line_;
        line_begin_ = position_;
      }
    }
  }

  /// The length of a backslash with the newline that it removes, or 0.
  size_t splice() const { return at("\\\n") ? 2 : at("\\\r\n") ? 3 : 0; }

  /// False at the end of the source, or in front of a newline where it shall stop there.
  bool skip_blanks_and_comments(bool stop_at_newline, bool& saw_newline) {
    while (position_ < source_.size()) {
      if (const size_t length = splice()) {
        advance(length);
      } else if (at("//")) {
        while (position_ < source_.size() && peek() != '\n') {
          advance(splice() ? splice() : 1);
        }
      } else if (at("/*")) {
        const size_t end = source_.find("*/", position_ + 2);
        advance(end == source_.npos ? source_.size() : end + 2 - position_);
      } else if (peek() == '\n') {
        if (stop_at_newline) return false;
        saw_newline = true;
        advance(1);
      } else if (peek() == ' ' || peek() == '\t' || peek() == '\r' || peek() == '\f' ||
                 peek() == '\v') {
        advance(1);
      } else {
        return true;
      }
    }
    return false;
  }

  Token take(TokenKind kind, size_t length) {
    const Token token{kind, source_.substr(position_, length), line_,
                      static_cast<int>(position_ - line_begin_) + 1};
    advance(token.text.size());
    return token;
  }

  Token next() {
    if (is_digit(peek()) || (peek() == '.' && is_digit(peek(1)))) {
      return take(TokenKind::kNumber, number_length());
    }
    if (is_word(peek())) {
      size_t length = 1;
      while (is_word(peek(length))) ++length;
      const std::string_view word = source_.substr(position_, length);
      const bool is_raw_prefix =
          word == "R" || word == "LR" || word == "uR" || word == "UR" || word == "u8R";
      if (peek(length) == '"' && is_raw_prefix) {
        return take(TokenKind::kLiteral, length + raw_string_length(position_ + length));
      }
      return take(TokenKind::kIdentifier, length);
    }
    if (peek() == '"' || peek() == '\'') {
      return take(TokenKind::kLiteral, quoted_length(position_));
    }
    if (peek() == '<') return less_than();
    return take(TokenKind::kPunctuation, at("::") || at("->") || at("##") ? 2 : 1);
  }

  Token less_than() {
    size_t run = 1;
    while (peek(run) == '<') ++run;
    if (run == 1) return take(TokenKind::kPunctuation, peek(1) == '=' ? 2 : 1);
    if (run == 2) {
      size_t next = 2;
      while (peek(next) == ' ' || peek(next) == '\t') ++next;
      if (peek(next) == '<') return take(TokenKind::kLaunch, next + 1);
    }
    // A longer run is the mark of a merge conflict.
    return take(run == 3 ? TokenKind::kLaunch : TokenKind::kPunctuation, run);
  }

  /// A digit separator (1'000) does not open a character literal.
  size_t number_length() const {
    size_t length = 1;
    while (is_word(peek(length)) || peek(length) == '.' ||
           (peek(length) == '\'' && is_word(peek(length + 1)))) {
      ++length;
    }
    return length;
  }

  /// From the opening quote at `begin`; a literal that is not closed ends with its line.
  size_t quoted_length(size_t begin) const {
    size_t end = begin + 1;
    while (end < source_.size() && source_[end] != source_[begin] && source_[end] != '\n') {
      const size_t skipped = source_.substr(end).starts_with("\\\r\n") ? 3 : 2;
      end += source_[end] == '\\' ? skipped : 1;
    }
    const bool closed = end < source_.size() && source_[end] == source_[begin];
    return end + closed - begin;
  }

  size_t raw_string_length(size_t quote) const {
    const size_t open = source_.find('(', quote);
    const size_t longest_delimiter = 16;
    if (open == source_.npos || open - quote > longest_delimiter + 1) return quoted_length(quote);
    std::string closing = ")";
    closing += source_.substr(quote + 1, open - quote - 1);
    closing += '"';
    const size_t end = source_.find(closing, open);
    return (end == source_.npos ? source_.size() : end + closing.size()) - quote;
  }

  void directive() {
    Directive directive{{take(TokenKind::kPunctuation, 1)}, lexed_.code.size()};
    bool unused;
    while (skip_blanks_and_comments(/*stop_at_newline=*/true, unused)) {
      // <a/b's.h> is no place for a character literal.
      const bool is_path =
          directive.tokens.size() == 2 && peek() == '<' && directive.name().starts_with("include");
      const size_t path_end = is_path ? source_.find_first_of(">\n", position_) : 0;
      directive.tokens.push_back(is_path ? take(TokenKind::kLiteral, path_end - position_)
                                         : next());
    }
    if (!is_switched_off(directive)) lexed_.directives.push_back(std::move(directive));
  }

  /// Follows the conditionals that are decided by a constant; true for a directive inside a branch
  /// that is never compiled.
  bool is_switched_off(const Directive& directive) {
    const std::string_view name = directive.name();
    const bool was_dead = dead_;
    if (name == "if" || name == "ifdef" || name == "ifndef") {
      const std::string_view value =
          name == "if" && directive.tokens.size() == 3 ? directive.tokens[2].text : "";
      const bool never = value == "0" || value == "false";
      const bool always = value == "1" || value == "true";
      conditionals_.push_back({dead_, always});
      dead_ = dead_ || never;
    } else if (conditionals_.empty()) {
      return dead_;
    } else if (name == "else" || name.starts_with("elif")) {
      const Conditional& conditional = conditionals_.back();
      dead_ = conditional.outer_dead || conditional.always;
      return conditional.outer_dead;
    } else if (name == "endif") {
      dead_ = conditionals_.back().outer_dead;
      conditionals_.pop_back();
      return dead_;
    }
    return was_dead;
  }

  struct Conditional {
    bool outer_dead;  // it stands inside a branch that is switched off
    bool always;      // #if 1: its other branches are switched off
  };

  std::string_view source_;
  size_t position_ = 0;
  size_t line_begin_ = 0;
  int line_ = 1;
  bool dead_ = false;
  std::vector<Conditional> conditionals_;
  Lexed lexed_;
};

}  // namespace

Lexed lex(std::string_view source) { return Lexer(source).run(); }

}  // namespace cpu_device
