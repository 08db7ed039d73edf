// For builds without cuBLAS: on the CPU device, or with a CUDA toolkit that lacks it.
#include "cublas.hpp"

namespace matmul {

tile::Peer cublas(const Problem&, const Buffers&) {
  return {"cuBLAS", [](void*) { return tile::unsupported("cuBLAS", "this build has none"); }};
}

}  // namespace matmul
