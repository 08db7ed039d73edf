// What the steps of windowed attention are compared with.
#pragma once

#include <cstdint>
#include <span>

#include "harness/attention_reference.hpp"
#include "windowed/windowed_rope.hpp"

namespace windowed_rope {

/// o and lse in double, and how far a correct kernel may be from them, of these inputs and their
/// `far` ones, of the rows with these numbers: row batch_entry * queries + query. Empty means all
/// rows. Of the call it reads the sizes and options, and no tensor.
tile::AttentionExpected reference(const AttentionForward& p, const tile::AttentionInputs& in,
                                  std::span<const std::int64_t> rows = {});

/// dq and dq_far (far_dq) of query_rows, dk, dk_far and dv of key_rows; empty means all.
tile::AttentionGradients reference(const AttentionBackward& p,
                                   const tile::AttentionGradientInputs& in,
                                   std::span<const std::int64_t> query_rows = {},
                                   std::span<const std::int64_t> key_rows = {});

}  // namespace windowed_rope
