// Three kernels that wait not at all, at block barriers, and at warp shuffles.
#pragma once

namespace cpu_device_bench {

// Each runs once on device memory; all arrays are dense and row-major.
void vector_add(const float* a, const float* b, float* c, int n);
void matmul(const float* a, const float* b, float* c, int n);   // n x n, n a multiple of 32
void softmax(const float* x, float* y, int rows, int columns);  // 256 threads a row

}  // namespace cpu_device_bench
