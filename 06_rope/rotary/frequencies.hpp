// Frequencies and tables of the rotation: the rules by which frequencies decrease from pair to
// pair, the ways to scale them for texts longer than those of the training, and sines and cosines.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tile/host/status.hpp"

namespace rope {

/// How the frequencies f_i of d / 2 pairs follow from the base b.
enum class Rule {
  paper,           // f_i = b^(-2i/d)
  half_truncated,  // f_i = b^(-i/(d/4 - 1)) for i < d/4, then d/4 zeros: half are not rotated
};

/// How they change for texts longer than those that the model was trained with. scaling.md explains
/// each.
enum class Scaling {
  none,
  linear,       // Chen et al. 2023, arXiv 2306.15595
  ntk,          // "NTK-aware"
  dynamic_ntk,  // the same, by as much as the text's length requires
  yarn,         // Peng et al. 2023, arXiv 2309.00071
  llama3,       // Llama 3.1
  longrope,     // Ding et al. 2024, arXiv 2402.13753
};

std::string_view name(Rule rule);
std::string_view name(Scaling scaling);

/// What frequencies are computed from. Each scaling reads only the fields whose comments name it.
struct FrequencyProblem {
  std::int64_t rotary_dim;          // d, even
  Rule rule = Rule::paper;          // half_truncated: d is a multiple of 4
  double base = 1e4;                // b, above 1
  Scaling scaling = Scaling::none;  // ntk, dynamic_ntk and yarn take the paper's rule only
  double factor = 1;                // s, at least 1: all but none
  // L, the length that the model was trained with: dynamic_ntk, yarn, llama3, longrope
  std::int64_t trained_length = 0;
  std::int64_t length = 0;  // n, of the text at hand; dynamic_ntk and longrope
  // Turns within L, above which yarn leaves a pair as it is, and below which it divides by s.
  double beta_fast = 32, beta_slow = 1;
  bool untruncated = false;  // yarn begins and ends to blend between two pairs, not at one
  // The same for llama3.
  double high_frequency_factor = 4, low_frequency_factor = 1;
  // The divisors of longrope, one for each pair: for texts of up to L tokens, and for longer ones.
  std::vector<double> short_factors = {}, long_factors = {};
  std::int64_t unrotated_pairs = 0;  // the last ones: their f_i is 0
  double attention_factor = 0;       // a, of yarn and longrope; 0: what the scaling makes of s
};

/// The Status names the argument that is wrong.
tile::Status validate(const FrequencyProblem& problem);

// The functions below take problems that validate() accepts.

/// f_i of each pair, [rotary_dim / 2].
std::vector<double> frequencies(const FrequencyProblem& problem);

/// a, which tables and kernels have in fp32.
tile::Status check_attention_factor(double a);

/// a, the factor of cosines and sines: 1 except for yarn and longrope.
double attention_factor(const FrequencyProblem& problem);

/// a cos(p f_i) and a sin(p f_i) for each position p, [positions][pairs]: computed in double, and
/// rounded once.
struct Tables {
  std::vector<float> cos, sin;
};
Tables make_tables(std::span<const double> frequencies, std::int64_t positions,
                   double attention_factor = 1);
/// The same for any positions, also between integers, [places][pairs].
Tables make_tables(std::span<const double> frequencies, std::span<const double> places,
                   double attention_factor = 1);

}  // namespace rope
