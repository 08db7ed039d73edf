// A launcher's choice of the kernel for an element type.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <string>

#include "tile/host/dtype.hpp"
#include "tile/host/status.hpp"

namespace tile {

/// Calls `launch` with a value of the C++ type that `type` names, of which only the type matters:
///
///     return tile::with_element_type(problem.type, [&](auto element) {
///       return launch<decltype(element)>(problem, buffers, stream);
///     });
template <class Launch>
Status with_element_type(DType type, Launch&& launch) {
  switch (type) {
    case DType::fp32: return launch(float{});
    case DType::fp16: return launch(__half{});
    case DType::bf16: return launch(__nv_bfloat16{});
    case DType::fp64:
    case DType::tf32:
    case DType::e4m3: break;
  }
  return unsupported("type", std::string(name(type)) + " has no kernel");
}

}  // namespace tile
