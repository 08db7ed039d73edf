// Kernels as beginners write them, each with its mistakes.
#pragma once

#include <span>

namespace device_test {

inline constexpr int kBeginnerCount = 1000;  // elements of x and y
// Of the square matrices a, b and c, whose rows are followed by padding.
inline constexpr int kSide = 40, kLdA = 43, kLdB = 41, kLdC = 42;

struct BeginnerMemory {
  const float* x;
  float* y;    // an input as well
  float* one;  // a vector of one element, an input as well
  const float* a;
  const float* b;
  float* c;  // not written yet
};

struct Beginner {
  const char* kernel;
  const char* mistake;
  void (*launch)(const BeginnerMemory& memory);
  void (*launch_right)(const BeginnerMemory& memory);
};
extern const std::span<const Beginner> kBeginners;

}  // namespace device_test
