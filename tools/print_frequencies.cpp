// Prints as JSON what chapter 06's frequencies.cpp computes: frequencies with each scaling, and how
// exact cosines are. drawings_06_rope.py compiles the two with the C++ compiler.
//
//     print_frequencies ROTARY_DIM FACTOR TRAINED_LENGTH POSITIONS
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "06_rope/rotary/frequencies.hpp"

namespace {

using Values = std::vector<double>;

void print(const char* name, const Values& values, const char* end) {
  std::printf("\"%s\": [", name);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::printf("%s%.17g", i > 0 ? ", " : "", values[i]);
  }
  std::printf("]%s\n", end);
}

/// The largest errors of a cosine at positions 1, 2 and 3, 4 to 7 …: from a table, and of an angle
/// that is a product in fp32.
void print_errors(const Values& f, std::int64_t positions) {
  const rope::Tables tables = rope::make_tables(f, positions);
  Values of_table, of_angle;
  for (std::int64_t first = 1; first < positions; first *= 2) {
    double table = 0, angle = 0;
    for (std::int64_t p = first; p < std::min(2 * first, positions); ++p) {
      for (std::size_t i = 0; i < f.size(); ++i) {
        const double exact = std::cos(static_cast<double>(p) * f[i]);
        const float in_fp32 = static_cast<float>(p) * static_cast<float>(f[i]);
        table = std::max(table,
                         std::abs(tables.cos[static_cast<std::size_t>(p) * f.size() + i] - exact));
        angle = std::max(angle, std::abs(std::cos(static_cast<double>(in_fp32)) - exact));
      }
    }
    of_table.push_back(table), of_angle.push_back(angle);
  }
  print("of_table", of_table, ",");
  print("of_angle", of_angle, "");
}

}  // namespace

int main(int count, char** words) {
  if (count != 5) return 2;
  rope::FrequencyProblem p{.rotary_dim = std::atoll(words[1]),
                           .factor = std::atof(words[2]),
                           .trained_length = std::atoll(words[3])};
  p.length = static_cast<std::int64_t>(p.factor * static_cast<double>(p.trained_length));
  std::printf("{");
  for (const auto scaling :
       {rope::Scaling::none, rope::Scaling::linear, rope::Scaling::ntk, rope::Scaling::dynamic_ntk,
        rope::Scaling::yarn, rope::Scaling::llama3}) {
    p.scaling = scaling;
    if (const tile::Status s = rope::validate(p); !s.ok()) {
      std::fprintf(stderr, "%s\n", s.message.c_str());
      return 1;
    }
    print(rope::name(scaling).data(), rope::frequencies(p), ",");
  }
  p.scaling = rope::Scaling::none;
  print_errors(rope::frequencies(p), std::atoll(words[4]));
  std::printf("}\n");
}
