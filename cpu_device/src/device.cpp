// The simulated card, its streams and events, and the attributes of kernels.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "closed_memory.hpp"
#include "cpu_device/options.h"
#include "state.hpp"

using Clock = std::chrono::steady_clock;

struct CUstream_st {};

struct CUevent_st {
  bool timed;
  bool recorded = false;
  Clock::time_point time;
};

namespace cpu_device {
namespace {

std::mutex mutex;
std::map<cudaStream_t, std::unique_ptr<CUstream_st>> streams;
std::map<cudaEvent_t, std::unique_ptr<CUevent_st>> events;
// Set by cudaFuncSetAttribute.
std::map<const void*, size_t> dynamic_limits;
std::set<const void*> with_large_clusters;

// What differs between cards (CUDA C++ Programming Guide, "Technical Specifications per Compute
// Capability").
struct Limits {
  int capability;
  int shared_kib;  // of a multiprocessor
  int threads, blocks;
};
constexpr Limits kLimits[] = {{75, 64, 1024, 16},
                              {80, 164, 2048, 32},
                              {86, 100, 1536, 16},
                              {89, 100, 1536, 24},
                              {90, 228, 2048, 32}};
static_assert(std::ranges::equal(kLimits, kCapabilities, {}, &Limits::capability));

cudaDeviceProp make_properties(const Limits& limits) {
  cudaDeviceProp p{};
  std::strcpy(p.name, "CPU device");
  // Half of this machine's memory, the other half being the host's.
  p.totalGlobalMem =
      static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE)) / 2;
  p.major = limits.capability / 10;
  p.minor = limits.capability % 10;
  p.multiProcessorCount = 4;  // few, so that persistent kernels wrap around
  p.sharedMemPerBlock = 48 * 1024;
  // From 8.0 on the system keeps a KiB of each block's for itself.
  p.reservedSharedMemPerBlock = limits.capability >= 80 ? 1024 : 0;
  p.sharedMemPerMultiprocessor = static_cast<size_t>(limits.shared_kib) * 1024;
  p.sharedMemPerBlockOptin = p.sharedMemPerMultiprocessor - p.reservedSharedMemPerBlock;
  p.regsPerBlock = p.regsPerMultiprocessor = 65536;
  p.warpSize = 32;
  p.maxThreadsPerBlock = 1024;
  p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
  p.maxThreadsDim[2] = 64;
  p.maxGridSize[0] = 0x7fffffff;
  p.maxGridSize[1] = p.maxGridSize[2] = 65535;
  p.totalConstMem = 64 * 1024;
  p.maxThreadsPerMultiProcessor = limits.threads;
  p.maxBlocksPerMultiProcessor = limits.blocks;
  p.clusterLaunch = limits.capability >= 90;
  p.cooperativeLaunch = p.concurrentKernels = 1;
  p.memPitch = 0x7fffffff;
  p.textureAlignment = p.surfaceAlignment = 512;
  p.canMapHostMemory = p.hostRegisterSupported = p.canUseHostPointerForRegisteredMem = 1;
  p.unifiedAddressing = p.managedMemory = p.concurrentManagedAccess = 1;
  p.hostNativeAtomicSupported = p.memoryPoolsSupported = p.streamPrioritiesSupported = 1;
  p.asyncEngineCount = p.deviceOverlap = 1;
  return p;
}

cudaError_t synchronize() { return take_kernel_error(); }

bool valid_event(cudaEvent_t event) { return events.count(event) > 0; }

}  // namespace

const cudaDeviceProp& properties() {
  static const std::vector<cudaDeviceProp> cards = [] {
    std::vector<cudaDeviceProp> all;
    for (const Limits& limits : kLimits) all.push_back(make_properties(limits));
    return all;
  }();
  const auto card = std::ranges::find(kLimits, options().capability, &Limits::capability);
  return cards[static_cast<size_t>(card - kLimits)];
}

bool valid_stream(cudaStream_t stream) {
  if (!stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread) return true;
  const std::lock_guard lock(mutex);
  return streams.count(stream) > 0;
}

size_t dynamic_shared_limit(const void* function) {
  const std::lock_guard lock(mutex);
  const auto found = dynamic_limits.find(function);
  return found == dynamic_limits.end() ? properties().sharedMemPerBlock : found->second;
}

size_t shared_limit(const void* function) {
  const std::lock_guard lock(mutex);
  return dynamic_limits.contains(function) ? properties().sharedMemPerBlockOptin
                                           : properties().sharedMemPerBlock;
}

bool may_have_large_clusters(const void* function) {
  const std::lock_guard lock(mutex);
  return with_large_clusters.contains(function);
}

}  // namespace cpu_device

using namespace cpu_device;

// ---- Device ----

cudaError_t cudaGetDeviceCount(int* count) {
  if (!count) return note(cudaErrorInvalidValue);
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  if (!device) return note(cudaErrorInvalidValue);
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : note(cudaErrorInvalidDevice);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* result, int device) {
  if (!result) return note(cudaErrorInvalidValue);
  if (device != 0) return note(cudaErrorInvalidDevice);
  *result = properties();
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (!value) return note(cudaErrorInvalidValue);
  if (device != 0) return note(cudaErrorInvalidDevice);
  const cudaDeviceProp& p = properties();
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
    case cudaDevAttrMaxBlockDimX: *value = p.maxThreadsDim[0]; break;
    case cudaDevAttrMaxBlockDimY: *value = p.maxThreadsDim[1]; break;
    case cudaDevAttrMaxBlockDimZ: *value = p.maxThreadsDim[2]; break;
    case cudaDevAttrMaxGridDimX: *value = p.maxGridSize[0]; break;
    case cudaDevAttrMaxGridDimY: *value = p.maxGridSize[1]; break;
    case cudaDevAttrMaxGridDimZ: *value = p.maxGridSize[2]; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = static_cast<int>(p.sharedMemPerBlock); break;
    case cudaDevAttrWarpSize: *value = p.warpSize; break;
    case cudaDevAttrClockRate: *value = 0; break;  // there is no clock to compare with
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = static_cast<int>(p.sharedMemPerMultiprocessor);
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(p.sharedMemPerBlockOptin);
      break;
    case cudaDevAttrClusterLaunch: *value = p.clusterLaunch; break;
    case cudaDevAttrTotalConstantMemory: *value = static_cast<int>(p.totalConstMem); break;
    case cudaDevAttrMaxRegistersPerBlock: *value = p.regsPerBlock; break;
    case cudaDevAttrMaxRegistersPerMultiprocessor: *value = p.regsPerMultiprocessor; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = p.maxBlocksPerMultiProcessor; break;
    case cudaDevAttrReservedSharedMemoryPerBlock:
      *value = static_cast<int>(p.reservedSharedMemPerBlock);
      break;
    case cudaDevAttrMemoryClockRate:  // there is no clock, bus or mode
    case cudaDevAttrGlobalMemoryBusWidth:
    case cudaDevAttrKernelExecTimeout:
    case cudaDevAttrIntegrated:
    case cudaDevAttrComputeMode:
    case cudaDevAttrEccEnabled:
    case cudaDevAttrPageableMemoryAccess:
    case cudaDevAttrComputePreemptionSupported: *value = 0; break;
    case cudaDevAttrGpuOverlap:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrAsyncEngineCount:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrHostNativeAtomicSupported:
    case cudaDevAttrConcurrentManagedAccess:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrMemoryPoolsSupported: *value = 1; break;
    default: return note(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() { return synchronize(); }

cudaError_t cudaDeviceReset() {
  release_all();
  take_kernel_error();
  return cudaGetLastError();
}

cudaError_t cudaChooseDevice(int* device, const cudaDeviceProp* wanted) {
  return wanted ? cudaGetDevice(device) : note(cudaErrorInvalidValue);
}

cudaError_t cudaSetDeviceFlags(unsigned) { return cudaSuccess; }
cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) { return cudaSuccess; }
cudaError_t cudaDeviceSetSharedMemConfig(cudaSharedMemConfig) { return cudaSuccess; }
cudaError_t cudaDeviceGetSharedMemConfig(cudaSharedMemConfig* config) {
  if (!config) return note(cudaErrorInvalidValue);
  *config = cudaSharedMemBankSizeFourByte;
  return cudaSuccess;
}

namespace {
std::map<cudaLimit, size_t> device_limits = {{cudaLimitStackSize, 1024},
                                             {cudaLimitPrintfFifoSize, 1 << 20},
                                             {cudaLimitMallocHeapSize, 8 << 20},
                                             {cudaLimitMaxL2FetchGranularity, 64},
                                             {cudaLimitPersistingL2CacheSize, 0}};
}

cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t value) {
  const std::lock_guard lock(mutex);
  if (!device_limits.contains(limit)) return note(cudaErrorInvalidValue);
  device_limits[limit] = value;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit limit) {
  const std::lock_guard lock(mutex);
  if (!value || !device_limits.contains(limit)) return note(cudaErrorInvalidValue);
  *value = device_limits[limit];
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (!can) return note(cudaErrorInvalidValue);
  if (device != 0 || peer != 0) return note(cudaErrorInvalidDevice);
  *can = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return note(cudaErrorInvalidDevice); }
cudaError_t cudaDeviceDisablePeerAccess(int) { return note(cudaErrorInvalidDevice); }

cudaError_t cudaDriverGetVersion(int* version) {
  if (!version) return note(cudaErrorInvalidValue);
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

// ---- Streams: everything is in order and done when it returns ----

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  if (!stream || flags > cudaStreamNonBlocking) return note(cudaErrorInvalidValue);
  auto made = std::make_unique<CUstream_st>();
  *stream = made.get();
  const std::lock_guard lock(mutex);
  streams[*stream] = std::move(made);
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data,
                                  unsigned flags) {
  if (!callback || flags != 0) return note(cudaErrorInvalidValue);
  if (!valid_stream(stream)) return note(cudaErrorInvalidResourceHandle);
  callback(stream, synchronize(), data);
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  if (!function) return note(cudaErrorInvalidValue);
  if (!valid_stream(stream)) return note(cudaErrorInvalidResourceHandle);
  closed_memory::host_has_waited();
  function(data);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const std::lock_guard lock(mutex);
  return streams.erase(stream) ? cudaSuccess : note(cudaErrorInvalidResourceHandle);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return valid_stream(stream) ? synchronize() : note(cudaErrorInvalidResourceHandle);
}
cudaError_t cudaStreamQuery(cudaStream_t stream) { return cudaStreamSynchronize(stream); }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  if (flags != 0) return note(cudaErrorInvalidValue);
  if (!valid_stream(stream)) return note(cudaErrorInvalidResourceHandle);
  const std::lock_guard lock(mutex);
  return valid_event(event) ? cudaSuccess : note(cudaErrorInvalidResourceHandle);
}

// ---- Events ----

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (!event || (flags & ~(cudaEventBlockingSync | cudaEventDisableTiming))) {
    return note(cudaErrorInvalidValue);
  }
  auto made = std::make_unique<CUevent_st>();
  made->timed = !(flags & cudaEventDisableTiming);
  *event = made.get();
  const std::lock_guard lock(mutex);
  events[*event] = std::move(made);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const std::lock_guard lock(mutex);
  return events.erase(event) ? cudaSuccess : note(cudaErrorInvalidResourceHandle);
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (!valid_stream(stream)) return note(cudaErrorInvalidResourceHandle);
  const std::lock_guard lock(mutex);
  if (!valid_event(event)) return note(cudaErrorInvalidResourceHandle);
  event->recorded = true;
  event->time = Clock::now();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  {
    const std::lock_guard lock(mutex);
    if (!valid_event(event)) return note(cudaErrorInvalidResourceHandle);
  }
  return synchronize();
}
cudaError_t cudaEventQuery(cudaEvent_t event) { return cudaEventSynchronize(event); }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  if (!milliseconds) return note(cudaErrorInvalidValue);
  const std::lock_guard lock(mutex);
  for (const cudaEvent_t event : {start, end}) {
    if (!valid_event(event) || !event->timed || !event->recorded) {
      return note(cudaErrorInvalidResourceHandle);
    }
  }
  *milliseconds = std::chrono::duration<float, std::milli>(end->time - start->time).count();
  return cudaSuccess;
}

// ---- Kernels ----

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  if (!function) return note(cudaErrorInvalidDeviceFunction);
  switch (attribute) {
    case cudaFuncAttributeMaxDynamicSharedMemorySize: {
      if (value < 0 || static_cast<size_t>(value) > properties().sharedMemPerBlockOptin) {
        return note(cudaErrorInvalidValue);
      }
      const auto limit = static_cast<size_t>(value);
      {
        const std::lock_guard lock(mutex);
        if (std::exchange(dynamic_limits[function], limit) == limit) return cudaSuccess;
      }
      // The limit is the kernel's, not this thread's: others get a chance to change it, too, before
      // the launch that it is meant for.
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      return cudaSuccess;
    }
    case cudaFuncAttributeNonPortableClusterSizeAllowed: {
      if (value != 0 && value != 1) return note(cudaErrorInvalidValue);
      const std::lock_guard lock(mutex);
      value == 1 ? void(with_large_clusters.insert(function))
                 : void(with_large_clusters.erase(function));
      return cudaSuccess;
    }
    case cudaFuncAttributePreferredSharedMemoryCarveout:  // a wish; there is no L1 to share with
      return value >= -1 && value <= 100 ? cudaSuccess : note(cudaErrorInvalidValue);
  }
  return note(cudaErrorInvalidValue);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  if (!attributes) return note(cudaErrorInvalidValue);
  if (!function) return note(cudaErrorInvalidDeviceFunction);
  *attributes = {};
  attributes->maxThreadsPerBlock = properties().maxThreadsPerBlock;
  attributes->ptxVersion = attributes->binaryVersion = options().capability;
  attributes->maxDynamicSharedSizeBytes = static_cast<int>(dynamic_shared_limit(function));
  attributes->preferredShmemCarveout = -1;
  return cudaSuccess;
}

cudaError_t cudaFuncSetCacheConfig(const void* function, cudaFuncCache) {
  return function ? cudaSuccess : note(cudaErrorInvalidDeviceFunction);
}
