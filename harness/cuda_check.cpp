#include "harness/cuda_check.hpp"

#include "harness/device.hpp"

namespace tile {

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
  return cuda_status(cudaGetLastError(), std::string("launch of ").append(kernel));
}

Status synchronize_status(cudaStream_t stream) {
  return cuda_status(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

}  // namespace tile
