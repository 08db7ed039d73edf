// Head dimensions that kernels know as constants.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <string>
#include <type_traits>

#include "tile/host/dtype.hpp"
#include "tile/host/status.hpp"

namespace tile {

/// Calls `launch` with the head dimension as a constant.
template <class Launch>
Status with_head_dim(std::int64_t head_dim, Launch launch) {
  switch (head_dim) {
    case 16: return launch(std::integral_constant<int, 16>{});
    case 32: return launch(std::integral_constant<int, 32>{});
    case 64: return launch(std::integral_constant<int, 64>{});
    case 128: return launch(std::integral_constant<int, 128>{});
    case 256: return launch(std::integral_constant<int, 256>{});
    default: return unsupported("head_dim", std::to_string(head_dim) + " has no kernel");
  }
}

/// The same, after a value of the element type, of which only the type matters.
template <class Launch>
Status with_16_bits_and_head_dim(DType type, std::int64_t head_dim, Launch launch) {
  return with_head_dim(head_dim, [&](auto dim) {
    return type == DType::fp16 ? launch(__half{}, dim) : launch(__nv_bfloat16{}, dim);
  });
}

}  // namespace tile
