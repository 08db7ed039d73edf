// The runtime API: errors, the device, streams and events.
#include <doctest/doctest.h>

#include <chrono>
#include <climits>
#include <string>
#include <thread>
#include <vector>

#include "block_kernels.hpp"
#include "device_array.hpp"

using namespace device_test;

TEST_CASE("errors have CUDA's numbers, names and texts") {
  const struct {
    cudaError_t error;
    int number;
    const char *name, *text;
  } errors[] = {
#define ERROR(name, number, text) {name, number, #name, text}
      ERROR(cudaSuccess, 0, "no error"),
      ERROR(cudaErrorInvalidValue, 1, "invalid argument"),
      ERROR(cudaErrorMemoryAllocation, 2, "out of memory"),
      ERROR(cudaErrorInvalidConfiguration, 9, "invalid configuration argument"),
      ERROR(cudaErrorInvalidPitchValue, 12, "invalid pitch argument"),
      ERROR(cudaErrorInvalidSymbol, 13, "invalid device symbol"),
      ERROR(cudaErrorInvalidMemcpyDirection, 21, "invalid copy direction for memcpy"),
      ERROR(cudaErrorInvalidDeviceFunction, 98, "invalid device function"),
      ERROR(cudaErrorNoDevice, 100, "no CUDA-capable device is detected"),
      ERROR(cudaErrorInvalidDevice, 101, "invalid device ordinal"),
      ERROR(cudaErrorInvalidResourceHandle, 400, "invalid resource handle"),
      ERROR(cudaErrorNotReady, 600, "device not ready"),
      ERROR(cudaErrorIllegalAddress, 700, "an illegal memory access was encountered"),
      ERROR(cudaErrorLaunchTimeout, 702, "the launch timed out and was terminated"),
      ERROR(cudaErrorLaunchFailure, 719, "unspecified launch failure"),
      ERROR(cudaErrorNotPermitted, 800, "operation not permitted"),
      ERROR(cudaErrorNotSupported, 801, "operation not supported"),
#undef ERROR
  };
  for (const auto& e : errors) {
    CHECK(e.error == e.number);
    CHECK(std::string(cudaGetErrorName(e.error)) == e.name);
    CHECK(std::string(cudaGetErrorString(e.error)) == e.text);
  }
  const auto unknown = static_cast<cudaError_t>(12345);
  CHECK(std::string(cudaGetErrorName(unknown)) == "unrecognized error code");
  CHECK(std::string(cudaGetErrorString(unknown)) == "unrecognized error code");
}

TEST_CASE("the device's properties") {
  int count = 0, device = -1, driver = 0, runtime = 0;
  require(cudaGetDeviceCount(&count));
  CHECK(count >= 1);
  require(cudaSetDevice(0));
  require(cudaGetDevice(&device));
  CHECK(device == 0);
  require(cudaDriverGetVersion(&driver));
  require(cudaRuntimeGetVersion(&runtime));
  CHECK(runtime >= 12080);
  CHECK(driver >= 12080);
  CHECK(runtime == CUDART_VERSION);

  cudaDeviceProp p{};
  require(cudaGetDeviceProperties(&p, 0));
  CHECK(std::string(p.name).size() > 2);
  if (tile::device_is_simulated()) CHECK(std::string(p.name) == "CPU device");
  CHECK(p.totalGlobalMem > size_t{1} << 28);
  CHECK(p.sharedMemPerBlock == 48 * 1024);
  CHECK(p.sharedMemPerBlockOptin >= 64 * 1024);
  CHECK(p.sharedMemPerMultiprocessor >= p.sharedMemPerBlockOptin + p.reservedSharedMemPerBlock);
  CHECK(p.regsPerBlock == 65536);
  CHECK(p.maxBlocksPerMultiProcessor >= 16);
  CHECK(p.totalConstMem == 64 * 1024);

  const struct {
    cudaDeviceAttr attribute;
    long long value;
  } attributes[] = {
      {cudaDevAttrMaxThreadsPerBlock, 1024},
      {cudaDevAttrMaxThreadsPerBlock, p.maxThreadsPerBlock},
      {cudaDevAttrMaxBlockDimX, p.maxThreadsDim[0]},
      {cudaDevAttrMaxBlockDimY, p.maxThreadsDim[1]},
      {cudaDevAttrMaxBlockDimZ, p.maxThreadsDim[2]},
      {cudaDevAttrMaxBlockDimZ, 64},
      {cudaDevAttrMaxGridDimX, p.maxGridSize[0]},
      {cudaDevAttrMaxGridDimX, INT_MAX},
      {cudaDevAttrMaxGridDimY, p.maxGridSize[1]},
      {cudaDevAttrMaxGridDimZ, p.maxGridSize[2]},
      {cudaDevAttrMaxGridDimZ, 65535},
      {cudaDevAttrMaxSharedMemoryPerBlock, static_cast<long long>(p.sharedMemPerBlock)},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, static_cast<long long>(p.sharedMemPerBlockOptin)},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor,
       static_cast<long long>(p.sharedMemPerMultiprocessor)},
      {cudaDevAttrWarpSize, p.warpSize},
      {cudaDevAttrWarpSize, 32},
      {cudaDevAttrMultiProcessorCount, p.multiProcessorCount},
      {cudaDevAttrMaxThreadsPerMultiProcessor, p.maxThreadsPerMultiProcessor},
      {cudaDevAttrComputeCapabilityMajor, p.major},
      {cudaDevAttrComputeCapabilityMinor, p.minor},
      {cudaDevAttrL2CacheSize, p.l2CacheSize}};
  for (const auto& a : attributes) {
    int value = -1;
    require(cudaDeviceGetAttribute(&value, a.attribute, 0));
    CAPTURE(static_cast<int>(a.attribute));
    CHECK(value == a.value);
  }
  CHECK(p.multiProcessorCount > 0);
  CHECK(p.major * 10 + p.minor >= 75);
}

TEST_CASE("streams and events") {
  using namespace std::chrono_literals;
  cudaStream_t first = nullptr, second = nullptr;
  require(cudaStreamCreate(&first));
  require(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
  cudaEvent_t start = nullptr, end = nullptr, untimed = nullptr;
  require(cudaEventCreate(&start));
  require(cudaEventCreateWithFlags(&end, cudaEventBlockingSync));
  require(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));

  CHECK(cudaEventQuery(start) == cudaSuccess);  // never recorded: nothing to wait for
  require(cudaEventSynchronize(start));
  require(cudaEventRecord(start, first));
  require(cudaEventSynchronize(start));
  std::this_thread::sleep_for(20ms);
  const DeviceArray<int> out(64 * 100);
  number_threads(out.data(), 100, 64, 0, first);
  require(cudaEventRecord(end, first));
  require(cudaEventRecord(untimed, first));
  // What follows in the second stream waits for the kernel in the first.
  require(cudaStreamWaitEvent(second, untimed));
  std::vector<int> copy(64 * 100);
  require(cudaMemcpyAsync(copy.data(), out.data(), copy.size() * sizeof(int),
                          cudaMemcpyDeviceToHost, second));
  require(cudaStreamSynchronize(second));
  for (size_t i = 0; i < copy.size(); ++i) REQUIRE(copy[i] == static_cast<int>(i));
  CHECK(cudaStreamQuery(second) == cudaSuccess);
  CHECK(cudaEventQuery(end) == cudaSuccess);

  float milliseconds = -1;
  require(cudaEventElapsedTime(&milliseconds, start, end));
  CHECK(milliseconds >= 18);
  CHECK(milliseconds < 20'000);
  float backwards = 1;
  require(cudaEventElapsedTime(&backwards, end, start));
  CHECK(backwards == doctest::Approx(-milliseconds));
  require(cudaEventRecord(start, cudaStreamLegacy));
  require(cudaEventRecord(start, cudaStreamPerThread));
  require(cudaStreamSynchronize(cudaStreamPerThread));

  for (const cudaEvent_t event : {start, end, untimed}) require(cudaEventDestroy(event));
  require(cudaStreamDestroy(first));
  require(cudaStreamDestroy(second));
}

TEST_CASE("an error belongs to the thread that made it") {
  CHECK(cudaSetDevice(-1) == cudaErrorInvalidDevice);
  cudaError_t others = cudaErrorNotReady;
  std::thread([&] { others = cudaGetLastError(); }).join();
  CHECK(others == cudaSuccess);
  CHECK(cudaGetLastError() == cudaErrorInvalidDevice);
}
