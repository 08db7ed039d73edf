// What the steps from hidden states are compared with.
#pragma once

#include <span>

#include "harness/attention_reference.hpp"
#include "hidden/hidden.hpp"

namespace windowed_rope {

/// As the kernel gets them, in the shapes of Hidden.
struct HiddenInputs {
  std::span<const double> x, wq, wk, wv;
  std::span<const double> table = {};
};

/// o and lse in double, and how far a correct kernel may be from them, which rounds h, q, k, v and
/// rotated rows to the type.
tile::AttentionExpected reference(const Hidden& p, const HiddenInputs& inputs);

struct HiddenGradients {
  tile::Expected dx, dwq, dwk, dwv;
  tile::Expected dtable;  // learned
};
/// `o` and `lse` are from the forward pass, lse [batch][length][heads].
HiddenGradients backward_reference(const Hidden& p, const HiddenInputs& inputs,
                                   std::span<const double> o, std::span<const double> lse,
                                   std::span<const double> dout);

}  // namespace windowed_rope
