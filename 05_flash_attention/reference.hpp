// What chapter 05's steps are compared with.
#pragma once

#include <cstdint>
#include <span>

#include "flash_attention.hpp"
#include "harness/attention_reference.hpp"

namespace flash_attention {

using ForwardInputs = tile::AttentionInputs;
using ForwardExpected = tile::AttentionExpected;

/// o and lse in double, and how far a correct kernel may be from them, of the rows with these
/// numbers: row batch_entry * queries + query. Empty means all rows. Of the call it reads the sizes
/// and options, and no tensor.
ForwardExpected reference(const AttentionForward& p, const ForwardInputs& inputs,
                          std::span<const std::int64_t> rows = {});

using BackwardInputs = tile::AttentionGradientInputs;
using BackwardExpected = tile::AttentionGradients;

/// dq of query_rows, dk and dv of key_rows; empty means all rows.
BackwardExpected reference(const AttentionBackward& p, const BackwardInputs& inputs,
                           std::span<const std::int64_t> query_rows = {},
                           std::span<const std::int64_t> key_rows = {});

}  // namespace flash_attention
