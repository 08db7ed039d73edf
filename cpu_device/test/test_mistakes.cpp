// Every mistake that the runtime API and a launch can see gives CUDA's error and changes nothing.
#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include "block_kernels.hpp"
#include "device_array.hpp"

using namespace device_test;

namespace {

struct Mistake {
  const char* what;
  cudaError_t error;
  std::function<cudaError_t()> make;
  bool harmless = true;  // safe on a GPU, where the others are undefined or end the process
};

void check(const std::vector<Mistake>& mistakes) {
  require_kernels_ran();
  for (const Mistake& mistake : mistakes) {
    if (!mistake.harmless && !tile::device_is_simulated()) continue;
    const cudaError_t error = mistake.make();
    // For an impossible grid or block the reference has cudaErrorInvalidConfiguration, and
    // CUDA 13.0 on an H200 gives cudaErrorInvalidValue.
    const bool gpus_own = !tile::device_is_simulated() && error == cudaErrorInvalidValue &&
                          mistake.error == cudaErrorInvalidConfiguration;
    const bool right = error == mistake.error || gpus_own;
    CHECK_MESSAGE(right, std::string(mistake.what), " gave ", std::string(cudaGetErrorName(error)));
    // It is remembered until it is asked for, and spoils nothing.
    CHECK_MESSAGE(cudaPeekAtLastError() == error, std::string(mistake.what));
    CHECK_MESSAGE(cudaGetLastError() == error, std::string(mistake.what));
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
  }
}

template <class T>
T* wild(size_t address) {
  return reinterpret_cast<T*>(address);
}

}  // namespace

TEST_CASE("mistakes with the device") {
  int value = 7;
  cudaDeviceProp p{};
  int devices = 0;
  require(cudaGetDeviceCount(&devices));
  const auto max_threads = cudaDevAttrMaxThreadsPerBlock;
  check({
      {"device -1", cudaErrorInvalidDevice, [] { return cudaSetDevice(-1); }},
      {"a device too many", cudaErrorInvalidDevice, [=] { return cudaSetDevice(devices); }},
      {"properties of -1", cudaErrorInvalidDevice, [&] { return cudaGetDeviceProperties(&p, -1); }},
      {"properties of no device", cudaErrorInvalidDevice,
       [&] { return cudaGetDeviceProperties(&p, devices); }},
      {"attribute of no device", cudaErrorInvalidDevice,
       [&] { return cudaDeviceGetAttribute(&value, max_threads, devices); }},
      {"unknown attribute", cudaErrorInvalidValue,
       [&] { return cudaDeviceGetAttribute(&value, static_cast<cudaDeviceAttr>(99999), 0); }},
      {"attribute to null", cudaErrorInvalidValue,
       [=] { return cudaDeviceGetAttribute(nullptr, max_threads, 0); }},
      {"count to null", cudaErrorInvalidValue, [] { return cudaGetDeviceCount(nullptr); }},
      {"device to null", cudaErrorInvalidValue, [] { return cudaGetDevice(nullptr); }},
      {"properties to null", cudaErrorInvalidValue,
       [] { return cudaGetDeviceProperties(nullptr, 0); }},
      {"driver to null", cudaErrorInvalidValue, [] { return cudaDriverGetVersion(nullptr); }},
      {"runtime to null", cudaErrorInvalidValue, [] { return cudaRuntimeGetVersion(nullptr); }},
  });
  CHECK(value == 7);
}

TEST_CASE("mistakes with memory") {
  std::vector<char> host(100, 'h');
  const DeviceArray<char> a(std::vector<char>(100, 'a')), b(100);
  char* const device = a.data();
  char* const middle = a.data() + 50;
  void* pointer = nullptr;
  size_t bytes = 0;
  const auto up = cudaMemcpyHostToDevice, down = cudaMemcpyDeviceToHost;
  const auto inside = cudaMemcpyDeviceToDevice;
  const auto unknown = static_cast<cudaMemcpyKind>(77);
  check({
      {"too much memory", cudaErrorMemoryAllocation,
       [&] { return cudaMalloc(&pointer, size_t{1} << 50); }},
      {"all of memory", cudaErrorMemoryAllocation,
       [&] { return cudaMalloc(&pointer, ~size_t{0}); }},
      {"malloc to null", cudaErrorInvalidValue, [] { return cudaMalloc(nullptr, 8); }},
      {"host malloc to null", cudaErrorInvalidValue, [] { return cudaMallocHost(nullptr, 8); }},
      {"info to null", cudaErrorInvalidValue, [&] { return cudaMemGetInfo(nullptr, &bytes); },
       false},
      {"free of host memory", cudaErrorInvalidValue, [&] { return cudaFree(host.data()); }},
      {"free of the middle", cudaErrorInvalidValue, [&] { return cudaFree(middle); }},
      {"free of nonsense", cudaErrorInvalidValue, [] { return cudaFree(wild<void>(0x1234)); }},
      {"host free of device memory", cudaErrorInvalidValue, [&] { return cudaFreeHost(device); }},
      {"second free", cudaErrorInvalidValue,
       [] {
         void* once = nullptr;
         require(cudaMalloc(&once, 8));
         require(cudaFree(once));
         return cudaFree(once);
       }},
      {"copy to null", cudaErrorInvalidValue,
       [&] { return cudaMemcpy(nullptr, host.data(), 8, up); }},
      {"copy from null", cudaErrorInvalidValue, [&] { return cudaMemcpy(device, nullptr, 8, up); }},
      {"unknown direction", cudaErrorInvalidMemcpyDirection,
       [&] { return cudaMemcpy(device, host.data(), 8, unknown); }},
      {"host pointer as target", cudaErrorInvalidValue,
       [&] { return cudaMemcpy(host.data(), host.data() + 50, 8, up); }},
      {"device pointer as host source", cudaErrorInvalidValue,
       [&] { return cudaMemcpy(device, b.data(), 8, up); }, false},  // a GPU sees what was meant
      {"host pointer as source", cudaErrorInvalidValue,
       [&] { return cudaMemcpy(host.data(), host.data() + 50, 8, down); }},
      {"host pointer as device target", cudaErrorInvalidValue,
       [&] { return cudaMemcpy(host.data(), device, 8, inside); }},
      {"copy past the end", cudaErrorInvalidValue,
       [&] { return cudaMemcpy(middle, host.data(), 51, up); }, false},
      {"copy from past the end", cudaErrorInvalidValue,
       [&] { return cudaMemcpy(host.data(), middle, 51, down); }, false},
      {"endless copy", cudaErrorInvalidValue,
       [&] { return cudaMemcpy(middle, host.data(), ~size_t{0} - 40, up); }, false},
      {"asynchronous copy to null", cudaErrorInvalidValue,
       [&] { return cudaMemcpyAsync(nullptr, host.data(), 8, up); }},
      {"rows wider than the pitch", cudaErrorInvalidPitchValue,
       [&] { return cudaMemcpy2D(device, 10, host.data(), 20, 11, 2, up); }},
      {"rows wider than the source's pitch", cudaErrorInvalidPitchValue,
       [&] { return cudaMemcpy2D(device, 20, host.data(), 10, 11, 2, up); }},
      {"one row wider than the pitch", cudaErrorInvalidValue,
       [&] { return cudaMemcpy2D(device, 10, host.data(), 20, 11, 1, up); }},
      {"rows past the end", cudaErrorInvalidValue,
       [&] { return cudaMemcpy2D(device, 30, host.data(), 20, 11, 4, up); }, false},
      {"endless rows", cudaErrorInvalidValue,
       [&] { return cudaMemcpy2D(device, size_t{1} << 63, host.data(), 20, 10, 3, up); }, false},
      {"unknown direction of rows", cudaErrorInvalidMemcpyDirection,
       [&] { return cudaMemcpy2D(device, 10, host.data(), 10, 10, 2, unknown); }},
      {"fill of null", cudaErrorInvalidValue, [] { return cudaMemset(nullptr, 0, 8); }},
      {"fill of host memory", cudaErrorInvalidValue, [&] { return cudaMemset(host.data(), 0, 8); },
       false},
      {"fill past the end", cudaErrorInvalidValue, [&] { return cudaMemset(middle, 0, 51); },
       false},
      {"endless fill", cudaErrorInvalidValue,
       [&] { return cudaMemset(middle, 0, ~size_t{0} - 40); }, false},
      {"attributes to null", cudaErrorInvalidValue,
       [&] { return cudaPointerGetAttributes(nullptr, device); }},
  });
  CHECK(a.download() == std::vector<char>(100, 'a'));
  CHECK(b.download() == std::vector<char>(100));
  CHECK(host == std::vector<char>(100, 'h'));
}

TEST_CASE("mistakes with symbols") {
  std::vector<float> before(kConstants), after(kConstants), host(2 * kConstants, 5);
  require(get_constants(before.data(), kConstants, 0));
  const size_t bytes = kConstants * sizeof(float);
  const auto up = cudaMemcpyHostToDevice, down = cudaMemcpyDeviceToHost;
  check({
      {"too much", cudaErrorInvalidValue,
       [&] { return to_constants(host.data(), bytes + 1, 0, up); }},
      {"too far", cudaErrorInvalidValue, [&] { return to_constants(host.data(), 8, bytes, up); }},
      {"an endless offset", cudaErrorInvalidValue,
       [&] { return to_constants(host.data(), 8, ~size_t{0} - 3, up); }},
      {"wrong direction", cudaErrorInvalidMemcpyDirection,
       [&] { return to_constants(host.data(), bytes, 0, down); }},
      {"from null", cudaErrorInvalidValue, [&] { return to_constants(nullptr, bytes, 0, up); }},
      {"reading too much", cudaErrorInvalidValue,
       [&] { return from_constants(host.data(), bytes + 1, 0, down); }},
      {"reading too far", cudaErrorInvalidValue,
       [&] { return from_constants(host.data(), 1, bytes, down); }},
      {"reading in the wrong direction", cudaErrorInvalidMemcpyDirection,
       [&] { return from_constants(host.data(), bytes, 0, up); }},
      {"to null", cudaErrorInvalidValue, [&] { return from_constants(nullptr, bytes, 0, down); }},
  });
  require(get_constants(after.data(), kConstants, 0));
  CHECK(after == before);
  CHECK(host == std::vector<float>(2 * kConstants, 5));
}

TEST_CASE("mistakes with streams and events") {
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr, recorded = nullptr, untimed = nullptr;
  require(cudaEventCreate(&event));
  require(cudaEventCreate(&recorded));
  require(cudaEventRecord(recorded));
  require(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
  require(cudaEventRecord(untimed));
  float ms = 0;
  const auto bad = cudaErrorInvalidResourceHandle;
  const auto destroyed_stream = [] {
    cudaStream_t gone = nullptr;
    require(cudaStreamCreate(&gone));
    require(cudaStreamDestroy(gone));
    return gone;
  };
  const auto destroyed_event = [] {
    cudaEvent_t gone = nullptr;
    require(cudaEventCreate(&gone));
    require(cudaEventDestroy(gone));
    return gone;
  };
  const DeviceArray<char> a(8);
  check({
      {"stream to null", cudaErrorInvalidValue, [] { return cudaStreamCreate(nullptr); }},
      {"flags of a stream", cudaErrorInvalidValue,
       [&] { return cudaStreamCreateWithFlags(&stream, 77); }},
      {"event to null", cudaErrorInvalidValue, [] { return cudaEventCreate(nullptr); }},
      {"flags of an event", cudaErrorInvalidValue,
       [&] { return cudaEventCreateWithFlags(&event, 0x1000); }},
      {"no stream destroyed", bad, [] { return cudaStreamDestroy(nullptr); }},
      {"no event destroyed", bad, [] { return cudaEventDestroy(nullptr); }},
      {"no event recorded", bad, [] { return cudaEventRecord(nullptr); }},
      {"no event waited for", bad, [] { return cudaEventSynchronize(nullptr); }},
      {"time to null", cudaErrorInvalidValue,
       [&] { return cudaEventElapsedTime(nullptr, recorded, recorded); }},
      {"time since what never was", bad,
       [&] { return cudaEventElapsedTime(&ms, event, recorded); }},
      {"time until what never was", bad,
       [&] { return cudaEventElapsedTime(&ms, recorded, event); }},
      {"time without a clock", bad, [&] { return cudaEventElapsedTime(&ms, recorded, untimed); }},
      {"wait with unknown flags", cudaErrorInvalidValue,
       [&] { return cudaStreamWaitEvent(nullptr, recorded, 0x1000); }},
      {"wait for no event", bad, [] { return cudaStreamWaitEvent(nullptr, nullptr); }},
      {"stream destroyed twice", bad, [&] { return cudaStreamDestroy(destroyed_stream()); }, false},
      {"destroyed stream", bad, [&] { return cudaStreamSynchronize(destroyed_stream()); }, false},
      {"fill in a destroyed stream", bad,
       [&] { return cudaMemsetAsync(a.data(), 0, 1, destroyed_stream()); }, false},
      {"copy in a destroyed stream", bad,
       [&] {
         return cudaMemcpyAsync(a.data(), a.data(), 1, cudaMemcpyDefault, destroyed_stream());
       },
       false},
      {"event destroyed twice", bad, [&] { return cudaEventDestroy(destroyed_event()); }, false},
      {"destroyed event", bad, [&] { return cudaEventQuery(destroyed_event()); }, false},
  });
  for (const cudaEvent_t e : {event, recorded, untimed}) require(cudaEventDestroy(e));
}

TEST_CASE("launches that are refused leave everything as it was") {
  cudaDeviceProp p{};
  require(cudaGetDeviceProperties(&p, 0));
  const DeviceArray<int> out(std::vector<int>(4096, -7));
  auto launch = [&](dim3 grid, dim3 block, size_t bytes = 0, cudaStream_t stream = nullptr) {
    return [=, to = out.data()] {
      number_threads(to, grid, block, bytes, stream);
      return cudaPeekAtLastError();
    };
  };
  const auto configuration = cudaErrorInvalidConfiguration;
  std::vector<Mistake> mistakes{
      {"1025 threads", configuration, launch(1, 1025)},
      {"33 * 32 threads", configuration, launch(1, dim3(33, 32))},
      {"65536 threads in each extent", configuration, launch(1, dim3(65536, 65536, 1))},
      {"65 threads along z", configuration, launch(1, dim3(1, 1, 65))},
      {"no threads", configuration, launch(1, dim3(0, 1, 1))},
      {"no threads along y", configuration, launch(1, dim3(1, 0, 1))},
      {"no threads along z", configuration, launch(1, dim3(1, 1, 0))},
      {"no blocks", configuration, launch(0, 1)},
      {"no blocks along y", configuration, launch(dim3(1, 0, 1), 1)},
      {"no blocks along z", configuration, launch(dim3(1, 1, 0), 1)},
      {"2^31 blocks", configuration, launch(0x80000000u, 1)},
      {"65536 blocks along y", configuration, launch(dim3(1, 65536, 1), 1)},
      {"65536 blocks along z", configuration, launch(dim3(1, 1, 65536), 1)},
      {"49 KB without opting in", cudaErrorInvalidValue, launch(1, 1, 49 * 1024)},
      {"endless shared memory", cudaErrorInvalidValue, launch(1, 1, size_t{1} << 40),
       false},  // a GPU takes the low 32 bits
      {"a stream that never was", cudaErrorInvalidResourceHandle,
       launch(1, 1, 0, wild<CUstream_st>(0x1000)), false},
      {"more than a block can opt in to", cudaErrorInvalidValue,
       [&] { return allow_dynamic_bytes(static_cast<int>(p.sharedMemPerBlockOptin) + 1); }},
      {"less than nothing", cudaErrorInvalidValue, [] { return allow_dynamic_bytes(-1); }},
      {"an attribute of no function", cudaErrorInvalidDeviceFunction,
       [] {
         return cudaFuncSetAttribute(nullptr, cudaFuncAttributeMaxDynamicSharedMemorySize, 1);
       }},
  };
  check(mistakes);
  CHECK(out.download() == std::vector<int>(4096, -7));
  if (tile::device_is_simulated()) tile::device_report();

  // The nearest that are accepted.
  const std::vector<std::function<cudaError_t()>> accepted = {
      launch(1, 1024), launch(1, dim3(1, 1, 64)), launch(1, dim3(2, 512, 1)),
      launch(1, 1, 48 * 1024)};
  for (const auto& run : accepted) CHECK(run() == cudaSuccess);
  CHECK(out.download()[1023] == 1023);
}
