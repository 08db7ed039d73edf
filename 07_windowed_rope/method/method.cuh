// Shared by the steps that compose a method: what they take, and both rotations of q and k.
#pragma once

#include "method/turning.cuh"

namespace windowed_rope::method {

// Steps of windowed attention that a method's step composes by name.
inline constexpr const ForwardLadder::Step& kTwoVisits = kForward[3];
static_assert(kTwoVisits.name == "two_visits");
inline constexpr const ForwardLadder::Step& kPersistent = kForward[5];
static_assert(kPersistent.name == "persistent");
inline constexpr const BackwardLadder::Step& kOnePass = kBackward[3];
static_assert(kOnePass.name == "one_pass");
inline constexpr const BackwardLadder::Step& kWgmma = kBackward[4];
static_assert(kWgmma.name == "wgmma");

/// Whether the workspace is large enough, and a step of windowed attention takes the rotated rows.
template <class Call>
tile::Status check_composed(const tile::Ladder<Call>& ladder, const Call& p) {
  TILE_TRY(tile::check_workspace(composed_bytes(p), p.workspace_bytes));
  tile::Choice choice;
  return choose_last(ladder, attention_of(p), &choice);
}

/// Fills in the position beside which each query stands, [batch][queries]: 0 for a query before the
/// first key, which sees none.
tile::Status fill_positions(const tile::Attention& p, int* positions, void* stream);

/// Fills q, k, q_far and k_far of the attention in the middle: of 16-byte-aligned rows, each read
/// once.
template <class Call>
tile::Status turn_all_twice(const Call& p, const Call& inner, int* positions, void* stream) {
  TILE_TRY(fill_positions(p, positions, stream));
  TILE_TRY(turn_rows_twice(turning_of_queries(p, positions), p.q, inner.q, inner.q_far, stream));
  return turn_rows_twice(turning_of_keys(p), p.k, inner.k, inner.k_far, stream);
}

}  // namespace windowed_rope::method
