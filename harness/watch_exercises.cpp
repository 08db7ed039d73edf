// ./tour exercise --watch: one exercise on the screen, checked whenever its file changes.
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <ostream>
#include <streambuf>
#include <string>
#include <utility>

#include "harness/exercises.hpp"
#include "harness/terminal.hpp"

namespace tile {
namespace {

/// Keys without the return key, and without being shown, where standard input is a terminal. It is
/// as it was afterwards, also when the program is ended by Ctrl-C.
class Keyboard {
 public:
  Keyboard() {
    if (tcgetattr(STDIN_FILENO, &before_) != 0) return;
    is_terminal_ = true;
    termios now = before_;
    now.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    tcsetattr(STDIN_FILENO, TCSANOW, &now);
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) std::signal(number, end);
  }
  ~Keyboard() { restore(); }

  /// The next key, waiting a quarter of a second for it: 0 if there is none.
  char key() {
    constexpr int kMilliseconds = 250;
    pollfd input{STDIN_FILENO, POLLIN, 0};
    const bool ready = poll(open_ ? &input : nullptr, open_ ? 1 : 0, kMilliseconds) > 0;
    char c = 0;
    if (!ready) return 0;
    open_ = read(STDIN_FILENO, &c, 1) == 1;
    return open_ ? c : '\0';
  }

  bool is_open() const { return open_; }

 private:
  static void restore() {
    if (is_terminal_) tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  static void end(int number) {
    restore();
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
  inline static termios before_{};
  inline static bool is_terminal_ = false;
  bool open_ = true;
};

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

class Screen {
 public:
  void clear() const {
    if (is_terminal_) std::cout << "\033[H\033[2J";
  }
  std::string coloured(std::string_view text, bool good) const {
    return tile::coloured(good ? "32" : "33", text);
  }

 private:
  bool is_terminal_ = isatty(STDOUT_FILENO) == 1 && variable("TERM") != "dumb";
};

/// Standard output, whose lines a terminal does not break within a word.
class Lines : public std::streambuf {
 public:
  /// What was written since this was last asked.
  std::string said() { return std::exchange(said_, {}); }

 protected:
  int_type overflow(int_type c) override {
    if (c != '\n') {
      line_ += static_cast<char>(c);
      return c;
    }
    std::cout << (isatty(STDOUT_FILENO) == 1 ? wrapped(line_, columns_of()) : line_) << "\n";
    said_ += std::exchange(line_, {}) + "\n";
    return c;
  }
  int sync() override {
    std::cout << std::flush;
    return 0;
  }

 private:
  std::string line_, said_;
};

class Watch {
 public:
  Watch(Exercises& exercises, const Exercise& first) : exercises_(exercises), now_(&first) {}

  void run() {
    check();
    for (;;) {
      switch (keyboard_.key()) {
        case 'n': next(); break;
        case 'h': say(exercises_.hint(*now_)); break;
        case 'l': list(); break;
        case 'c': check_all(); break;
        case 'x': reset(); break;
        case 'q': return;
        case 0: break;
        default: say(""); break;  // the keys again
      }
      // Text and not events: some file systems send none, and editors replace a file or write to
      // it. Its 2 KB are read from memory.
      if (text() != checked_) check();
    }
  }

 private:
  std::string text() const {
    std::ifstream file(now_->file);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  void title() {
    screen_.clear();
    out_ << now_->shown() << "   " << exercises_.count_solved() << "\n" << now_->path() << "\n\n";
  }

  void check() {
    title();
    out_ << "Checking …\n\n" << std::flush;
    checked_ = text();
    lines_.said();
    const ExerciseState state = exercises_.check(*now_, out_);
    const std::string said = lines_.said();
    const bool solved = state == ExerciseState::solved;
    const std::string verdict = screen_.coloured(words(state), solved);
    if (solved) {
      title();  // counts this one
      const Exercise* next = exercises_.next_after(now_);
      out_ << said << verdict << ".";
      if (exercises_.has_solution(*now_)) {
        out_ << " Compare with " << now_->chapter << "/solutions/" << now_->name << ".cu";
      }
      out_ << "\n"
           << (next ? "n for the next: " + next->shown() : std::string("All are solved.")) << "\n";
    } else {
      out_ << verdict << ".\n";
    }
    say("");
  }

  // Below what stands there, and the keys again.
  void say(const std::string& what) {
    out_ << "\n"
         << what << (what.empty() ? "" : "\n")
         << "n next   h hint   l list   c check all   x reset   q quit\n"
         << std::flush;
  }

  void next() {
    const Exercise* next = exercises_.next_after(now_);
    if (!next) return say("All are solved.\n");
    now_ = next;
    check();
  }

  void list() {
    screen_.clear();
    exercises_.list(out_);
    say("");
  }

  void check_all() {
    screen_.clear();
    out_ << "Checking all that have been changed …\n" << std::flush;
    exercises_.report("", out_);
    say("");
  }

  void reset() {
    out_ << "\nMake " << now_->path() << " what it was at first? What you wrote is lost. y or n\n"
         << std::flush;
    char answer = 0;
    while (answer == 0 && keyboard_.is_open()) answer = keyboard_.key();
    if (answer != 'y') return say("Not reset.\n");
    exercises_.reset(*now_);
    check();
  }

  Exercises& exercises_;
  const Exercise* now_;
  std::string checked_;
  Keyboard keyboard_;
  Screen screen_;
  Lines lines_;
  std::ostream out_{&lines_};
};

}  // namespace

int watch_exercises(Exercises& exercises, std::string_view id) {
  const Exercise* first = id.empty() ? exercises.next_after(nullptr) : &exercises.find(id);
  if (!first) {
    std::cout << "All are solved.\n";
    return 0;
  }
  Watch(exercises, *first).run();
  return 0;
}

}  // namespace tile
