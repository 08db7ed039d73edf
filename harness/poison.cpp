#include "harness/poison.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <iterator>

#include "harness/convert.hpp"

namespace tile {
namespace {

// The NaNs are quiet (arithmetic on the CPU keeps their bits) and differ in the seven bits of
// payload that bf16 has. No byte is 0, so that a stray byte of zeros shows as well.
constexpr std::uint64_t kPatterns[][std::size(kDTypes)] = {
    // fp32, fp16, bf16, fp64, tf32, e4m3, which has two NaNs
    {0x7FD5A5C3, 0x7EAB, 0x7FD5, 0x7FFAA5C3961E7B2D, 0x7FD5A5C3, 0x7F},  // unwritten_nan
    {0xC747A5C3, 0xFA3B, 0xC747, 0xC0E8E5A5C3961E7B, 0xC747A5C3,
     0xFA},  // unwritten_finite, ca. -51 000
    {0x7FEA5A3C, 0x7F55, 0x7FEA, 0x7FFD4C3A69E1B7D2, 0x7FEA5A3C, 0xFF},  // outside
    {0xFFFFFFFF, 0xFFFF, 0xFFFF, 0xFFFFFFFFFFFFFFFF, 0xFFFFFFFF, 0xFF},  // uninitialised
};

// A double for each pattern: kValues.value[poison][type].
struct Values {
  double value[std::size(kPatterns)][std::size(kDTypes)];
  Values() {
    for (std::size_t poison = 0; poison < std::size(kPatterns); ++poison) {
      for (const DType dtype : kDTypes) {
        const std::vector<std::byte> bytes = poison_bytes(static_cast<Poison>(poison), dtype);
        value[poison][static_cast<std::size_t>(dtype)] = to_double(bytes.data(), dtype, 1).front();
      }
    }
  }
};
const Values& values() {
  static const Values kValues;
  return kValues;
}

}  // namespace

std::vector<std::byte> poison_bytes(Poison poison, DType dtype) {
  static_assert(std::endian::native == std::endian::little);  // as every host of a CUDA GPU is
  const std::uint64_t& pattern =
      kPatterns[static_cast<std::size_t>(poison)][static_cast<std::size_t>(dtype)];
  std::vector<std::byte> bytes(size_bytes(dtype));
  std::memcpy(bytes.data(), &pattern, bytes.size());
  return bytes;
}

double poison_value(Poison poison, DType dtype) {
  return values().value[static_cast<std::size_t>(poison)][static_cast<std::size_t>(dtype)];
}

bool is_poison(double value, Poison poison) {  // hints ask for every mismatch
  const auto& of_types = values().value[static_cast<std::size_t>(poison)];
  const auto bits = std::bit_cast<std::uint64_t>(value);
  return std::ranges::any_of(kDTypes, [&](DType dtype) {
    // No result has the poison of e4m3, and 8 bits happen by accident.
    return dtype != DType::e4m3 &&
           bits == std::bit_cast<std::uint64_t>(of_types[static_cast<std::size_t>(dtype)]);
  });
}

}  // namespace tile
