// The references: those of every chapter with attention (harness/attention_reference.cpp).
#include "reference.hpp"

namespace flash_attention {

ForwardExpected reference(const AttentionForward& p, const ForwardInputs& in,
                          std::span<const std::int64_t> rows) {
  return tile::attention_reference(p, in, rows);
}

BackwardExpected reference(const AttentionBackward& p, const BackwardInputs& in,
                           std::span<const std::int64_t> query_rows,
                           std::span<const std::int64_t> key_rows) {
  return tile::attention_gradients(p, in, query_rows, key_rows);
}

}  // namespace flash_attention
