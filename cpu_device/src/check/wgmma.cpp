// Registers that a wgmma uses: they must not be touched until it has been waited for, nor between
// the fence and the next one.
#include "../wgmma.hpp"

#include "../block.hpp"
#include "checker.hpp"
#include "finding.hpp"

namespace cpu_device::check {
namespace {

Finding finding(Finding::What what, const Access& access) {
  Finding found;
  found.what = what;
  found.block = current_block_number();
  found.thread = current_thread();
  found.access = access;
  return found;
}

// The index of the accessed one of `count` registers, or -1.
int touched(const void* registers, int count, const Access& access) {
  const auto begin = reinterpret_cast<uintptr_t>(registers);
  if (access.address + access.bytes <= begin ||
      access.address >= begin + static_cast<size_t>(count) * 4) {
    return -1;
  }
  return access.address < begin ? 0 : static_cast<int>((access.address - begin) / 4);
}

[[noreturn, gnu::cold, gnu::noinline]] void too_early(const Warpgroup& group, const Wgmma* wgmma,
                                                      Site issued, const char* operand, int index,
                                                      const Access& access) {
  using Registers = Finding::Registers;
  Finding early = finding(Finding::registers_under_way, access);
  Registers& r = early.registers;
  const Warpgroup::Wait& wait = group.last_wait;
  r.operand = operand;
  r.index = static_cast<size_t>(index);
  r.issued = issued;
  r.waited = wait.site;
  r.pending = wait.pending;
  if (!wgmma) {
    r.lack = Registers::name;
  } else {
    r.committed = wgmma->group < group.groups;
    r.lack = wait.issued < wgmma->number  ? Registers::wait
             : wait.groups > wgmma->group ? Registers::smaller_wait
                                          : Registers::commit;
    r.enough = wait.groups - 1 - wgmma->group;
  }
  settle();
  found(early);
}

}  // namespace

void look_at_registers(const Access& access) {
  WgmmaGroups* const all = current_block->wgmma_groups();
  if (!all) return;
  const uint32_t me = current_thread(), lane = me % kWarpgroup;
  Warpgroup& group = all->each[me / kWarpgroup];
  for (size_t i = 0; i < group.accumulators.size(); ++i) {
    WgmmaAccumulator& sums = group.accumulators[i];
    const int index = touched(sums.registers[lane], sums.columns / 2, access);
    if (index < 0) continue;
    if (!sums.is_held_back) {
      sums.touched_by = me;
      sums.touched_at = access.place;
      continue;
    }
    const Wgmma* oldest = nullptr;
    for (const Wgmma& wgmma : group.under_way) {
      if (wgmma.accumulator == i && !oldest) oldest = &wgmma;
    }
    too_early(group, oldest, oldest ? oldest->site : sums.last, "d", index, access);
  }
  if (access.kind == Kind::read) return;
  for (const Wgmma& wgmma : group.under_way) {
    if (!wgmma.a_in_registers) continue;
    const int index = touched(wgmma.a_held[lane], 4, access);
    if (index >= 0) too_early(group, &wgmma, wgmma.site, "a", index, access);
  }
}

void look_at_fence(const Warpgroup& group, const WgmmaAccumulator& sums, Place place) {
  if (group.fenced && sums.touched_at == 0) return;
  Finding missing =
      finding(Finding::no_fence,
              {.address = 0, .bytes = 0, .kind = Kind::write, .atomic = false, .place = place});
  missing.registers.waited = group.last_wait.site;
  missing.registers.touched_at = group.fenced ? sums.touched_at : 0;
  missing.registers.touched_by = sums.touched_by;
  settle();
  found(missing);
}

}  // namespace cpu_device::check
