// A tensor of heads' rows among the arguments of a step, and its checks before a launch.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "tile/host/dtype.hpp"
#include "tile/host/overlap.hpp"
#include "tile/host/status.hpp"
#include "tile/host/strides.hpp"
#include "tile/host/text.hpp"

namespace tile {

/// INT64_MAX if it overflows.
inline std::int64_t product(std::initializer_list<std::int64_t> factors) {
  std::int64_t all = 1;
  for (const std::int64_t each : factors) {
    if (__builtin_mul_overflow(all, each, &all)) return INT64_MAX;
  }
  return all;
}

/// A tensor of rows among the arguments, [batch][length][heads][dim] with strides.
struct TensorArgument {
  std::string name;
  const void* data;
  Strides stride;
  std::int64_t batch, length, heads, dim, element_bytes;
  bool may_be_null = false;
  std::string may_be{};  // an output: the name of the input that it may be, element for element

  bool empty() const { return batch == 0 || length == 0 || heads == 0 || dim == 0; }
  /// Elements from the first to the end of the last; false if they overflow 64 bits as bytes.
  bool extent(std::int64_t* elements) const {
    *elements = dim;
    for (const auto& [count, distance] :
         {std::pair{batch, stride.batch}, {heads, stride.head}, {length, stride.row}}) {
      std::int64_t all = 0;
      if (__builtin_mul_overflow(count - 1, distance, &all) ||
          __builtin_add_overflow(*elements, all, elements)) {
        return false;
      }
    }
    std::int64_t bytes = 0;
    return !__builtin_mul_overflow(*elements, element_bytes, &bytes);
  }
  /// Of one that is not empty, and whose extent does not overflow.
  Region region() const {
    return {data,
            dim * element_bytes,
            {Region::dimension(batch, stride.batch, element_bytes),
             Region::dimension(heads, stride.head, element_bytes),
             Region::dimension(length, stride.row, element_bytes)}};
  }
};

inline Status check_strides(const TensorArgument& x) {
  for (const auto& [what, stride] :
       {std::pair{"batch", x.stride.batch}, {"head", x.stride.head}, {"row", x.stride.row}}) {
    if (stride < 0) {
      return invalid_argument(x.name, std::string("its ") + what + " stride " +
                                          std::to_string(stride) + " is negative");
    }
  }
  std::int64_t elements = 0;
  if (!x.empty() && !x.extent(&elements)) {
    return invalid_argument(x.name, "its strides lead beyond 64 bits");
  }
  return {};
}

/// No two elements of an output may lie in one place.
inline Status check_no_overlap_within(const TensorArgument& x) {
  if (!overlaps_itself(x.region())) return {};
  return invalid_argument(x.name, "its rows overlap one another");
}

inline Status check_pointer(const TensorArgument& x) {
  if (!x.data) return invalid_argument(x.name, "is null");
  if (reinterpret_cast<std::uintptr_t>(x.data) % static_cast<std::uintptr_t>(x.element_bytes)) {
    return invalid_argument(x.name, "is not aligned to an element");
  }
  return {};
}

inline Status check_apart(const TensorArgument& output, const TensorArgument& other) {
  const bool is_same = output.data == other.data && output.stride == other.stride;
  if (output.empty() || other.empty() || (is_same && output.may_be == other.name)) return {};
  if (!overlap(output.region(), other.region())) return {};
  return invalid_argument(output.name, "overlaps " + other.name);
}

struct Workspace {
  const void* data;
  std::int64_t bytes;
};

/// `is_empty`: nothing is computed, and no pointer matters.
inline Status check_tensors(bool is_empty, const std::vector<TensorArgument>& inputs,
                            const std::vector<TensorArgument>& outputs,
                            const Workspace& workspace) {
  for (const auto* tensors : {&inputs, &outputs}) {
    for (const TensorArgument& x : *tensors) {
      if (Status s = check_strides(x); !s.ok()) return s;
    }
  }
  if (workspace.bytes < 0) return invalid_argument("workspace_bytes", "is negative");
  if (is_empty) return {};
  for (const TensorArgument& x : outputs) {
    if (x.empty()) continue;
    if (Status s = check_no_overlap_within(x); !s.ok()) return s;
  }
  for (const auto* tensors : {&inputs, &outputs}) {
    for (const TensorArgument& x : *tensors) {
      if (x.empty() || (!x.data && x.may_be_null)) continue;
      if (Status s = check_pointer(x); !s.ok()) return s;
    }
  }
  std::vector<TensorArgument> others = inputs, written = outputs;
  if (workspace.bytes > 0) {
    if (!workspace.data) return invalid_argument("workspace", "is null");
    if (reinterpret_cast<std::uintptr_t>(workspace.data) % 16) {
      return invalid_argument("workspace", "is not aligned to 16 bytes");
    }
    written.push_back({"workspace", workspace.data, {}, 1, 1, 1, workspace.bytes, 1});
  }
  for (const TensorArgument& output : written) {
    for (const TensorArgument& other : others) {
      if (!output.data || !other.data) continue;
      if (Status s = check_apart(output, other); !s.ok()) return s;
    }
    others.push_back(output);
  }
  return {};
}

/// Whether every row begins at a multiple of 16 bytes; if not, the Status names the tensor.
inline Status check_row_chunks(DType type, const std::vector<TensorArgument>& tensors) {
  const auto width = static_cast<std::int64_t>(16 / size_bytes(type));
  for (const TensorArgument& x : tensors) {
    if (reinterpret_cast<std::uintptr_t>(x.data) % 16 != 0) {
      return unsupported(x.name, "is not aligned to 16 bytes");
    }
    for (const std::int64_t each : {x.stride.batch, x.stride.head, x.stride.row}) {
      if (each % width != 0) {
        return unsupported(x.name,
                           "its stride " + std::to_string(each) + " is no multiple of 16 bytes");
      }
    }
  }
  return {};
}

/// Whether a workspace has as many bytes as a step needs.
inline Status check_workspace(std::int64_t needed, std::int64_t given) {
  if (given >= needed) return {};
  return unsupported("workspace_bytes", grouped(needed) + " are needed, not " + grouped(given));
}

}  // namespace tile
