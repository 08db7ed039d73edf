// Errors, reports and counts.
#include <algorithm>
#include <cstdio>
#include <mutex>
#include <utility>

#include "closed_memory.hpp"
#include "cpu_device/options.h"
#include "cpu_device/report.h"
#include "state.hpp"

namespace cpu_device {
namespace {

thread_local cudaError_t last_error = cudaSuccess;

// Written by the worker whose block failed, read by the host.
std::mutex error_mutex;
cudaError_t kernel_error = cudaSuccess;  // for the next synchronisation
cudaError_t launch_error = cudaSuccess;  // for cudaGetLastError
std::string report, last_remark;
Activity activity;
std::vector<std::string> launched;
constexpr size_t kMostLaunched = 16;

void keep(std::string text) {
  if (options().print_reports) std::fprintf(stderr, "[CPU device] %s", text.c_str());
  report = std::move(text);
}

}  // namespace

cudaError_t note(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

cudaError_t refused(cudaError_t error, std::string text) {
  const std::lock_guard lock(error_mutex);
  keep(std::move(text));
  return note(error);
}

void remark(std::string text) {
  const std::lock_guard lock(error_mutex);
  if (options().print_reports) std::fprintf(stderr, "[CPU device] %s", text.c_str());
  last_remark = std::move(text);
}

void kernel_failed(cudaError_t error, std::string text) {
  const std::lock_guard lock(error_mutex);
  keep(std::move(text));
  kernel_error = launch_error = error;
}

cudaError_t take_kernel_error() {
  closed_memory::host_has_waited();
  const std::lock_guard lock(error_mutex);
  return std::exchange(kernel_error, cudaSuccess);
}

std::string take_report() {
  const std::lock_guard lock(error_mutex);
  return std::exchange(report, {});
}

std::string take_remark() {
  const std::lock_guard lock(error_mutex);
  return std::exchange(last_remark, {});
}

void count_activity(const char* kernel, const Activity& more) {
  const std::lock_guard lock(error_mutex);
  if (launched.size() < kMostLaunched) launched.emplace_back(kernel);
  activity.launches += more.launches;
  activity.blocks += more.blocks;
  activity.threads += more.threads;
  activity.barriers += more.barriers;
  activity.collectives += more.collectives;
  activity.loaded_bytes += more.loaded_bytes;
  activity.most_on_the_way = std::max(activity.most_on_the_way, more.most_on_the_way);
}

Activity take_activity() {
  const std::lock_guard lock(error_mutex);
  return std::exchange(activity, {});
}

std::vector<std::string> take_launched_kernels() {
  const std::lock_guard lock(error_mutex);
  return std::exchange(launched, {});
}

}  // namespace cpu_device

cudaError_t cudaPeekAtLastError() {
  const std::lock_guard lock(cpu_device::error_mutex);
  if (cpu_device::launch_error != cudaSuccess) return cpu_device::launch_error;
  return cpu_device::last_error;
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = cudaPeekAtLastError();
  const std::lock_guard lock(cpu_device::error_mutex);
  cpu_device::launch_error = cpu_device::last_error = cudaSuccess;
  return error;
}

namespace {

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};

// CUDA's own words.
constexpr ErrorText kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInvalidPitchValue, "cudaErrorInvalidPitchValue", "invalid pitch argument"},
    {cudaErrorInvalidSymbol, "cudaErrorInvalidSymbol", "invalid device symbol"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection",
     "invalid copy direction for memcpy"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalInstruction, "cudaErrorIllegalInstruction",
     "an illegal instruction was encountered"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
    {cudaErrorInvalidAddressSpace, "cudaErrorInvalidAddressSpace",
     "operation not supported on global/shared address space"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidDevicePointer, "cudaErrorInvalidDevicePointer", "invalid device pointer"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice",
     "no kernel image is available for execution on the device"},
    {cudaErrorPeerAccessUnsupported, "cudaErrorPeerAccessUnsupported",
     "peer access is not supported between these two devices"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources",
     "too many resources requested for launch"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled",
     "peer access is already enabled"},
    {cudaErrorPeerAccessNotEnabled, "cudaErrorPeerAccessNotEnabled",
     "peer access has not been enabled"},
    {cudaErrorAssert, "cudaErrorAssert", "device-side assert triggered"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorCooperativeLaunchTooLarge, "cudaErrorCooperativeLaunchTooLarge",
     "too many blocks in cooperative launch"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
    {cudaErrorInvalidClusterSize, "cudaErrorInvalidClusterSize", "cluster misconfiguration"},
};

const ErrorText* find(cudaError_t error) {
  for (const ErrorText& known : kErrors) {
    if (known.error == error) return &known;
  }
  return nullptr;
}

}  // namespace

const char* cudaGetErrorName(cudaError_t error) {
  const ErrorText* known = find(error);
  return known ? known->name : "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  const ErrorText* known = find(error);
  return known ? known->text : "unrecognized error code";
}
