// Random numbers for the order of threads and blocks.
#pragma once

#include <cstdint>

namespace cpu_device {

/// splitmix64: small, and the same everywhere.
class Random {
 public:
  void seed(uint64_t seed) { state_ = seed; }
  /// 0 to below - 1.
  uint32_t operator()(uint32_t below) {
    state_ += 0x9e3779b97f4a7c15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return static_cast<uint32_t>((z ^ (z >> 31)) % below);
  }

 private:
  uint64_t state_ = 0;
};

}  // namespace cpu_device
