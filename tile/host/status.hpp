#pragma once

#include <string>
#include <string_view>

namespace tile {

/// What kind of failure a Status reports.
enum class Code { ok, invalid_argument, unsupported, out_of_memory, device_error };

constexpr std::string_view to_string(Code code) {
  switch (code) {
    case Code::ok: return "ok";
    case Code::invalid_argument: return "invalid argument";
    case Code::unsupported: return "unsupported";
    case Code::out_of_memory: return "out of memory";
    case Code::device_error: return "device error";
  }
  return "unknown code";
}

/// The result of a call that can fail. A failure carries a message that names what was wrong.
/// Ignoring one is a compiler warning.
struct [[nodiscard]] Status {
  Code code = Code::ok;
  std::string message;

  bool ok() const { return code == Code::ok; }
};

/// A failed Status with the message "<subject>: <why>".
inline Status failure(Code code, std::string_view subject, std::string_view why) {
  return {code, std::string(subject).append(": ").append(why)};
}

/// The caller passed something wrong: invalid_argument("n", "-1 is negative").
inline Status invalid_argument(std::string_view argument, std::string_view why) {
  return failure(Code::invalid_argument, argument, why);
}

/// The call is right, but not here: unsupported("head_dim", "96 is not one of 16, 32, 64, 128").
inline Status unsupported(std::string_view what, std::string_view why) {
  return failure(Code::unsupported, what, why);
}

/// Memory ran out: out_of_memory("workspace", "needs 64 GiB, 12 GiB are free").
inline Status out_of_memory(std::string_view what, std::string_view why) {
  return failure(Code::out_of_memory, what, why);
}

/// The device reported a failure, or did damage: device_error("c", "written past its end").
inline Status device_error(std::string_view what, std::string_view why) {
  return failure(Code::device_error, what, why);
}

}  // namespace tile

/// Returns a failed Status from the enclosing function.
#define TILE_TRY(...)                                                                   \
  do {                                                                                  \
    if (::tile::Status tile_tried = (__VA_ARGS__); !tile_tried.ok()) return tile_tried; \
  } while (false)
