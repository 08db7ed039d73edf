// Prints as JSON what chapter 07's Window and methods say: which keys are near and far for each
// query, which tiles have both, which tiles each part of a mask visits, and how far apart a
// rotation sees a query and a key. Kernels, tests and tables ask the same functions.
// drawings_07_windowed_rope.py compiles this and the chapter's method/tables.cpp.
//
//     print_windows tiles QUERY_TILE KEY_TILE QUERIES KEYS LEFT RIGHT WINDOW
//     print_windows distances WINDOW LENGTH METHOD FACTOR
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "07_windowed_rope/method/tables.hpp"
#include "07_windowed_rope/windowed/kinds.hpp"

namespace {

using tile::Mask;
using windowed_rope::Window;

/// "parts": of each part whether it is near, its mask's left and right, for each query the first
/// key that it sees and the first that it no longer does, and for each tile of queries the four
/// numbers of Mask::Tiles. "kinds": for each tile of queries and each of keys, near + 2 far.
void print_tiles(const Mask& whole, Window window, int query_tile, int key_tile) {
  std::printf("{\"parts\": [");
  for (int part = 0; part < Window::kParts; ++part) {
    const Mask mask = window.part(whole, part);
    std::printf("%s{\"near\": %s, \"left\": %d, \"right\": %d,\n\"seen\": [", part > 0 ? ",\n" : "",
                Window::is_near(part) ? "true" : "false", mask.left, mask.right);
    for (int query = 0; query < mask.queries; ++query) {
      std::printf("%s[%d, %d]", query > 0 ? ", " : "", mask.first_key(query), mask.end_key(query));
    }
    std::printf("],\n\"tiles\": [");
    for (int first = 0; first < mask.queries; first += query_tile) {
      const Mask::Tiles tiles = mask.tiles(first, query_tile, key_tile);
      std::printf("%s[%d, %d, %d, %d]", first > 0 ? ", " : "", tiles.first, tiles.whole_first,
                  tiles.whole_last, tiles.last);
    }
    std::printf("]}");
  }
  std::printf("],\n\"kinds\": [");
  for (int query = 0; query < whole.queries; query += query_tile) {
    std::printf("%s[", query > 0 ? ",\n" : "");
    for (int key = 0; key < whole.keys; key += key_tile) {
      const auto kinds = kinds_of(window, whole, query, query_tile, key, key_tile);
      std::printf("%s%d", key > 0 ? ", " : "", (kinds.near ? 1 : 0) + (kinds.far ? 2 : 0));
    }
    std::printf("]");
  }
  std::printf("]}\n");
}

/// How far apart a rotation sees the last query and each key that it sees, from the nearest on.
void print_distances(Window window, int length, const tile::Rotary& rotary) {
  const Mask mask{length, length, tile::kMaxLength, 0};
  const int query = length - 1;
  std::printf("[");
  for (int key = query; key >= 0; --key) {
    const double distance =
        window.is_near(mask, query, key)
            ? query - key
            : windowed_rope::method::far_query_place(rotary, window.width, query) -
                  windowed_rope::method::far_key_place(rotary, key);
    std::printf("%s%.17g", key < query ? ", " : "", distance);
  }
  std::printf("]\n");
}

}  // namespace

int main(int count, char** words) {
  const auto number = [&](int i) { return std::atoi(words[i]); };
  if (count == 9 && std::string_view(words[1]) == "tiles") {
    print_tiles({number(4), number(5), number(6), number(7)}, {number(8)}, number(2), number(3));
    return 0;
  }
  if (count != 6) return 2;
  using tile::FarRotation;
  for (const auto far :
       {FarRotation::rerope, FarRotation::leaky_rerope, FarRotation::self_extend}) {
    if (words[4] == windowed_rope::method::name(far)) {
      print_distances({number(2)}, number(3), {.far = far, .far_factor = std::atof(words[5])});
      return 0;
    }
  }
  return 2;
}
