// An address whose origin is hidden from ptxas, for pointers that a loop or several chunks start
// from.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace tile::ptx {

/// The same address, of global memory. Without it ptxas multiplies row and stride anew for each
/// chunk of a row, ten instructions where one addition does.
template <class T>
__device__ __forceinline__ T* address_once(T* global) {
#ifdef __CUDA_ARCH__
  std::size_t address = __cvta_generic_to_global(global);
  asm("" : "+l"(address));
  return static_cast<T*>(__cvta_global_to_generic(address));
#else
  return global;
#endif
}

}  // namespace tile::ptx
