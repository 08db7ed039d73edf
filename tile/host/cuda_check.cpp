#include "tile/host/cuda_check.hpp"

#include "tile/host/device.hpp"

namespace tile {
namespace {

constexpr std::size_t kMostLaunches = 16;
thread_local std::vector<std::string_view> reported_launches;

}  // namespace

Status cuda_status(cudaError_t error, std::string_view call) {
  if (error == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());  // reading the last error clears it
  std::string why = cudaGetErrorName(error);
  why.append(" (").append(cudaGetErrorString(error)).append(")");
  if (const std::string report = device_report(); !report.empty()) why.append("\n").append(report);
  const bool no_memory = error == cudaErrorMemoryAllocation;
  return failure(no_memory ? Code::out_of_memory : Code::device_error, call, why);
}

Status launch_status(std::string_view kernel) {
  if (reported_launches.size() < kMostLaunches) reported_launches.push_back(kernel);
  return cuda_status(cudaGetLastError(), std::string("launch of ").append(kernel));
}

std::vector<std::string> take_reported_launches() {
  std::vector<std::string> names(reported_launches.begin(), reported_launches.end());
  reported_launches.clear();
  return names;
}

Status synchronize_status(cudaStream_t stream) {
  return cuda_status(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

}  // namespace tile
