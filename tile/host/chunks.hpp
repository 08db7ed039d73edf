// Whether rows can be moved in chunks of 16 bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tile/host/dtype.hpp"
#include "tile/host/status.hpp"

namespace tile {

/// Whether the rows of a matrix consist of aligned chunks of 16 bytes, which one instruction can
/// load or store. If not, the Status names the argument in the way: "cols", `name` or `ld_name`.
inline Status check_chunks(DType type, std::int64_t cols, std::string_view name, const void* data,
                           std::string_view ld_name, std::int64_t ld) {
  const auto width = static_cast<std::int64_t>(16 / size_bytes(type));
  if (cols % width != 0) {
    return unsupported("cols", std::to_string(cols) + " do not fill chunks of 16 bytes");
  }
  if (ld % width != 0) {
    return unsupported(ld_name, std::to_string(ld) + " is no multiple of 16 bytes");
  }
  if (reinterpret_cast<std::uintptr_t>(data) % 16 != 0) {
    return unsupported(name, "is not aligned to 16 bytes");
  }
  return {};
}

/// Whether each row begins alike in two matrices: at the same distance from a multiple of 16 bytes.
/// If not, the Status names the argument of the second matrix that is in the way.
inline Status check_alike(DType type, const void* data, std::int64_t ld, std::string_view name,
                          const void* other, std::string_view ld_name, std::int64_t other_ld,
                          std::string_view first = "x") {
  const auto width = static_cast<std::int64_t>(16 / size_bytes(type));
  if ((ld - other_ld) % width != 0) {
    return unsupported(ld_name, std::to_string(other_ld) + " and " + std::to_string(ld) +
                                    " differ by no multiple of 16 bytes");
  }
  const auto bits =
      reinterpret_cast<std::uintptr_t>(data) ^ reinterpret_cast<std::uintptr_t>(other);
  if (bits % 16 != 0) return unsupported(name, std::string("begins otherwise than ").append(first));
  return {};
}

}  // namespace tile
