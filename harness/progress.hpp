// A line that says what is going on, for work that takes longer than a second.
#pragma once

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>

namespace tile {

/// Shows "… what, 3 s" on stderr from the first second until it is destroyed. A terminal shows the
/// seconds and gets its line back at the end; a file or pipe gets one line.
class Progress {
 public:
  explicit Progress(std::string what) : what_(std::move(what)), thread_([this] { show(); }) {}
  ~Progress() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

 private:
  void show() {
    const bool terminal = isatty(STDERR_FILENO) == 1;
    std::unique_lock lock(mutex_);
    for (int second = 1;; ++second) {
      if (wake_.wait_for(lock, std::chrono::seconds(1), [this] { return done_; })) break;
      if (terminal) std::fprintf(stderr, "\r     … %s, %d s ", what_.c_str(), second);
      if (!terminal && second == 1) std::fprintf(stderr, "     … %s\n", what_.c_str());
      shown_ = terminal;
    }
    if (shown_) std::fprintf(stderr, "\r\033[K");
  }

  std::string what_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  bool shown_ = false;
  std::thread thread_;  // last: it uses the members above
};

}  // namespace tile
