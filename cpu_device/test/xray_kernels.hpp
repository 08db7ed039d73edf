// The smallest kernels that show each way in which a warp may ask for memory. The line that is
// counted is marked in xray_kernels.cu by a comment, `// [mark]`.
#pragma once

#include <span>

namespace device_test {

inline constexpr int kXrayElements = 4096;  // of `in` and `out`

struct XrayKernel {
  const char* name;
  void (*launch)(const float* in, float* out);
};
std::span<const XrayKernel> xray_kernels();

}  // namespace device_test
