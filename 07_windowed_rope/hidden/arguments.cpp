// What a call is refused for and by which words.
#include <algorithm>
#include <string>

#include "hidden/hidden.hpp"
#include "method/method.hpp"
#include "tile/host/attention_argument.hpp"

namespace windowed_rope {
namespace {

using tile::TensorArgument;

/// A tensor without gaps, [batch][length][heads][dim]; tensors that the encoding does not read may
/// be null.
TensorArgument tensor(const char* name, const void* data, std::int64_t batch, std::int64_t length,
                      std::int64_t heads, std::int64_t dim, std::int64_t element_bytes,
                      bool is_needed = true) {
  const bool is_there = is_needed && batch > 0 && heads > 0;
  return {name,
          data,
          tile::packed_strides(length, heads, dim),
          is_there ? batch : 0,
          length,
          heads,
          dim,
          element_bytes};
}

std::vector<TensorArgument> inputs_of(const Hidden& p) {
  const std::int64_t size = tile::element_bytes(p.type), pairs = p.head_dim / 2;
  const Encoding e = p.encoding;
  const std::int64_t tables = e == Encoding::windowed ? 3 : 1;
  std::vector<TensorArgument> all{
      tensor("x", p.x, p.batch, p.length, 1, p.model_dim, size),
      tensor("table", p.table, 1, p.length, 1, p.model_dim, size, adds_table(e)),
      tensor("cos", p.cos, tables, p.length, 1, pairs, 4, !adds_table(e)),
      tensor("sin", p.sin, tables, p.length, 1, pairs, 4, !adds_table(e)),
      tensor("gain", p.gain, 1, p.length, 1, p.head_dim, 4, has_gain(e))};
  for (const auto& [name, data] : {std::pair{"wq", p.wq}, {"wk", p.wk}, {"wv", p.wv}}) {
    all.push_back(tensor(name, data, 1, p.model_dim, p.heads, p.head_dim, size));
  }
  return all;
}
TensorArgument output_of(const Hidden& p, const char* name, const void* data) {
  return tensor(name, data, p.batch, p.length, p.heads, p.head_dim, tile::element_bytes(p.type));
}
TensorArgument lse_of(const Hidden& p, const float* lse) {
  return tensor("lse", lse, p.batch, p.heads, 1, p.length, 4);
}

}  // namespace

tile::Status validate_sizes(const Hidden& p) {
  if (name(p.encoding) == "?") return tile::invalid_argument("encoding", "is none");
  for (const auto& [name, extent] :
       {std::pair{"length", p.length}, {"model_dim", p.model_dim}, {"head_dim", p.head_dim}}) {
    if (extent < 0) return tile::invalid_argument(name, std::to_string(extent) + " is negative");
    if (extent > tile::kMaxLength) {
      return tile::unsupported(name, std::to_string(extent) + " is more than 2^29");
    }
  }
  if (p.heads == 0) return tile::invalid_argument("heads", "is 0");
  AttentionForward attention{{.type = p.type,
                              .batch = p.batch,
                              .heads = p.heads,
                              .queries = p.length,
                              .keys = p.length,
                              .head_dim = p.head_dim}};
  attention.right = p.causal || p.encoding != Encoding::windowed ? 0 : kUnlimited;
  attention.scale = p.scale;
  attention.window = p.encoding == Encoding::windowed ? p.window : 0;
  attention.rotary.rotary_dim = adds_table(p.encoding) ? 0 : p.head_dim;
  attention.rotary.table_positions = p.length;
  attention.rotary.far = tile::FarRotation::rerope;
  if (tile::Status s = method::validate_sizes(attention); !s.ok()) {
    // Here whole rows are rotated, so rotary_dim is head_dim.
    if (s.message.rfind("rotary_dim: ", 0) == 0) s.message.replace(0, 6, "head");
    return s;
  }
  // So that a dozen of the largest tensor fit in 64 bits.
  const std::int64_t row = std::max(tile::product({p.heads, p.head_dim}), p.model_dim);
  const std::int64_t rows = std::max(tile::product({p.batch, p.length}), p.model_dim);
  if (tile::product({rows, row, 128}) < INT64_MAX) return {};
  return tile::unsupported("batch", "the tensors do not fit into 64 bits");
}

tile::Status validate(const HiddenForward& p) {
  TILE_TRY(tile::check_requirements(kTypes, {}, p.type));
  TILE_TRY(validate_sizes(p));
  return check_tensors(is_empty(p), inputs_of(p),
                       {output_of(p, "o", p.o), tile::optional(lse_of(p, p.lse))},
                       {p.workspace, p.workspace_bytes});
}

tile::Status validate(const HiddenBackward& p) {
  TILE_TRY(tile::check_requirements(kTypes, {}, p.type));
  TILE_TRY(validate_sizes(p));
  std::vector<TensorArgument> inputs = inputs_of(p);
  inputs.push_back(output_of(p, "o", p.o));
  inputs.push_back(lse_of(p, p.lse));
  inputs.push_back(output_of(p, "dout", p.dout));
  const std::int64_t size = tile::element_bytes(p.type);
  std::vector<TensorArgument> outputs{tensor("dx", p.dx, p.batch, p.length, 1, p.model_dim, size),
                                      tensor("dtable", p.dtable, 1, p.length, 1, p.model_dim, size,
                                             p.encoding == Encoding::learned)};
  for (const auto& [name, data] : {std::pair{"dwq", p.dwq}, {"dwk", p.dwk}, {"dwv", p.dwv}}) {
    outputs.push_back(tensor(name, data, 1, p.model_dim, p.heads, p.head_dim, size));
  }
  return check_tensors(is_empty(p), inputs, outputs, {p.workspace, p.workspace_bytes});
}

}  // namespace windowed_rope
