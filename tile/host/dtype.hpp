#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace tile {

/// The element types of tensors. tf32 is fp32 that tensor cores multiply with 11 significant bits:
/// it is stored with all 24, and the kernel rounds what it reads. e4m3 has 8 bits, 4 of them
/// significant with the hidden one, the largest number 448 and no infinity; what exceeds 448 is
/// rounded to 448 (Micikevicius et al., "FP8 formats for deep learning", 2022).
enum class DType { fp32, fp16, bf16, fp64, tf32, e4m3 };

inline constexpr DType kDTypes[] = {DType::fp32, DType::fp16, DType::bf16,
                                    DType::fp64, DType::tf32, DType::e4m3};

constexpr std::size_t size_bytes(DType dtype) {
  switch (dtype) {
    case DType::fp32: return 4;
    case DType::fp16: return 2;
    case DType::bf16: return 2;
    case DType::fp64: return 8;
    case DType::tf32: return 4;
    case DType::e4m3: return 1;
  }
  return 0;
}

constexpr std::string_view name(DType dtype) {
  switch (dtype) {
    case DType::fp32: return "fp32";
    case DType::fp16: return "fp16";
    case DType::bf16: return "bf16";
    case DType::fp64: return "fp64";
    case DType::tf32: return "tf32";
    case DType::e4m3: return "e4m3";
  }
  return "unknown type";
}

/// The unit roundoff u: rounding x to nearest gives x(1 + d) with |d| <= u, short of underflow and
/// overflow. With p bits of significand u = 2^-p, and every integer up to 2^p = 1/u is exact.
constexpr double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::fp32: return 0x1p-24;
    case DType::fp16: return 0x1p-11;
    case DType::bf16: return 0x1p-8;
    case DType::fp64: return 0x1p-53;
    case DType::tf32: return 0x1p-11;
    case DType::e4m3: return 0x1p-4;
  }
  return 0;
}

/// The type with this name, or nothing: parse_dtype("bf16").
constexpr std::optional<DType> parse_dtype(std::string_view text) {
  for (const DType dtype : kDTypes) {
    if (text == name(dtype)) return dtype;
  }
  return std::nullopt;
}

}  // namespace tile
