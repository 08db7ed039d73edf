// Mistakes of which the compiler and reports are to speak, in a folder whose name has a blank.
#include <cuda_runtime.h>

__device__ int twice(int) {}

__global__ void apply(int* out) { *out = twice(*out); }
__global__ void to_mask(int* lanes) { *lanes = (1u << *lanes) - 1; }

int main() {
  int *data, value = 32;
  cudaMallocManaged(&data, sizeof(int));
  cudaMemcpy(data, &value, 8, cudaMemcpyHostToDevice);  // more than there is
  apply<<<1, 1>>>(data);
  *data = value;
  to_mask<<<1, 1>>>(data);
}
