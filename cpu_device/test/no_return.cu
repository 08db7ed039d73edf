// Mistakes of which the compiler and reports are to speak, in a folder whose name has a blank.
#include <cuda_runtime.h>

__device__ int twice(int) {}

__global__ void apply(int* out) { *out = twice(*out); }

int main() {
  int *data, value = 1;
  cudaMallocManaged(&data, sizeof(int));
  cudaMemcpy(data, &value, 8, cudaMemcpyHostToDevice);  // more than there is
  apply<<<1, 1>>>(data);
}
