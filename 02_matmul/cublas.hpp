// cuBLAS, which the steps are measured against.
#pragma once

#include "harness/chapter.hpp"
#include "matmul.hpp"

namespace matmul {

/// The same product by cuBLAS, in fp32 and never in TF32. Refuses, with Code::unsupported, if this
/// build has no cuBLAS, or if the environment could make it compute with less.
tile::Peer cublas(const Problem& problem, const Buffers& buffers);

}  // namespace matmul
