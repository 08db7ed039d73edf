// What a failed block says: who waits where, who returned.
#include <cstdio>
#include <vector>

#include "block.hpp"
#include "check/finding.hpp"
#include "cluster.hpp"
#include "kernel_name.hpp"

namespace cpu_device {

std::string Block::thread_name(uint32_t thread) const {
  const uint3 t = launch_->thread_index[thread];
  const dim3 block = launch_->config.block;
  if (block.y == 1 && block.z == 1) return std::to_string(t.x);
  return to_string(t);
}

std::string Block::block_name(uint64_t index) const {
  const dim3 grid = launch_->config.grid;
  return to_string({static_cast<uint32_t>(index % grid.x),
                    static_cast<uint32_t>(index / grid.x % grid.y),
                    static_cast<uint32_t>(index / grid.x / grid.y)});
}

std::string Block::report() const {
  const Config& config = launch_->config;
  std::string text = "kernel " + kernel_name(launch_->name, launch_->function) + " failed: ";
  if (failure_.who == Blamed::thread) text += "thread " + thread_name(current_) + " ";
  if constexpr (kChecking) {
    if (!failure_.what) text += check::describe_finding(*this);
  }
  if (failure_.what) text += failure_.what;
  if (failure_.what && failure_.code == cudaErrorIllegalAddress) {
    char address[32];
    std::snprintf(address, sizeof address, " 0x%zx", reinterpret_cast<size_t>(failure_.address));
    text += address;
  }
  text += std::string("\n  launched at ") + launch_->name.file + ":" +
          std::to_string(launch_->name.line) + ", grid " + to_string(config.grid) + ", block " +
          to_string(config.block) +
          (launch_->cluster_blocks > 1 ? ", cluster " + to_string(config.cluster) : "") +
          "; this is block " + to_string(block_index_) + "\n";
  return failure_.what ? text + waits("  ") : text;  // who waits where says nothing about a race
}

std::string Block::name_of_shared(const void* address) const {
  if constexpr (kChecking) return check::name_of(reinterpret_cast<uintptr_t>(address));
  const auto offset = static_cast<size_t>(static_cast<const char*>(address) - arena_);
  PlacedShared found{"dynamic shared memory", 0, launch_->config.shared_bytes};
  const std::lock_guard lock(launch_->placing);
  for (const PlacedShared& placed : launch_->placed) {
    if (offset - placed.offset < placed.bytes) found = placed;
  }
  if (found.bytes == sizeof(uint64_t)) return found.names;  // an mbarrier by itself
  return "byte " + std::to_string(offset - found.offset) + " of " + found.names;
}

// One line for all threads in the same state: "16 threads (0, 1, 2, …) wait at …".
std::string Block::waits(const char* indentation) const {
  struct Line {
    std::string state;
    uint32_t count;
    std::string threads;
  };
  std::vector<Line> lines;
  for (uint32_t t = 0; t < threads_; ++t) {
    std::string state;
    if (state_[t] == State::waiting) {
      state = std::string(" at ") + waits_[t].name;
      if (waits_[t].mask) {
        char mask[32];
        std::snprintf(mask, sizeof mask, ", mask 0x%08x", waits_[t].mask);
        state += mask;
      }
      state += std::string(", ") + waits_[t].site.file + ":" + std::to_string(waits_[t].site.line);
      state += cluster_->phase_waited_for(*this, t);
      state += warpgroup_wait(*this, waits_[t].name, t);
    } else if (state_[t] == State::finished) {
      state = " returned";
    } else {
      continue;
    }
    auto line = lines.begin();
    while (line != lines.end() && line->state != state) ++line;
    if (line == lines.end()) line = lines.insert(line, {state, 0, ""});
    if (line->count < 3) line->threads += (line->count ? ", " : "") + thread_name(t);
    if (line->count == 3) line->threads += ", …";
    ++line->count;
  }
  std::string text;
  for (const Line& line : lines) {
    const bool waits = line.state[1] == 'a';
    text += indentation + std::to_string(line.count) +
            (line.count == 1 ? " thread (" : " threads (") + line.threads + ")" +
            (waits ? line.count == 1 ? " waits" : " wait" : "") + line.state + "\n";
  }
  return text;
}

std::string to_string(const dim3& v) {
  return "(" + std::to_string(v.x) + ", " + std::to_string(v.y) + ", " + std::to_string(v.z) + ")";
}

}  // namespace cpu_device
