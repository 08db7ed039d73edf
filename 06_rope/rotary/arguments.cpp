// What a rotation is refused for, and by which words.
#include <cmath>
#include <string>

#include "rotary/frequencies.hpp"
#include "rotary/rotary.hpp"
#include "rotary/tables.hpp"
#include "tile/host/text.hpp"

namespace rope {
namespace {

using tile::TensorArgument;

TensorArgument rows(const RotaryProblem& p, const char* name, const void* data, Strides stride,
                    std::int64_t heads) {
  const auto bytes = static_cast<std::int64_t>(tile::size_bytes(p.type));
  return {name, data, stride, p.batch, p.length, heads, p.head_dim, bytes};
}
/// A row for each position, or one.
template <class T>
TensorArgument numbers(const RotaryProblem& p, const char* name, const T* data,
                       std::int64_t positions) {
  return {.name = name,
          .data = data,
          .stride = {0, 0, p.rotary_dim / 2},
          .batch = 1,
          .length = positions,
          .heads = 1,
          .dim = p.rotary_dim / 2,
          .element_bytes = sizeof(T),
          .may_be_null = true};
}

std::vector<TensorArgument> all_rows(const RotaryProblem& p, const RotaryBuffers& b) {
  return {rows(p, "q", b.q, p.q, p.heads), rows(p, "k", b.k, p.k, p.kv_heads),
          rows(p, "q_out", b.q_out, p.q_out, p.heads),
          rows(p, "k_out", b.k_out, p.k_out, p.kv_heads)};
}

}  // namespace

tile::Status check_extents(std::initializer_list<std::pair<const char*, std::int64_t>> extents) {
  constexpr std::int64_t kMaxExtent = std::int64_t{1} << 29;
  for (const auto& [name, extent] : extents) {
    if (extent < 0) return tile::invalid_argument(name, std::to_string(extent) + " is negative");
    if (extent > kMaxExtent) {
      return tile::unsupported(name, std::to_string(extent) + " is more than 2^29");
    }
  }
  return {};
}

tile::Status check_tables_aligned(const float* cos, const float* sin) {
  for (const auto& [name, data] : {std::pair{"cos", cos}, {"sin", sin}}) {
    if (reinterpret_cast<std::uintptr_t>(data) % 16 != 0) {
      return tile::unsupported(name, "is not aligned to 16 bytes");
    }
  }
  return {};
}

tile::Status validate_sizes(const RotaryProblem& p) {
  TILE_TRY(check_extents({{"batch", p.batch},
                          {"length", p.length},
                          {"heads", p.heads},
                          {"kv_heads", p.kv_heads},
                          {"head_dim", p.head_dim},
                          {"rotary_dim", p.rotary_dim},
                          {"first_position", p.first_position},
                          {"table_positions", p.table_positions}}));
  if (p.head_dim == 0) return tile::invalid_argument("head_dim", "is 0");
  if (p.rotary_dim % 2 != 0) {
    return tile::invalid_argument("rotary_dim", std::to_string(p.rotary_dim) + " is odd");
  }
  if (p.rotary_dim > p.head_dim) {
    return tile::invalid_argument("rotary_dim", std::to_string(p.rotary_dim) +
                                                    " is more than head_dim, which is " +
                                                    std::to_string(p.head_dim));
  }
  if (p.layout != Layout::half_split && p.layout != Layout::interleaved) {
    return tile::invalid_argument("layout", "is neither half_split nor interleaved");
  }
  if (p.pass != Pass::forward && p.pass != Pass::backward) {
    return tile::invalid_argument("pass", "is neither forward nor backward");
  }
  return check_attention_factor(p.attention_factor);
}

tile::Status validate_tensors(const RotaryProblem& p, const RotaryBuffers& b) {
  TILE_TRY(validate_sizes(p));
  TensorArgument q_out = rows(p, "q_out", b.q_out, p.q_out, p.heads);
  TensorArgument k_out = rows(p, "k_out", b.k_out, p.k_out, p.kv_heads);
  q_out.may_be = "q", k_out.may_be = "k";
  std::vector<TensorArgument> inputs = tables_of(p, b);
  inputs.push_back(rows(p, "q", b.q, p.q, p.heads));
  inputs.push_back(rows(p, "k", b.k, p.k, p.kv_heads));
  TILE_TRY(tile::check_tensors(is_empty(p), inputs, {q_out, k_out}, {}));
  return check_tables(p, b);
}

std::vector<TensorArgument> tables_of(const RotaryProblem& p, const RotaryBuffers& b) {
  return {numbers(p, "cos", b.cos, p.table_positions),
          numbers(p, "sin", b.sin, p.table_positions),
          numbers(p, "frequencies", b.frequencies, 1),
          {"positions", b.positions, {p.length, 0, 1}, p.batch, p.length, 1, 1, 4, true}};
}

tile::Status check_tables(const RotaryProblem& p, const RotaryBuffers& b) {
  if (is_empty(p) || p.rotary_dim == 0) return {};
  if (!b.cos != !b.sin) return tile::invalid_argument(b.cos ? "sin" : "cos", "is null");
  if (!b.cos && !b.frequencies) return tile::invalid_argument("cos", "is null");
  return check_reach(p, b.positions);
}

tile::Status validate(const RotaryProblem& p, const RotaryBuffers& b) {
  TILE_TRY(tile::check_requirements(kTypes, {}, p.type));
  return validate_tensors(p, b);
}

tile::Status check_has_tables(const RotaryProblem& p, const RotaryBuffers& b) {
  if (!b.cos && p.rotary_dim > 0) return tile::unsupported("cos", "is null");
  return {};
}

tile::Status check_chunks(const RotaryProblem& p, const RotaryBuffers& b) {
  TILE_TRY(tile::check_row_chunks(p.type, all_rows(p, b)));
  return check_tables_aligned(b.cos, b.sin);
}

}  // namespace rope
