// The rotation of q and k, as an option of attention.
#pragma once

#include <cstdint>

namespace tile {

/// Which two elements of a head's row are pair i: i and i + rotary_dim / 2 (GPT-NeoX, Llama), or
/// 2 i and 2 i + 1 (RoFormer, GPT-J).
enum class RotaryLayout { half_split, interleaved };

/// By which position tokens are rotated for far keys (07_windowed_rope/method/method.hpp).
enum class FarRotation { none, rerope, leaky_rerope, self_extend };

/// The rotation of q and k before they are multiplied (06_rope/rotary/rotary.hpp). Without tables
/// there is none.
struct Rotary {
  // [table_positions][rotary_dim / 2]; for a far rotation [3][table_positions][…]: of a
  // token's own position, of a query's and of a key's position among far keys.
  const float* cos = nullptr;
  const float* sin = nullptr;        // as cos
  const int* positions = nullptr;    // [batch][queries]; null: they count from first_position
  std::int64_t rotary_dim = 0;       // even, at most head_dim
  std::int64_t table_positions = 0;  // positions are below this
  std::int64_t first_position = 0;
  RotaryLayout layout = RotaryLayout::half_split;
  // The tables contain these already; the reference reads them.
  double attention_factor = 1;
  FarRotation far = FarRotation::none;
  double far_factor = 1;  // of leaky_rerope and self_extend
};

}  // namespace tile
