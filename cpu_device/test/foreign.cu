// What programs from elsewhere use and this project does not, run by ./tour play. Prints what is
// wrong.
#include <cstdio>

#include <cuComplex.h>
#include <cublas_v2.h>  // of which nothing is used
#include <cuda_runtime.h>

extern "C" int twice(int x);  // foreign_part.c

struct Pair {
  int a, b;
};

__managed__ int managed = 3;
__managed__ float managed_vector[3] = {1, 2, 3};
__shared__ int tile[32], spare;

__global__ void add(Pair pair, int* out, int more = 4) { *out = pair.a + pair.b + more; }
__global__ void flip(int* data) {
  const int t = threadIdx.x;
  tile[t] = data[t];
  if (t == 0) spare = 1;
  __syncthreads();
  data[t] = tile[31 - t] + spare;
}
__global__ void square(cuFloatComplex* z) { *z = cuCdivf(cuCmulf(*z, *z), {2, 0}); }
__global__ void __cluster_dims__(2, 1, 1) in_clusters(int* out) { *out = gridDim.x; }
__global__ void change_managed() {
  atomicAdd(&managed, 1);
  if (threadIdx.x < 3) managed_vector[threadIdx.x] *= 2;
}

static int wrong = 0;
static void check(const char* what, double got, double expected) {
  if (got == expected) return;
  printf("%s: got %g, expected %g\n", what, got, expected);
  ++wrong;
}

int main() {
  int* data;
  cudaMallocManaged(&data, 32 * sizeof(int));
  Pair pair = {1, 1};
  add<<<1, 1>>>(pair, data);
  cudaThreadSynchronize();
  check("an argument by default", *data, 6);
  add<<<1, 1>>>({2, 3}, data, 1);
  cudaDeviceSynchronize();
  check("a braced argument", *data, 6);

  for (int i = 0; i < 32; ++i) data[i] = i;
  flip<<<1, 32>>>(data);
  cudaDeviceSynchronize();
  check("shared memory outside of functions", data[0], 32);

  cuFloatComplex* z;
  cudaMallocManaged(&z, sizeof *z);
  *z = make_cuFloatComplex(1, 2);
  square<<<1, 1>>>(z);
  cudaDeviceSynchronize();
  check("real part", cuCrealf(*z), -1.5);
  check("imaginary part", cuCimagf(*z), 2);

  in_clusters<<<3, 1>>>(data);
  check("clusters of 2 in a grid of 3", cudaGetLastError(), cudaErrorInvalidClusterSize);
  in_clusters<<<4, 1>>>(data);
  cudaDeviceSynchronize();
  check("clusters of 2", *data, 4);
  int four = 5;
  cudaLaunchAttribute none[1];
  cudaLaunchConfig_t config = {dim3(1), dim3(1), 0, nullptr, none, 0};
  void* arguments[] = {&pair, &data, &four};
  check("cudaLaunchKernelExC", cudaLaunchKernelExC(&config, (void*)add, arguments), cudaSuccess);
  cudaDeviceSynchronize();
  check("its result", *data, 7);

  managed = 5;
  change_managed<<<1, 32>>>();
  cudaDeviceSynchronize();
  float vector[3];
  check("managed variable", managed, 37);
  check("copy", cudaMemcpy(vector, managed_vector, sizeof vector, cudaMemcpyDefault), cudaSuccess);
  check("what it copied", vector[2], 6);
  check("fill", cudaMemset(&managed, 0, sizeof managed), cudaSuccess);
  check("what it filled", managed, 0);

  cudaPitchedPtr box;
  check("cudaMalloc3D", cudaMalloc3D(&box, make_cudaExtent(10, 4, 3)), cudaSuccess);
  check("cudaMemset3D", cudaMemset3D(box, 7, make_cudaExtent(10, 4, 3)), cudaSuccess);
  char host[3][4][10] = {};
  cudaMemcpy3DParms copy = {};
  copy.srcPtr = box;
  copy.dstPtr = make_cudaPitchedPtr(host, 10, 10, 4);
  copy.extent = make_cudaExtent(10, 4, 3);
  copy.kind = cudaMemcpyDeviceToHost;
  check("cudaMemcpy3D", cudaMemcpy3D(&copy), cudaSuccess);
  check("what it copied", host[2][3][9], 7);

  cudaSharedMemConfig banks;
  check("cudaDeviceGetSharedMemConfig", cudaDeviceGetSharedMemConfig(&banks), cudaSuccess);
  check("its banks", banks, cudaSharedMemBankSizeFourByte);

  check("a function in C", twice(21), 42);
  printf("%d are wrong\n", wrong);
}
