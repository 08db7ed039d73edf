// Counts what warps ask of memory (cpu_device/xray.h). Lanes run one after the other, so that what
// one instruction of a warp asks for comes piece by piece: an access belongs to the request of its
// place and of its number there, counted from the last time that all lanes of the warp met.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "checker.hpp"

namespace cpu_device::check {

enum class XraySpace : uint8_t { global, shared, none };  // none: it is only noted as not counted

/// What the lanes of a warp ask for at one time: so many bytes each.
struct XrayRequest {
  uint32_t lanes = 0, bytes = 0;
  std::array<uintptr_t, 32> address{};
  std::array<uintptr_t, 32> source{};  // of what cp.async stores there; 0 if that is zeros
};

void xray_launch(const Launch& launch);
void xray_block_begins(uint32_t rank);
/// `array` is its name, if it has one.
void xray_access(const Access& access, XraySpace space, std::string_view array);
/// All lanes of a warp of the running block have met.
void xray_warp_met(uint32_t warp);
/// All threads of a block have, or have ended.
void xray_block_met(uint32_t rank);

}  // namespace cpu_device::check
