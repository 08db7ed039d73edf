// What cpu_device/wgmma.h declares: four warps meet, and the last thread to come works for all.
#include "cpu_device/wgmma.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "avx2.hpp"
#include "block.hpp"
#include "check/checker.hpp"
#include "cpu_device/options.h"
#include "cpu_device/wgmma_address.h"
#include "tile/ptx/fragments.hpp"
#include "wgmma.hpp"

namespace cpu_device {
namespace {

constexpr int kRows = 64;                   // of D
constexpr int kDepthBytes = 32;             // of a row of A or a column of B
constexpr int kChunkBytes = 16;             // what the swizzle moves
constexpr int kRowBytes = 128;              // of a swizzled tile
constexpr int kPatternBytes = 1024;         // after which the swizzle repeats
constexpr uint32_t kUnderWay = 0x7fedbeef;  // a NaN: what registers of D hold until the wait
constexpr const char* kWgmma = "wgmma";

// ---- What can be wrong ----

std::string line_of(Site site) { return std::string(site.file) + ":" + std::to_string(site.line); }

[[noreturn, gnu::cold, gnu::noinline]] void fail(cudaError_t error, std::string message,
                                                 Block::Blamed who, const void* address = nullptr) {
  current_block->leaves_kernel();
  static thread_local std::string what;  // outlives the block that fails
  what = std::move(message);
  current_block->fail(error, what.c_str(), who, address);
}

[[noreturn]] void fail_at(Site site, const std::string& message,
                          cudaError_t error = cudaErrorLaunchFailure,
                          const void* address = nullptr) {
  fail(error, message + "\n  at " + line_of(site) + (address ? "\n  the address is" : ""),
       Block::Blamed::thread, address);
}

[[noreturn, gnu::cold, gnu::noinline]] void lacks(const char* call, Site site) {
  current_block->leaves_kernel();
  const int has = options().capability;
  fail_at(site, std::string("calls ") + call +
                    ", which compute capability 9.0 has and no other; this card has " +
                    std::to_string(has / 10) + "." + std::to_string(has % 10));
}

// ---- Warpgroups ----

// Where 128 threads meet. The last one has `work` done; then all go on.
template <class Work>
void meet(const char* call, Site site, const WgmmaOperands* operands, float* named, Work work) {
  Block& block = block_of_caller(call);
  if (options().capability != 90) lacks(call, site);
  const uint32_t me = block.current_thread(), first = me / kWarpgroup * kWarpgroup;
  const uint32_t threads = block.launch().threads;
  if (first + kWarpgroup > threads) {
    block.leaves_kernel();
    fail_at(site, std::string("calls ") + call + " in a warpgroup of " +
                      std::to_string(threads - first) + " threads; it takes 128");
  }
  Warpgroup& group = block.make_wgmma_groups().each[first / kWarpgroup];
  if (group.arrived == 0) {
    group.call = call;
    group.site = site;
  } else if (group.call != call || group.site.line != site.line ||
             (group.site.file != site.file && std::strcmp(group.site.file, site.file) != 0)) {
    block.leaves_kernel();
    fail(cudaErrorLaunchFailure,
         "threads of one warpgroup are at different places; all 128 must call the same\n  " +
             std::string(group.call) + " at " + line_of(group.site) + "\n  " + call + " at " +
             line_of(site),
         Block::Blamed::block);
  }
  group.operands[me - first] = operands;
  group.named[me - first] = named;
  if (++group.arrived < kWarpgroup) return block.park(call, site);
  group.arrived = 0;
  work(block, group);
  block.made_progress();
  for (uint32_t warp = first / kLanes; warp < (first + kWarpgroup) / kLanes; ++warp) {
    block.make_ready(warp, warp == me / kLanes ? ~(1u << me % kLanes) : ~0u);
  }
}

/// What a thread of the warpgroup holds of 64 rows: calls visit(its register, place in the matrix)
/// for each two neighbours.
template <class Visit>
void for_each_pair(int columns, Visit visit) {
  for (int thread = 0; thread < int{kWarpgroup}; ++thread) {
    for (int i = 0; i < columns / 2; i += 2) {
      const auto [row, col] = tile::ptx::element_of_wgmma(thread, i);
      visit(thread, i, row * columns + col);
    }
  }
}

size_t accumulator_of(Warpgroup& group, const WgmmaOperands& operands) {
  float* const mine = group.operands[0]->d;
  for (size_t i = 0; i < group.accumulators.size(); ++i) {
    const WgmmaAccumulator& known = group.accumulators[i];
    if (known.registers[0] == mine && known.columns == operands.columns) return i;
  }
  WgmmaAccumulator& made = group.accumulators.emplace_back();
  made.columns = operands.columns;
  made.sums.resize(static_cast<size_t>(kRows * operands.columns));
  for (uint32_t t = 0; t < kWarpgroup; ++t) made.registers[t] = group.operands[t]->d;
  return group.accumulators.size() - 1;
}

void hold_back(WgmmaAccumulator& accumulator) {
  if (accumulator.is_held_back) return;
  accumulator.is_held_back = true;
  for_each_pair(accumulator.columns, [&](int thread, int i, int place) {
    float* own = accumulator.registers[static_cast<size_t>(thread)] + i;
    std::memcpy(&accumulator.sums[static_cast<size_t>(place)], own, 2 * sizeof(float));
    own[0] = own[1] = std::bit_cast<float>(kUnderWay);
  });
}

void land(const Block& block, uint32_t first, WgmmaAccumulator& accumulator, Site wait) {
  accumulator.is_held_back = false;
  for_each_pair(accumulator.columns, [&](int thread, int i, int place) {
    float* own = accumulator.registers[static_cast<size_t>(thread)] + i;
    const auto low = std::bit_cast<uint32_t>(own[0]), high = std::bit_cast<uint32_t>(own[1]);
    if (low != kUnderWay || high != kUnderWay) {
      fail(cudaErrorLaunchFailure,
           "thread " + block.thread_name(first + static_cast<uint32_t>(thread)) +
               " has changed d[" + std::to_string(low != kUnderWay ? i : i + 1) +
               "], sums of a wgmma, before they were there\n  wgmma at " +
               line_of(accumulator.last) + "\n  waited for at " + line_of(wait),
           Block::Blamed::block);
    }
    std::memcpy(own, &accumulator.sums[static_cast<size_t>(place)], 2 * sizeof(float));
  });
}

// ---- Operands in shared memory ----

WgmmaTile decode(uint64_t bits, Major major, int extent) {
  const auto field = [&](int shift) { return static_cast<uint32_t>(bits >> shift & 0x3fff) * 16; };
  return {field(0), field(16), field(32), major, extent, (bits >> 62 & 3) == 0};
}

// Calls visit(offset in the block's shared memory) for each 16 bytes of the tile. Along k they come
// as rows of k, one for each m or n; along m and n as rows of these, one for each k.
template <class Visit>
void for_each_chunk(const WgmmaTile& tile, Visit visit) {
  const auto swizzled = [](uint32_t address) { return address ^ (address >> 3 & 0x70); };
  const auto at = [&](int row) {
    const auto r = static_cast<uint32_t>(row);
    return tile.start + r / 8 * tile.stride + r % 8 * kRowBytes;
  };
  if (tile.is_plain) {
    for (uint32_t row = 0; row < static_cast<uint32_t>(tile.extent); ++row) {
      const uint32_t first = tile.start + row / 8 * tile.stride + row % 8 * kChunkBytes;
      for (uint32_t half = 0; half < 2; ++half) visit(first + half * tile.leading);
    }
    return;
  }
  if (tile.major == Major::k) {
    for (int row = 0; row < tile.extent; ++row) {
      for (uint32_t c = 0; c < kDepthBytes; c += kChunkBytes) visit(swizzled(at(row) + c));
    }
    return;
  }
  for (int k = 0; k < kDepthBytes / 2; ++k) {
    for (uint32_t c = 0; c < static_cast<uint32_t>(tile.extent) * 2; c += kChunkBytes) {
      visit(swizzled(at(k) + c / kRowBytes * tile.leading + c % kRowBytes));
    }
  }
}

void look_at_tile(const Block& block, const char* name, uint64_t bits, const WgmmaTile& tile,
                  uint32_t number, check::Place place, Site site) {
  const auto fail_tile = [&](const char* what, cudaError_t error, const char* address) {
    current_block->leaves_kernel();
    fail_at(site, std::string("calls wgmma with a descriptor of ") + name + what, error, address);
  };
  const bool is_known = tile.is_plain ? tile.major == Major::k : bits >> 62 == 1;
  if (!is_known || (bits >> 49 & 7) != 0) {
    fail_tile(" with neither the swizzle of 128 bytes nor, along k, none", cudaErrorLaunchFailure,
              nullptr);
  }
  const uint32_t in_pattern = tile.start % kPatternBytes;
  const bool is_in_row = in_pattern + kDepthBytes <= kRowBytes;
  const bool is_aligned = (tile.major == Major::k ? is_in_row : in_pattern == 0) &&
                          tile.stride % kPatternBytes == 0 &&
                          (tile.major == Major::k || tile.leading % kPatternBytes == 0);
  if (!tile.is_plain && !is_aligned) {
    fail_tile(" that is not aligned to 1,024 bytes, the swizzle's pattern",
              cudaErrorMisalignedAddress, nullptr);
  }
  for_each_chunk(tile, [&](uint32_t offset) {
    const char* address = block.arena() + offset;
    if constexpr (kChecking) {
      const auto at = reinterpret_cast<uintptr_t>(address);
      check::look_at({.address = at,
                      .bytes = kChunkBytes,
                      .kind = check::Kind::read,
                      .atomic = false,
                      .place = place,
                      .wgmma = number,
                      .async_proxy = true});
    }
    if (offset + kChunkBytes > block.launch().shared_bytes) {
      fail_tile(" that goes past the end of shared memory", cudaErrorIllegalAddress, address);
    }
  });
}

// ---- Sums ----

struct Fp16Elements {
  using Bits = uint16_t;
  static float decode(Bits bits) { return to_float<Fp16>(bits); }
};
struct Bf16Elements {
  using Bits = uint16_t;
  static float decode(Bits bits) { return to_float<Bf16>(bits); }
};

// NaN, which makes all of a row or column NaN, is told of apart.
constexpr uint8_t kNanOfE4m3 = 0x7f;
struct E4m3Elements {
  using Bits = uint8_t;
  static float decode(Bits bits) {
    static const auto kValues = [] {
      std::array<float, 256> values;
      for (unsigned i = 0; i < 256; ++i) {
        values[i] = (i & kNanOfE4m3) == kNanOfE4m3
                        ? 0.0f
                        : static_cast<float>(std::bit_cast<__nv_fp8_e4m3>(static_cast<Bits>(i)));
      }
      return values;
    }();
    return kValues[bits];
  }
};

constexpr int32_t kNan = 0x7fffffff;  // the one that GPUs produce

// out[m][k] of A, or out[k][n] of B.
template <class Elements, class Number>
void decode_all(const unsigned char* bytes, float* values, int count, int row, bool transposed,
                Number* out) {
  using Bits = typename Elements::Bits;
  for (int i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, bytes + static_cast<size_t>(i) * sizeof bits, sizeof bits);
    values[i] = Elements::decode(bits);
  }
  const int rows = count / row;
  if (!transposed) {
    for (int i = 0; i < count; ++i) out[i] = values[i];
    return;
  }
  for (int c = 0; c < row; ++c) {
    for (int r = 0; r < rows; ++r) out[c * rows + r] = values[r * row + c];
  }
}

template <class Elements, class Number>
void fetch(const Block& block, const WgmmaTile& tile, bool is_a, WgmmaScratch& scratch,
           Number* out) {
  unsigned char* next = scratch.bytes;
  for_each_chunk(tile, [&](uint32_t offset) {
    std::memcpy(next, block.arena() + offset, kChunkBytes);
    next += kChunkBytes;
  });
  constexpr int kDepth = kDepthBytes / int{sizeof(typename Elements::Bits)};
  const bool along_k = tile.major == Major::k;
  decode_all<Elements>(scratch.bytes, scratch.values, tile.extent * kDepth,
                       along_k ? kDepth : tile.extent, along_k != is_a, out);
}

// Calls visit(row, column, bits) for each element of an A in registers.
template <class Elements, class Visit>
void for_each_register_element(const Wgmma& wgmma, Visit visit) {
  using Bits = typename Elements::Bits;
  constexpr int kBits = sizeof(Bits) * 8, kPerRegister = 32 / kBits;
  for (int thread = 0; thread < int{kWarpgroup}; ++thread) {
    for (int i = 0; i < 4 * kPerRegister; ++i) {
      const auto [row, col] = tile::ptx::element_of_a<kBits>(thread % 32, i);
      const uint32_t bits = wgmma.a_registers[static_cast<size_t>(thread * 4 + i / kPerRegister)];
      visit(thread / 32 * 16 + row, col, static_cast<Bits>(bits >> i % kPerRegister * kBits));
    }
  }
}

// As many as a register of the processor holds; the compiler splits them where it holds half.
constexpr int kFloats = 8, kDoubles = 4;
using Floats [[gnu::vector_size(kFloats * sizeof(float))]] = float;
using Integers [[gnu::vector_size(kFloats * sizeof(float))]] = int32_t;
using Doubles [[gnu::vector_size(kDoubles * sizeof(double))]] = double;
using HalfFloats [[gnu::vector_size(kDoubles * sizeof(float))]] = float;
using HalfIntegers [[gnu::vector_size(kDoubles * sizeof(float))]] = int32_t;
// Those in memory, at any multiple of an element.
using FloatsThere [[gnu::aligned(4), gnu::may_alias]] = Floats;
using IntegersThere [[gnu::aligned(4), gnu::may_alias]] = Integers;
using HalfFloatsThere [[gnu::aligned(4), gnu::may_alias]] = HalfFloats;
using DoublesThere [[gnu::aligned(8), gnu::may_alias]] = Doubles;

[[gnu::always_inline]] inline void multiply_16_bits(const double* a, const double* b, int columns,
                                                    bool accumulate, float* d) {
  constexpr int kDepth = 16, kAtOnce = 4;
  for (int n = 0; n < columns; n += kAtOnce * kDoubles) {
    for (int m = 0; m < kRows; ++m) {
      float* sums = d + m * columns + n;
      Doubles sum[kAtOnce] = {};
      for (int j = 0; accumulate && j < kAtOnce; ++j) {
        sum[j] = __builtin_convertvector(
            *reinterpret_cast<const HalfFloatsThere*>(sums + j * kDoubles), Doubles);
      }
      const double* factors = b + n;
#pragma GCC unroll 4
      for (int k = 0; k < kDepth; ++k, factors += columns) {
        const double factor = a[m * kDepth + k];
        sum[0] += factor * *reinterpret_cast<const DoublesThere*>(factors);
        sum[1] += factor * *reinterpret_cast<const DoublesThere*>(factors + kDoubles);
        sum[2] += factor * *reinterpret_cast<const DoublesThere*>(factors + 2 * kDoubles);
        sum[3] += factor * *reinterpret_cast<const DoublesThere*>(factors + 3 * kDoubles);
      }
      for (int j = 0; j < kAtOnce; ++j) {
        const HalfFloats rounded = __builtin_convertvector(sum[j], HalfFloats);
        const HalfIntegers is_number = rounded == rounded;
        const HalfIntegers result =
            (reinterpret_cast<HalfIntegers>(rounded) & is_number) | (kNan & ~is_number);
        std::memcpy(sums + j * kDoubles, &result, sizeof result);
      }
    }
  }
}

// Products and the sum before are cut at the last of the largest one's 14 bits, and then added
// exactly: as integers that count this place. Of their sum 14 bits are kept.
[[gnu::always_inline]] inline void multiply_8_bits(const float* a, const float* b, int columns,
                                                   bool accumulate, float* d) {
  constexpr int kDepth = 32;
  constexpr int32_t kPlaces = 13 << 23, kKept = ~0x3ff, kExponents = 0x7f800000,
                    kMagnitude = 0x7fffffff;
  for (int n = 0; n < columns; n += kFloats) {
    for (int m = 0; m < kRows; ++m) {
      float* sums = d + m * columns + n;
      const Integers before =
          accumulate ? *reinterpret_cast<const IntegersThere*>(sums) : Integers{};
      // Magnitudes are in the order of their bits.
      const Integers magnitude = before & kMagnitude;
      const Integers is_number = magnitude < kExponents;
      Integers most = magnitude & is_number;
      Floats products[kDepth];
      for (int k = 0; k < kDepth; ++k) {
        products[k] =
            a[m * kDepth + k] * *reinterpret_cast<const FloatsThere*>(b + k * columns + n);
        const Integers next = reinterpret_cast<Integers>(products[k]) & kMagnitude;
        most = most > next ? most : next;
      }
      // No product is so small: below it only what there was before is cut.
      constexpr Integers kLeast = Integers{} + (27 << 23);
      most = most > kLeast ? most : kLeast;
      const Integers exponent = most & kExponents;
      const auto unit = reinterpret_cast<Floats>(exponent - kPlaces);
      const auto scale = reinterpret_cast<Floats>((127 << 23) - exponent + (127 << 23) + kPlaces);
      const auto old = reinterpret_cast<Floats>(before & is_number);
      Integers sum = __builtin_convertvector(old * scale, Integers);
      for (int k = 0; k < kDepth; ++k)
        sum += __builtin_convertvector(products[k] * scale, Integers);
      const Floats value = __builtin_convertvector(sum, Floats) * unit;
      const Integers is_nan = magnitude > kExponents;
      const Integers special = (before & ~is_nan) | (kNan & is_nan);
      const Integers result =
          (reinterpret_cast<Integers>(value) & kKept & is_number) | (special & ~is_number);
      std::memcpy(sums, &result, sizeof result);
    }
  }
}

// The compiler's loops, for the processor that is there. Products are exact, so that fused
// operations give the same.
#if defined(__x86_64__)
[[gnu::target("avx2,fma")]] void multiply_by_avx2(const double* a, const double* b, int columns,
                                                  bool accumulate, float* d) {
  multiply_16_bits(a, b, columns, accumulate, d);
}
[[gnu::target("avx2,fma")]] void multiply_by_avx2(const float* a, const float* b, int columns,
                                                  bool accumulate, float* d) {
  multiply_8_bits(a, b, columns, accumulate, d);
}
#endif

void multiply(const double* a, const double* b, int columns, bool accumulate, float* d) {
#if defined(__x86_64__)
  if (has_avx2()) return multiply_by_avx2(a, b, columns, accumulate, d);
#endif
  multiply_16_bits(a, b, columns, accumulate, d);
}
void multiply(const float* a, const float* b, int columns, bool accumulate, float* d) {
#if defined(__x86_64__)
  if (has_avx2()) return multiply_by_avx2(a, b, columns, accumulate, d);
#endif
  multiply_8_bits(a, b, columns, accumulate, d);
}

template <class Elements>
void run_16_bits(const Block& block, const Wgmma& wgmma, WgmmaScratch& scratch, float* d) {
  if (wgmma.a_in_registers) {
    for_each_register_element<Elements>(wgmma, [&](int row, int col, uint16_t bits) {
      scratch.a[row * 16 + col] = Elements::decode(bits);
    });
  } else {
    fetch<Elements>(block, wgmma.a, true, scratch, scratch.a);
  }
  fetch<Elements>(block, wgmma.b, false, scratch, scratch.b);
  multiply(scratch.a, scratch.b, wgmma.b.extent, wgmma.accumulate, d);
}

// Rows of 32 bytes with a NaN in them.
std::vector<int> rows_with_nan(const unsigned char* bytes, int rows) {
  std::vector<int> found;
  for (int row = 0; row < rows; ++row) {
    const unsigned char* begin = bytes + row * kDepthBytes;
    if (std::any_of(begin, begin + kDepthBytes,
                    [](unsigned char b) { return (b & kNanOfE4m3) == kNanOfE4m3; })) {
      found.push_back(row);
    }
  }
  return found;
}

void run_e4m3(const Block& block, const Wgmma& wgmma, WgmmaScratch& scratch, float* d) {
  const int columns = wgmma.b.extent;
  if (wgmma.a_in_registers) {
    for_each_register_element<E4m3Elements>(wgmma, [&](int row, int col, uint8_t bits) {
      scratch.a_fp8[row * kDepthBytes + col] = E4m3Elements::decode(bits);
      scratch.bytes[row * kDepthBytes + col] = bits;
    });
  } else {
    fetch<E4m3Elements>(block, wgmma.a, true, scratch, scratch.a_fp8);
  }
  const std::vector<int> nan_rows = rows_with_nan(scratch.bytes, kRows);
  fetch<E4m3Elements>(block, wgmma.b, false, scratch, scratch.b_fp8);
  const std::vector<int> nan_columns = rows_with_nan(scratch.bytes, columns);
  multiply(scratch.a_fp8, scratch.b_fp8, columns, wgmma.accumulate, d);
  const auto nan = std::bit_cast<float>(kNan);
  for (const int row : nan_rows) std::fill_n(d + row * columns, columns, nan);
  for (const int column : nan_columns) {
    for (int row = 0; row < kRows; ++row) d[row * columns + column] = nan;
  }
}

void run(const Block& block, const Wgmma& wgmma, WgmmaScratch& scratch, float* d) {
  switch (wgmma.type) {
    case WgmmaType::fp16: return run_16_bits<Fp16Elements>(block, wgmma, scratch, d);
    case WgmmaType::bf16: return run_16_bits<Bf16Elements>(block, wgmma, scratch, d);
    case WgmmaType::e4m3: return run_e4m3(block, wgmma, scratch, d);
  }
}

// ---- The four calls, all threads of the warpgroup having come ----

void issue(Block& block, Warpgroup& group, check::Place place) {
  const uint32_t me = block.current_thread() % kWarpgroup;
  const WgmmaOperands& mine = *group.operands[me];
  for (const WgmmaOperands* other : group.operands) {
    if (other->type != mine.type || other->columns != mine.columns || other->a != mine.a ||
        other->b != mine.b || other->accumulate != mine.accumulate) {
      fail_at(mine.site,
              "calls wgmma with other descriptors than the rest of its warpgroup, or "
              "does not agree whether D counts");
    }
  }
  const bool a_in_registers = mine.a_registers != nullptr;
  const uint32_t number = ++group.issued;
  const WgmmaTile a = decode(mine.a, mine.major_a, kRows);
  const WgmmaTile b = decode(mine.b, mine.major_b, mine.columns);
  if (!a_in_registers) look_at_tile(block, "A", mine.a, a, number, place, mine.site);
  look_at_tile(block, "B", mine.b, b, number, place, mine.site);

  block.leaves_kernel();
  const size_t index = accumulator_of(group, mine);
  WgmmaAccumulator& accumulator = group.accumulators[index];
  if constexpr (kChecking) check::look_at_fence(group, accumulator, place);
  Wgmma wgmma{mine.type, mine.accumulate, a_in_registers, a,      b,        {},
              {},        index,           group.groups,   number, mine.site};
  if (a_in_registers) {
    wgmma.a_registers.resize(kWarpgroup * 4);
    for (uint32_t t = 0; t < kWarpgroup; ++t) {
      const WgmmaOperands& of_thread = *group.operands[t];
      wgmma.a_held[t] = of_thread.a_may_change ? nullptr : of_thread.a_registers;
      std::memcpy(&wgmma.a_registers[4 * t], of_thread.a_registers, 4 * sizeof(uint32_t));
    }
  }
  hold_back(accumulator);
  accumulator.last = mine.site;
  ++accumulator.under_way;
  group.under_way.push_back(std::move(wgmma));
  block.enters_kernel();
}

void wait_for(Block& block, Warpgroup& group, uint32_t groups, int count, Site site) {
  block.leaves_kernel();
  const uint32_t first = block.current_thread() / kWarpgroup * kWarpgroup;
  const uint32_t done = group.groups > groups ? group.groups - groups : 0;
  WgmmaScratch& scratch = *block.wgmma_groups()->scratch;
  auto next = group.under_way.begin();
  for (; next != group.under_way.end() && next->group < done; ++next) {
    WgmmaAccumulator& accumulator = group.accumulators[next->accumulator];
    run(block, *next, scratch, accumulator.sums.data());
    --accumulator.under_way;
  }
  if constexpr (kChecking) {
    if (next != group.under_way.begin()) check::wgmma_done(std::prev(next)->number);
    group.last_wait = {site, groups, group.groups, group.issued};
    group.fenced = false;
  }
  group.under_way.erase(group.under_way.begin(), next);
  for (WgmmaAccumulator& accumulator : group.accumulators) {
    const float* begin = group.named[0];
    const float* own = accumulator.registers[0];
    const bool is_named = own >= begin && own + accumulator.columns / 2 <= begin + count;
    if (accumulator.is_held_back && accumulator.under_way == 0 && is_named) {
      land(block, first, accumulator, site);
    }
  }
  block.enters_kernel();
}

}  // namespace

uint32_t wgmma_address(const void* shared) {
  Block& block = block_of_caller("a wgmma descriptor");
  if (!block.in_arena(shared)) {
    block.fail(cudaErrorIllegalAddress,
               "makes a wgmma descriptor of what is not in shared memory\n  the address is",
               Block::Blamed::thread, shared);
  }
  return static_cast<uint32_t>(static_cast<const char*>(shared) - block.arena());
}

void issue_wgmma(const WgmmaOperands& operands) {
  [[maybe_unused]] check::Place place = 0;
  if constexpr (kChecking) place = check::place_of(__builtin_return_address(0));
  meet(kWgmma, operands.site, &operands, nullptr,
       [&](Block& block, Warpgroup& group) { issue(block, group, place); });
}

void wgmma_fence(Site site) {
  meet("wgmma_fence()", site, nullptr, nullptr, [](Block&, Warpgroup& group) {
    group.fenced = true;
    for (WgmmaAccumulator& sums : group.accumulators) sums.touched_at = 0;
  });
}

void wgmma_commit(Site site) {
  meet("wgmma_commit()", site, nullptr, nullptr, [](Block&, Warpgroup& group) { ++group.groups; });
}

void wait_for_wgmma(int groups, float* d, int count, Site site) {
  meet("wgmma_wait()", site, nullptr, d, [&](Block& block, Warpgroup& group) {
    wait_for(block, group, static_cast<uint32_t>(groups), count, site);
  });
}

void thread_leaves_wgmma(Block& block) {
  const Warpgroup& group = block.wgmma_groups()->each[block.current_thread() / kWarpgroup];
  if (group.under_way.empty()) return;
  block.leaves_kernel();
  fail(cudaErrorLaunchFailure,
       "ends before the wgmma of its warpgroup is done\n  wgmma at " +
           line_of(group.under_way.front().site) + "\n  missing: a " +
           (group.under_way.front().group == group.groups ? "wgmma_commit() and a " : "") +
           "wgmma_wait<0>()",
       Block::Blamed::thread);
}

}  // namespace cpu_device
