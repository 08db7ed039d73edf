// Attention from hidden states, with positions put in by one of six encodings: what is computed,
// and the ladders.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "windowed/windowed_rope.hpp"

namespace windowed_rope {

/// Where a token's position comes in. x are the hidden states, and h is what is multiplied with
/// the weights: q = h Wq, k = h Wk, v = h Wv.
enum class Encoding {
  learned,       // h = x + a learned table's row of the position (BERT): "Standard"
  sinusoidal,    // h = x + a row of sinusoids, for q and k; v = x Wv: "Absolute"
  rotary,        // q and k are rotated by their positions, half_split
  exposb,        // q and k are rotated, interleaved, and scaled by gain_of(); scores by distance
  exposb_plain,  // the same, but no score is scaled by a distance: "ExpoSB, w = 1"
  windowed,      // ReRoPE: q and k are rotated by their positions if near, otherwise by W and 0
};
inline constexpr std::array kEncodings{Encoding::learned,      Encoding::sinusoidal,
                                       Encoding::rotary,       Encoding::exposb,
                                       Encoding::exposb_plain, Encoding::windowed};
std::string_view name(Encoding encoding);
constexpr bool adds_table(Encoding e) {
  return e == Encoding::learned || e == Encoding::sinusoidal;
}
constexpr bool has_gain(Encoding e) { return e == Encoding::exposb || e == Encoding::exposb_plain; }

/// ExpoSB multiplies scores with 0.7 + 0.3 exp(-0.005 |i - j|).
inline constexpr float kExposbPart = 0.3f, kExposbRate = 0.005f;

/// ExpoSB multiplies element e of each head's rotated row of q and of k with g(position) b_e.
double gain_of(std::int64_t position, std::int64_t element, std::int64_t head_dim);

/// What both passes have, of tensors without gaps. A row of q, of k and of v has heads * head_dim
/// elements.
struct Hidden {
  tile::DType type;
  std::int64_t batch, length, heads, head_dim, model_dim;
  Encoding encoding = Encoding::rotary;
  std::int64_t window = 0;  // only windowed reads it; at least 0
  bool causal = true;       // windowed: false is refused
  float scale = 1;          // positive and finite
  // Device pointers to the first elements, aligned to an element.
  const void* x = nullptr;      // [batch][length][model_dim]
  const void* wq = nullptr;     // [model_dim][heads][head_dim]
  const void* wk = nullptr;     // as wq
  const void* wv = nullptr;     // as wq
  const void* table = nullptr;  // learned, sinusoidal: [length][model_dim], of the same type
  const float* cos = nullptr;   // for rotations: hidden_tables()
  const float* sin = nullptr;   // as cos
  const float* gain = nullptr;  // ExpoSB: hidden_tables()
  void* workspace = nullptr;    // aligned to 16 bytes; holds nothing before or after
  std::int64_t workspace_bytes = 0;
};

/// o and lse as in windowed attention. What is written overlaps nothing else.
struct HiddenForward : Hidden {
  void* o = nullptr;     // [batch][length][heads][head_dim]
  float* lse = nullptr;  // [batch][heads][length]; null if not needed
};

/// From the gradient dout of a loss with respect to o, with dq, dk and dv of attention's gradients
/// after they are rotated back, and h as above:
///
///     dWq = h^T dq     dWk = h^T dk     dWv = h^T dv     dx = dq Wq^T + dk Wk^T + dv Wv^T
///
/// The gradient of a learned table's row is the sum of dx over the batch.
struct HiddenBackward : Hidden {
  const void* o = nullptr;     // from the forward pass
  const float* lse = nullptr;  // from the forward pass too
  const void* dout = nullptr;  // as o
  void* dx = nullptr;          // as x
  void* dwq = nullptr;         // as wq
  void* dwk = nullptr;         // as wk
  void* dwv = nullptr;         // as wv
  void* dtable = nullptr;      // learned: as table
};

/// What is checked before any step. The Status names the argument that is wrong.
tile::Status validate(const HiddenForward& p);
tile::Status validate(const HiddenBackward& p);

/// Checks the sizes and options only.
tile::Status validate_sizes(const Hidden& p);

inline bool is_empty(const HiddenForward& p) { return p.batch == 0 || p.length == 0; }
/// Even without tokens the gradients of the weights must be set to zeros.
inline bool is_empty(const HiddenBackward& p) { return p.model_dim == 0; }

/// The device memory that a step needs besides its arguments, if the sizes are valid: h, q, k and
/// v, backward their gradients, too; and what the attention in between needs.
std::int64_t composed_bytes(const HiddenForward& p);
std::int64_t composed_bytes(const HiddenBackward& p);

// The steps, and what their own kernels take.
using HiddenStep = tile::Status(const HiddenForward&, void* stream);
HiddenStep composed;
using HiddenTakes = tile::Status(const HiddenForward&, const tile::Device&);
HiddenTakes takes_composed;
using HiddenBackwardStep = tile::Status(const HiddenBackward&, void* stream);
HiddenBackwardStep composed;
using HiddenBackwardTakes = tile::Status(const HiddenBackward&, const tile::Device&);
HiddenBackwardTakes takes_composed;

// ---- The ladders ----

// Batch, length, heads, head dimension, model dimension, the number of the encoding, and window.
inline constexpr tile::Shows kShowsHidden{{2, 37, 2, 32, 48, 3, 20}, {1, 2048, 8, 64, 512, 3, 512}};

using HiddenLadder = tile::Ladder<HiddenForward>;
inline constexpr HiddenLadder::Step kHidden[] = {
    {.name = "composed",
     .idea = "table, products, rotation and attention, each by its chapter's last step",
     .types = kTypes,
     .needs = {tile::Feature::bf16_mma},
     .takes = takes_composed,
     .otherwise = "",
     .shows = kShowsHidden,
     .launch = composed,
     .workspace_bytes = composed_bytes},
};
inline constexpr HiddenLadder kHiddenLadder{.name = "hidden",
                                            .kernels = "hidden_",
                                            .steps = kHidden,
                                            .validate = validate,
                                            .is_empty = is_empty};

using HiddenBackwardLadder = tile::Ladder<HiddenBackward>;
inline constexpr HiddenBackwardLadder::Step kHiddenBackward[] = {
    {.name = "composed",
     .idea = "q, k and v again, their gradients, each rotated back, and six products",
     .types = kTypes,
     .needs = {tile::Feature::bf16_mma},
     .takes = takes_composed,
     .otherwise = "",
     .shows = kShowsHidden,
     .launch = composed,
     .workspace_bytes = composed_bytes},
};
// Its own kernel is shared with the forward pass, and named after that.
inline constexpr HiddenBackwardLadder kHiddenBackwardLadder{.name = "hidden backward",
                                                            .kernels = "hidden_",
                                                            .steps = kHiddenBackward,
                                                            .validate = validate,
                                                            .is_empty = is_empty};

}  // namespace windowed_rope
