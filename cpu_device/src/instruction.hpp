// What the instructions for capability 9.0 have in common: who has called them, and how they end
// the launch.
#pragma once

#include "block.hpp"
#include "cpu_device/mbarrier.h"

namespace cpu_device {

struct Call {
  const char* instruction;
  Block& block;  // of the caller
  Site site;
};
/// Ends the launch if the card has not this compute capability.
Call begin_call(const char* instruction, Site site, int capability = 90);

/// The report begins with "thread 3 " and `what`; an address is for cudaErrorIllegalAddress alone.
[[noreturn, gnu::cold]] void fail_call(const Call& call, const std::string& what,
                                       cudaError_t code = cudaErrorLaunchFailure,
                                       const void* address = nullptr);
/// "thread 3 calls mbarrier.init with …".
[[noreturn, gnu::cold]] void fail_with(const Call& call, const char* operand,
                                       cudaError_t code = cudaErrorLaunchFailure,
                                       const void* address = nullptr);

bool is_in_shared_memory(const Block& block, const void* address, size_t bytes);

/// While one lives, the runtime works for itself (Block::leaves_kernel).
class OutsideKernel {
 public:
  explicit OutsideKernel(Block& block) : block_(block) { block_.leaves_kernel(); }
  ~OutsideKernel() { block_.enters_kernel(); }
  OutsideKernel(const OutsideKernel&) = delete;
  OutsideKernel& operator=(const OutsideKernel&) = delete;

 private:
  Block& block_;
};

// ---- mbarrier.cpp ----
/// Ends the launch if it is no mbarrier of `owner`.
void check_mbarrier(const Call& call, const Block& owner, const Mbarrier* barrier);
/// TMA has brought so many bytes, which an mbarrier of `owner` counts. `caller` is where device
/// code called.
void count_loaded_bytes(const Call& call, Block& owner, Mbarrier* barrier, uint32_t bytes,
                        const void* caller);
/// For a report: ", which misses 1 arrival and 512 bytes".
std::string missing_in_phase(const void* mbarrier);

}  // namespace cpu_device
