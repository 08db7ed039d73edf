// What AddressSanitizer is told, and what it adds to its reports. This file is linked because a
// block calls guard_arena(); libasan finds the functions at the end by their names.
#include "asan.hpp"

#include <cstdio>
#include <string>

#include "cluster.hpp"

namespace cpu_device {

// Shared memory that belongs to no declaration is poisoned.
void Block::guard_arena() const {
  __asan_poison_memory_region(arena_, kArenaBytes);
  __asan_unpoison_memory_region(arena_, launch_->config.shared_bytes);
  for (const PlacedShared& placed : launch_->placed) {
    __asan_unpoison_memory_region(arena_ + placed.offset, placed.bytes);
  }
}

void Cluster::allow_shared(size_t offset, size_t bytes) const {
  for (const Member& member : members_) {
    if (!member.ended) __asan_unpoison_memory_region(member.block->arena() + offset, bytes);
  }
}

std::string Block::describe_access(const void* address) const {
  std::string text = std::string("kernel ") + launch_->name.text + " fails: thread " +
                     thread_name(current_) + " of block " + to_string(block_index_) +
                     " touches a bad address\n";
  const Block* owner = cluster_->owner_of(address);
  const std::string whose =
      owner && owner != this ? " of block " + block_name(owner->index()) : std::string();
  const auto offset =
      static_cast<size_t>(static_cast<const char*>(address) - (owner ? owner->arena_ : arena_));
  const PlacedShared* before = nullptr;
  const PlacedShared dynamic{"dynamic shared memory", 0, launch_->config.shared_bytes};
  if (dynamic.bytes > 0) before = &dynamic;
  for (const PlacedShared& placed : launch_->placed) {
    if (placed.offset <= offset) before = &placed;  // they are placed in ascending order
  }
  if (!whose.empty() && owner->has_ended()) {
    text += "  in shared memory" + whose + ", which has ended\n";
  } else if (before && offset < kArenaBytes) {
    text += "  in shared memory" + whose + ", " +
            std::to_string(offset - before->offset - before->bytes) + " bytes past the end of " +
            before->names + "\n";
  }
  return text + "  launched at " + launch_->name.file + ":" + std::to_string(launch_->name.line) +
         "\n";
}

}  // namespace cpu_device

#define FOR_LIBASAN extern "C" __attribute__((visibility("default")))

// Leaks are looked for on the stacks that it knows, and waiting threads are on others. A frame
// stays on its stack and not on a second one, because a kernel that fails abandons it. A test asks
// for more memory than there is, and is to get null.
FOR_LIBASAN const char* __asan_default_options();
const char* __asan_default_options() {
  return "detect_leaks=0:detect_stack_use_after_return=0:allocator_may_return_null=1";
}

// Called before a report is printed.
FOR_LIBASAN void __asan_on_error();
void __asan_on_error() {
  const cpu_device::Block* block = cpu_device::current_block;
  if (!block || !block->in_kernel()) return;
  const std::string who = block->describe_access(__asan_get_report_address());
  std::fprintf(stderr, "[CPU device] %s", who.c_str());
}
