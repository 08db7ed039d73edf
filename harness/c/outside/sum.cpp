// c = a + b in C++, outside of the project; and whether package and library have one version.
#include <cstdio>
#include <cstring>

#include "tile.h"

int main() {
  const float a[] = {1, 2, 3}, b[] = {10, 20, 30};
  float c[3] = {};
  void* memory[3] = {};
  for (void*& buffer : memory) {
    if (tile_alloc(&buffer, sizeof a) != TILE_OK) return std::puts(tile_last_error()), 1;
  }
  tile_vector_add_args sum{};
  sum.struct_size = sizeof sum;
  sum.type = TILE_FP32;
  sum.n = 3;
  sum.a = memory[0], sum.b = memory[1], sum.c = memory[2];
  if (tile_copy_to_device(memory[0], a, sizeof a) || tile_copy_to_device(memory[1], b, sizeof b) ||
      tile_vector_add(&sum) || tile_copy_from_device(c, memory[2], sizeof c)) {
    return std::puts(tile_last_error()), 1;
  }
  std::printf("%g %g %g, version %s\n", c[0], c[1], c[2], tile_version());
  return !(c[0] == 11 && c[1] == 22 && c[2] == 33) || std::strcmp(tile_version(), VERSION) != 0;
}
