// cuBLAS, which the steps are measured against.
#pragma once

#include "harness/chapter.hpp"
#include "matmul.hpp"

namespace matmul {

/// The same product by cuBLAS, with sums in fp32; fp32 is never multiplied as tf32. Where there is
/// a bias or an activation, add_bias_and_activate() follows it. Refuses, with Code::unsupported, if
/// this build has no cuBLAS, or if the environment could make it compute something else.
tile::Peer cublas(const Problem& problem, const Buffers& buffers);

}  // namespace matmul
