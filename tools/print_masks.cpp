// Prints as JSON what masks show of chapter 05: which keys each query sees, and which tiles of keys
// each tile of queries visits. Kernels, reference and tests ask the same Mask.
// drawings_05_flash_attention.py compiles this with the C++ compiler and -I cpu_device/include.
//
//     print_masks TILE QUERIES KEYS LEFT RIGHT [QUERIES KEYS LEFT RIGHT …]
#include <cstdio>
#include <cstdlib>

#include "tile/mask.hpp"

namespace {

using tile::Mask;

/// "seen": for each query the first key that it sees, and the first that it no longer does;
/// "tiles": for each tile of queries the four numbers of Mask::Tiles.
void print(const Mask& mask, int tile) {
  std::printf("{\"seen\": [");
  for (int query = 0; query < mask.queries; ++query) {
    std::printf("%s[%d, %d]", query > 0 ? ", " : "", mask.first_key(query), mask.end_key(query));
  }
  std::printf("], \"tiles\": [");
  for (int first = 0; first < mask.queries; first += tile) {
    const Mask::Tiles tiles = mask.tiles(first, tile, tile);
    std::printf("%s[%d, %d, %d, %d]", first > 0 ? ", " : "", tiles.first, tiles.whole_first,
                tiles.whole_last, tiles.last);
  }
  std::printf("]}");
}

}  // namespace

int main(int count, char** words) {
  std::printf("[");
  for (int i = 2; i + 3 < count; i += 4) {
    if (i > 2) std::printf(",\n ");
    print({std::atoi(words[i]), std::atoi(words[i + 1]), std::atoi(words[i + 2]),
           std::atoi(words[i + 3])},
          std::atoi(words[1]));
  }
  std::printf("]\n");
}
