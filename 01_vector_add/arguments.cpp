// What is refused, and by which words.
#include <string>

#include "vector_add.hpp"

namespace vector_add {
namespace {

// Whether [p, p + bytes) and [q, q + bytes) share some bytes but are not the same range.
bool overlap(const void* p, const void* q, std::uintptr_t bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(p);
  const auto second = reinterpret_cast<std::uintptr_t>(q);
  const std::uintptr_t apart = first < second ? second - first : first - second;
  return apart != 0 && apart < bytes;
}

}  // namespace

tile::Status validate(const Problem& problem, const Buffers& buffers) {
  TILE_TRY(tile::check_requirements(kTypes, {}, problem.type));
  if (problem.n < 0) return tile::invalid_argument("n", std::to_string(problem.n) + " is negative");
  const auto element = static_cast<std::int64_t>(tile::size_bytes(problem.type));
  if (problem.n > INT64_MAX / element) {
    return tile::invalid_argument("n", std::to_string(problem.n) + " elements overflow 64 bits");
  }
  if (problem.n == 0) return {};

  const struct {
    const char* name;
    const void* pointer;
  } arguments[] = {{"a", buffers.a}, {"b", buffers.b}, {"c", buffers.c}};
  for (const auto& argument : arguments) {
    if (!argument.pointer) return tile::invalid_argument(argument.name, "is null");
    if (reinterpret_cast<std::uintptr_t>(argument.pointer) % static_cast<std::uintptr_t>(element)) {
      return tile::invalid_argument(argument.name, "is not aligned to an element");
    }
  }
  const auto bytes = static_cast<std::uintptr_t>(problem.n * element);
  if (overlap(buffers.c, buffers.a, bytes)) {
    return tile::invalid_argument("c", "overlaps a without being a");
  }
  if (overlap(buffers.c, buffers.b, bytes)) {
    return tile::invalid_argument("c", "overlaps b without being b");
  }
  return {};
}

}  // namespace vector_add
