// The references: those of every chapter with attention (harness/attention_reference.cpp).
#include "windowed/reference.hpp"

namespace windowed_rope {

tile::AttentionExpected reference(const AttentionForward& p, const tile::AttentionInputs& in,
                                  std::span<const std::int64_t> rows) {
  return tile::attention_reference(p, in, rows);
}

tile::AttentionGradients reference(const AttentionBackward& p,
                                   const tile::AttentionGradientInputs& in,
                                   std::span<const std::int64_t> query_rows,
                                   std::span<const std::int64_t> key_rows) {
  return tile::attention_gradients(p, in, query_rows, key_rows);
}

}  // namespace windowed_rope
