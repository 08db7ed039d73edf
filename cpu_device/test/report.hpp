// What the tests of reports share.
#pragma once

#include <string>

#include "cpu_device/options.h"
#include "cpu_device/report.h"
#include "device_array.hpp"

namespace device_test {

/// The options, put back as they were at the end of a test.
class OptionsGuard {
 public:
  /// One worker and no output, so that a test sees the same each time.
  OptionsGuard() : before_(cpu_device::options()) {
    cpu_device::options().print_reports = false;
    cpu_device::options().workers = 1;
    cpu_device::take_report();
  }
  ~OptionsGuard() { cpu_device::options() = before_; }
  OptionsGuard(const OptionsGuard&) = delete;
  OptionsGuard& operator=(const OptionsGuard&) = delete;

 private:
  cpu_device::Options before_;
};

/// How the kernels launched since the last call failed.
struct KernelFailure {
  cudaError_t error;
  std::string report;
};

/// The launch's error and the next synchronisation's must be the same, and forgotten thereafter.
inline KernelFailure take_failure() {
  const cudaError_t of_launch = cudaGetLastError();
  const cudaError_t of_synchronisation = cudaDeviceSynchronize();
  if (of_launch != of_synchronisation || cudaGetLastError() != cudaSuccess ||
      cudaDeviceSynchronize() != cudaSuccess) {
    throw std::logic_error("the errors of launch and synchronisation disagree");
  }
  return {of_launch, cpu_device::take_report()};
}

}  // namespace device_test
