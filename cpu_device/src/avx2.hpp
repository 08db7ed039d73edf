// Which instructions the processor has: loops over a tile's elements are compiled twice.
#pragma once

namespace cpu_device {

#if defined(__x86_64__)
inline bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return has;
}
#endif

}  // namespace cpu_device
