// Prints as JSON what the figures of chapter 02's tensor cores show: which lane holds what, where
// the chunks of a tile lie. The maps are those that the kernels use. drawings_02_tensor_cores.py
// compiles this with the C++ compiler and -I cpu_device/include, and runs it.
#include <cstdio>

#include "tile/ptx/fragments.hpp"
#include "tile/ptx/swizzle.hpp"

namespace {

using tile::ptx::Element;
constexpr int kLanes = 32;

/// "name": for each lane the [row, column] of each of its elements.
void print_map(const char* name, int count, Element (*element)(int lane, int i)) {
  std::printf("  \"%s\": [", name);
  for (int lane = 0; lane < kLanes; ++lane) {
    std::printf("%s[", lane > 0 ? ", " : "");
    for (int i = 0; i < count; ++i) {
      const Element at = element(lane, i);
      std::printf("%s[%d, %d]", i > 0 ? ", " : "", at.row, at.col);
    }
    std::printf("]");
  }
  std::printf("],\n");
}

/// "name": for each of eight rows, after which all begins again, the place of each chunk.
void print_swizzle(const char* name, int chunks, int (*place)(int row, int chunk), bool last) {
  std::printf("  \"%s\": [", name);
  for (int row = 0; row < 8; ++row) {
    std::printf("%s[", row > 0 ? ", " : "");
    for (int chunk = 0; chunk < chunks; ++chunk) {
      std::printf("%s%d", chunk > 0 ? ", " : "", place(row, chunk));
    }
    std::printf("]");
  }
  std::printf("]%s\n", last ? "" : ",");
}

}  // namespace

int main() {
  std::printf("{\n");
  print_map("a", 8, tile::ptx::element_of_a<16>);
  print_map("a_8", 16, tile::ptx::element_of_a<8>);
  print_map("b", 4, tile::ptx::element_of_b<16>);
  print_map("d", 4, tile::ptx::element_of_d);
  print_map("ldmatrix", 2, tile::ptx::element_of_ldmatrix);
  print_map("ldmatrix_trans", 2, tile::ptx::element_of_ldmatrix_trans);
  print_swizzle("swizzle_64B", 4, tile::swizzle_64B, false);
  print_swizzle("swizzle_128B", 16, tile::swizzle_128B, true);
  std::printf("}\n");
}
