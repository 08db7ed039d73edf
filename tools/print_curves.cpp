// Prints chapter 07's drawing of scores by distance, as ./tour run 07 --compare writes it.
// drawings_07_windowed_rope.py compiles this with the files that it needs.
#include <cstdio>

#include "07_windowed_rope/test/curves.hpp"

int main() {
  windowed_rope::Hidden p{.type = tile::DType::fp32,
                          .batch = 1,
                          .length = 1024,
                          .heads = 1,
                          .head_dim = 64,
                          .model_dim = 64};
  p.window = 256;
  std::fputs(windowed_rope::curves(p).c_str(), stdout);
}
