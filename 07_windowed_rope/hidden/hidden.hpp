// Attention from hidden states, with positions put in by one of six encodings: the problems, the
// ladders, the tables and the references.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "method/method.hpp"

namespace windowed_rope {

/// Where a token's position comes in. x are the hidden states, and h is what is multiplied with
/// the weights: q = h Wq, k = h Wk, v = h Wv.
enum class Encoding {
  learned,       // h = x + a learned table's row of the position (BERT): "Standard"
  sinusoidal,    // h = x + a row of sinusoids, for q and k; v = x Wv: "Absolute"
  rotary,        // q and k are rotated by their positions, half_split
  exposb,        // q and k are rotated, interleaved, and scaled by gain_of(); scores by kExposb
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

// snippet-begin exposb
/// ExpoSB multiplies scores with 0.7 + 0.3 exp(-0.005 |i - j|).
inline constexpr tile::DistanceFactor kExposb{0.3f, 0.005f};

/// ExpoSB multiplies element e of each head's rotated row of q and of k with g(position) b_e.
double gain_of(std::int64_t position, std::int64_t element, std::int64_t head_dim);
// snippet-end exposb

/// A row of q, of k and of v has heads * head_dim elements. From these o and lse as in
/// ForwardProblem.
struct HiddenProblem {
  tile::DType type;
  std::int64_t batch, length, heads, head_dim, model_dim;
  Encoding encoding = Encoding::rotary;
  std::int64_t window = 0;  // only windowed reads it; at least 0
  bool causal = true;       // windowed: false is refused
  float scale = 1;          // positive and finite
};

/// Device pointers to the first elements, aligned to an element, of tensors without gaps. What is
/// written overlaps nothing else.
struct HiddenBuffers {
  const void* x = nullptr;      // [batch][length][model_dim]
  const void* wq = nullptr;     // [model_dim][heads][head_dim]
  const void* wk = nullptr;     // as wq
  const void* wv = nullptr;     // as wq
  const void* table = nullptr;  // learned, sinusoidal: [length][model_dim], of the problem's type
  const float* cos = nullptr;   // for rotations: hidden_tables()
  const float* sin = nullptr;   // as cos
  const float* gain = nullptr;  // ExpoSB: hidden_tables()
  void* o = nullptr;            // [batch][length][heads][head_dim]
  float* lse = nullptr;         // [batch][heads][length]; null if not needed
  void* workspace = nullptr;    // aligned to 16 bytes; holds nothing before or after
  std::int64_t workspace_bytes = 0;
};

/// As HiddenProblem. From the gradient dout of a loss with respect to o, with dq, dk and dv of
/// attention's gradients after they are rotated back, and h as above:
///
///     dWq = h^T dq     dWk = h^T dk     dWv = h^T dv     dx = dq Wq^T + dk Wk^T + dv Wv^T
///
/// The gradient of a learned table's row is the sum of dx over the batch.
struct HiddenBackwardProblem : HiddenProblem {};

/// As above.
struct HiddenBackwardBuffers {
  const void* x = nullptr;
  const void* wq = nullptr;
  const void* wk = nullptr;
  const void* wv = nullptr;
  const void* table = nullptr;
  const float* cos = nullptr;
  const float* sin = nullptr;
  const float* gain = nullptr;
  const void* o = nullptr;     // from the forward pass
  const float* lse = nullptr;  // from the forward pass too
  const void* dout = nullptr;  // as o
  void* dx = nullptr;          // as x
  void* dwq = nullptr;         // as wq
  void* dwk = nullptr;         // as wk
  void* dwv = nullptr;         // as wv
  void* dtable = nullptr;      // learned: as table
  void* workspace = nullptr;
  std::int64_t workspace_bytes = 0;
};

/// What is checked before any step. The Status names the argument that is wrong.
tile::Status validate(const HiddenProblem& problem, const HiddenBuffers& buffers);
tile::Status validate(const HiddenBackwardProblem& problem, const HiddenBackwardBuffers& buffers);

/// Checks the sizes and options only.
tile::Status validate_sizes(const HiddenProblem& problem);

inline bool is_empty(const HiddenProblem& p) { return p.batch == 0 || p.length == 0; }
/// Even without tokens the gradients of the weights must be set to zeros.
inline bool is_empty(const HiddenBackwardProblem& p) { return p.model_dim == 0; }

/// The device memory that a step needs besides its arguments, if the sizes are valid: h, q, k and
/// v, backward their gradients, too; and what the attention in between needs.
std::int64_t workspace_bytes(const HiddenProblem& problem);
std::int64_t workspace_bytes(const HiddenBackwardProblem& problem);

/// The tables that the encoding reads; the others are empty. Cosines and sines, [length][head_dim /
/// 2], for `windowed` as in method_tables(); gains, [length][head_dim]; and sinusoids,
/// [length][model_dim].
struct HiddenTables {
  std::vector<float> cos, sin, gain;
  std::vector<double> sinusoids;
};
HiddenTables hidden_tables(const HiddenProblem& problem);

/// The scores of the last query with the keys at distance 0, 1, … from it, if all tokens have the
/// same content: a vector of length 1, by which q and k are multiplied with no weights, averaged
/// over all directions; divided by that at distance 0. For a learned table it takes random rows of
/// length 1. It is computed from the tables that the kernels read.
std::vector<double> score_by_distance(const HiddenProblem& problem);

// The steps, and what their own kernels take.
using HiddenStep = tile::Status(const HiddenProblem&, const HiddenBuffers&, void* stream);
HiddenStep composed;
using HiddenTakes = tile::Status(const HiddenProblem&, const HiddenBuffers&, const tile::Device&);
HiddenTakes takes_composed;
using HiddenBackwardStep = tile::Status(const HiddenBackwardProblem&, const HiddenBackwardBuffers&,
                                        void* stream);
HiddenBackwardStep composed;
using HiddenBackwardTakes = tile::Status(const HiddenBackwardProblem&, const HiddenBackwardBuffers&,
                                         const tile::Device&);
HiddenBackwardTakes takes_composed;

// ---- The ladders ----

// Batch, length, heads, head dimension, model dimension, the number of the encoding, and window.
inline constexpr tile::Shows kShowsHidden{{2, 37, 2, 32, 48, 3, 20}, {1, 2048, 8, 64, 512, 3, 512}};

using HiddenLadder = tile::Ladder<HiddenProblem, HiddenBuffers>;
inline constexpr HiddenLadder::Step kHidden[] = {
    {.name = "composed",
     .idea = "table, products, rotation and attention, each by its chapter's last step",
     .types = kTypes,
     .needs = {tile::Feature::bf16_mma},
     .takes = takes_composed,
     .otherwise = "",
     .shows = kShowsHidden,
     .launch = composed},
};
inline constexpr HiddenLadder kHiddenLadder{.name = "hidden",
                                            .kernels = "hidden_",
                                            .steps = kHidden,
                                            .validate = validate,
                                            .is_empty = is_empty};

using HiddenBackwardLadder = tile::Ladder<HiddenBackwardProblem, HiddenBackwardBuffers>;
inline constexpr HiddenBackwardLadder::Step kHiddenBackward[] = {
    {.name = "composed",
     .idea = "q, k and v again, their gradients, each rotated back, and six products",
     .types = kTypes,
     .needs = {tile::Feature::bf16_mma},
     .takes = takes_composed,
     .otherwise = "",
     .shows = kShowsHidden,
     .launch = composed},
};
// Its own kernel is shared with the forward pass, and named after that.
inline constexpr HiddenBackwardLadder kHiddenBackwardLadder{.name = "hidden backward",
                                                            .kernels = "hidden_",
                                                            .steps = kHiddenBackward,
                                                            .validate = validate,
                                                            .is_empty = is_empty};

// ---- The references ----

/// As the kernel gets them, in the shapes of HiddenBuffers.
struct HiddenInputs {
  std::span<const double> x, wq, wk, wv;
  std::span<const double> table = {};
};

/// o and lse in double, and how far a correct kernel may be from them, which rounds h, q, k, v and
/// rotated rows to the type.
tile::AttentionExpected reference(const HiddenProblem& problem, const HiddenInputs& inputs);

struct HiddenGradients {
  tile::Expected dx, dwq, dwk, dwv;
  tile::Expected dtable;  // learned
};
/// `o` and `lse` are from the forward pass, lse [batch][length][heads].
HiddenGradients reference(const HiddenBackwardProblem& problem, const HiddenInputs& inputs,
                          std::span<const double> o, std::span<const double> lse,
                          std::span<const double> dout);

}  // namespace windowed_rope
