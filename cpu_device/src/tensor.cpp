// What the matrix instructions of cpu_device/tensor.h do, once all lanes have arrived.
#include "cpu_device/tensor.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "avx2.hpp"
#include "block.hpp"
#include "check/checker.hpp"
#include "cpu_device/options.h"
#include "tile/ptx/fragments.hpp"

namespace cpu_device {
namespace {

namespace layout = tile::ptx;
using layout::Element;

// ---- What can be wrong ----

[[noreturn]] void fail(cudaError_t error, std::string message, Block::Blamed who,
                       const void* address = nullptr) {
  static thread_local std::string what;  // outlives the block that fails
  what = std::move(message);
  current_block->fail(error, what.c_str(), who, address);
}

std::string at(Site site) {
  return std::string("\n  at ") + site.file + ":" + std::to_string(site.line);
}

std::string version(int capability) {
  return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

[[noreturn, gnu::cold, gnu::noinline]] void lacks(const char* instruction, int capability,
                                                  Site site) {
  current_block->leaves_kernel();
  // What the wrapper that was compiled for such a card does: it calls __trap().
  fail(cudaErrorLaunchFailure,
       std::string("calls ") + instruction + ", which needs compute capability " +
           version(capability) + "; this card has " + version(options().capability) + at(site),
       Block::Blamed::thread);
}

[[noreturn, gnu::cold, gnu::noinline]] void short_warp(const TensorOperands& call, uint32_t lanes) {
  current_block->leaves_kernel();
  fail(cudaErrorLaunchFailure,
       std::string("calls ") + call.instruction->name + " in a warp of " +
           std::to_string(std::popcount(lanes)) + " threads; it takes 32" + at(call.site),
       Block::Blamed::thread);
}

[[noreturn, gnu::cold, gnu::noinline]] void different_places(const TensorOperands& one,
                                                             const TensorOperands& other) {
  current_block->leaves_kernel();
  fail(cudaErrorLaunchFailure,
       std::string("lanes of one warp call ") + one.instruction->name +
           " at different places; all 32 must run the same one" + at(one.site) + at(other.site),
       Block::Blamed::block);
}

// What the lanes have brought. Ends the block if they cannot run the instruction together.
template <class Operands>
struct Warp {
  const Operands* lane[kLanes];

  Warp(const WarpExchange& exchange, uint32_t lanes) {
    for (uint32_t i = 0; i < kLanes; ++i) {
      lane[i] = reinterpret_cast<const Operands*>(exchange.value[i]);
    }
    // The lane that runs this has arrived last.
    const Operands& last = *lane[current_block->current_lane()];
    if (lanes != ~0u) short_warp(last, lanes);
    for (const Operands* other : lane) {
      if (other->site.line != last.site.line) different_places(last, *other);
    }
  }
};

// ---- ldmatrix and stmatrix ----

constexpr size_t kRowBytes = 16;
constexpr int kRows = 8;  // of a tile

using Tile = uint16_t[kRows][kRowBytes / 2];
using Map = Element (*)(int lane, int i);

template <int kTiles, Map kElement>
void load(WarpExchange& exchange, uint32_t lanes) {
  const Warp<MatrixOperands> warp(exchange, lanes);
  for (int t = 0; t < kTiles; ++t) {
    Tile tile;
    for (int row = 0; row < kRows; ++row) {
      std::memcpy(tile[row], warp.lane[t * kRows + row]->row, kRowBytes);
    }
    for (int lane = 0; lane < int{kLanes}; ++lane) {
      const Element low = kElement(lane, 0), high = kElement(lane, 1);
      warp.lane[lane]->registers[t] =
          tile[low.row][low.col] | static_cast<uint32_t>(tile[high.row][high.col]) << 16;
    }
  }
}

template <int kTiles, Map kElement>
void store(WarpExchange& exchange, uint32_t lanes) {
  const Warp<MatrixOperands> warp(exchange, lanes);
  for (int t = 0; t < kTiles; ++t) {
    Tile tile;
    for (int lane = 0; lane < int{kLanes}; ++lane) {
      const Element low = kElement(lane, 0), high = kElement(lane, 1);
      const uint32_t bits = warp.lane[lane]->registers[t];
      tile[low.row][low.col] = static_cast<uint16_t>(bits);
      tile[high.row][high.col] = static_cast<uint16_t>(bits >> 16);
    }
    for (int row = 0; row < kRows; ++row) {
      std::memcpy(const_cast<void*>(warp.lane[t * kRows + row]->row), tile[row], kRowBytes);
    }
  }
}

[[noreturn, gnu::cold, gnu::noinline]] void bad_row(const MatrixOperands& operands,
                                                    const char* what, cudaError_t error) {
  current_block->leaves_kernel();
  std::string text = std::string("calls ") + operands.instruction->name +
                     " with the address of a row " + what + at(operands.site);
  if (error == cudaErrorIllegalAddress) text += "\n  the address is";  // which follows
  fail(error, std::move(text), Block::Blamed::thread, operands.row);
}

// ---- mma ----

// How the elements of A and B lie in memory, and what they are worth.
struct Fp16Elements {
  using Bits = uint16_t;
  static float decode(Bits bits) { return to_float<Fp16>(bits); }
};
struct Bf16Elements {
  using Bits = uint16_t;
  static float decode(Bits bits) { return to_float<Bf16>(bits); }
};
struct Tf32Elements {
  using Bits = uint32_t;
  static float decode(Bits bits) { return std::bit_cast<float>(bits & ~0x1fffu); }
};
template <class T>
struct Fp8Elements {
  using Bits = uint8_t;
  static float decode(Bits bits) { return static_cast<float>(std::bit_cast<T>(bits)); }
};

// The same for D, both ways.
struct Fp32Sums {
  using Bits = uint32_t;
  static double decode(Bits bits) { return std::bit_cast<float>(bits); }
  static Bits encode(double value) {
    return std::isnan(value) ? 0x7fffffff : std::bit_cast<uint32_t>(static_cast<float>(value));
  }
};
struct Fp16Sums {
  using Bits = uint16_t;
  static double decode(Bits bits) { return to_float<Fp16>(bits); }
  static Bits encode(double value) { return from_double<Fp16>(value); }
};

// Where the elements that the lanes hold, one lane after the other, stand in a row-major matrix.
template <Map kElement, int kRows, int kCols>
constexpr auto kPlaces = [] {
  std::array<uint16_t, kRows * kCols> places{};
  constexpr int kEach = kRows * kCols / int{kLanes};
  for (int j = 0; j < kRows * kCols; ++j) {
    const Element e = kElement(j / kEach, j % kEach);
    places[static_cast<size_t>(j)] = static_cast<uint16_t>(e.row * kCols + e.col);
  }
  return places;
}();

// The matrix that a warp holds in the registers to which `registers` points in each lane.
template <class Elements, Map kElement, int kRows, int kCols, class Pointer>
__forceinline__ void gather(const Warp<MmaOperands>& warp, Pointer MmaOperands::*registers,
                            double* matrix) {
  constexpr auto& kPlace = kPlaces<kElement, kRows, kCols>;
  constexpr int kCount = kRows * kCols, kEach = kCount / int{kLanes};
  typename Elements::Bits bits[kCount];
  for (int lane = 0; lane < int{kLanes}; ++lane) {
    std::memcpy(bits + lane * kEach, warp.lane[lane]->*registers, kEach * sizeof bits[0]);
  }
  decltype(Elements::decode(bits[0])) values[kCount];
  for (int j = 0; j < kCount; ++j) values[j] = Elements::decode(bits[j]);
  for (int j = 0; j < kCount; ++j) matrix[kPlace[static_cast<size_t>(j)]] = values[j];
}

template <class Sums, Map kElement, int kRows, int kCols>
__forceinline__ void scatter(const Warp<MmaOperands>& warp, const double* matrix) {
  constexpr auto& kPlace = kPlaces<kElement, kRows, kCols>;
  constexpr int kCount = kRows * kCols, kEach = kCount / int{kLanes};
  typename Sums::Bits bits[kCount];
  for (int j = 0; j < kCount; ++j) bits[j] = Sums::encode(matrix[j]);
  for (int lane = 0; lane < int{kLanes}; ++lane) {
    typename Sums::Bits own[kEach];
    for (int i = 0; i < kEach; ++i) own[i] = bits[kPlace[static_cast<size_t>(lane * kEach + i)]];
    std::memcpy(warp.lane[lane]->d, own, sizeof own);
  }
}

template <class Elements, int kDepth, class Sums>
__forceinline__ void multiply_warp(WarpExchange& exchange, uint32_t lanes) {
  constexpr int kM = 16, kN = 8, kBits = 8 * sizeof(typename Elements::Bits);
  // A row of B or D. The compiler makes of it as many registers of the processor as it takes.
  using Row = double __attribute__((vector_size(kN * sizeof(double))));
  const Warp<MmaOperands> warp(exchange, lanes);
  double a[kM][kDepth];
  Row b[kDepth], d[kM];
  gather<Elements, layout::element_of_a<kBits>, kM, kDepth>(warp, &MmaOperands::a, a[0]);
  gather<Elements, layout::element_of_b<kBits>, kDepth, kN>(warp, &MmaOperands::b,
                                                            reinterpret_cast<double*>(b));
  gather<Sums, layout::element_of_d, kM, kN>(warp, &MmaOperands::d, reinterpret_cast<double*>(d));
  for (int m = 0; m < kM; ++m) {
    Row sum = d[m];
    for (int k = 0; k < kDepth; ++k) sum += a[m][k] * b[k];
    d[m] = sum;
  }
  scatter<Sums, layout::element_of_d, kM, kN>(warp, reinterpret_cast<const double*>(d));
}

// The same loops, for the processor that is there. Products are exact, so that fused operations
// give the same.
#if defined(__x86_64__)
template <class Elements, int kDepth, class Sums>
[[gnu::target("avx2,fma")]] void multiply_by_avx2(WarpExchange& exchange, uint32_t lanes) {
  multiply_warp<Elements, kDepth, Sums>(exchange, lanes);
}
#endif

template <class Elements, int kDepth, class Sums>
void multiply(WarpExchange& exchange, uint32_t lanes) {
#if defined(__x86_64__)
  if (has_avx2()) return multiply_by_avx2<Elements, kDepth, Sums>(exchange, lanes);
#endif
  multiply_warp<Elements, kDepth, Sums>(exchange, lanes);
}

}  // namespace

void require_capability(const char* instruction, int capability, Site site) {
  block_of_caller(instruction);
  if (options().capability < capability) lacks(instruction, capability, site);
}

void move_matrices(const MatrixInstruction& instruction, const MatrixOperands& operands) {
  require_capability(instruction.name, instruction.capability, operands.site);
  if (current_block->current_lane() < instruction.rows) {
    const auto address = reinterpret_cast<uintptr_t>(operands.row);
    const uintptr_t offset = address - reinterpret_cast<uintptr_t>(shared_arena);
    const auto kind = instruction.writes ? check::Kind::write : check::Kind::read;
    [[maybe_unused]] check::Place place = 0;
    if constexpr (kChecking) place = check::place_of(__builtin_return_address(0));
    if (offset >= kArenaBytes) {
      bad_row(operands, "that is not in shared memory", cudaErrorIllegalAddress);
    }
    if (address % kRowBytes != 0) {
      if constexpr (kChecking) check::look_at_misaligned({address, kRowBytes, kind, false, place});
      bad_row(operands, "that is no multiple of 16", cudaErrorMisalignedAddress);
    }
    if constexpr (kChecking) check::look_at({address, kRowBytes, kind, false, place});
    if (offset + kRowBytes > current_block->launch().shared_bytes) {
      bad_row(operands, "past the end of shared memory", cudaErrorIllegalAddress);
    }
  }
  warp_collective(instruction, ~0u, reinterpret_cast<uintptr_t>(&operands), 0, operands.site);
}

void multiply_matrices(const MmaOperands& operands) {
  const TensorInstruction& instruction = *operands.instruction;
  require_capability(instruction.name, instruction.capability, operands.site);
  warp_collective(instruction, ~0u, reinterpret_cast<uintptr_t>(&operands), 0, operands.site);
}

#define CPU_DEVICE_MATRIX(instruction, name, tiles, capability, writes, move)                    \
  const MatrixInstruction instruction##X##tiles{                                                 \
      {{name ".x" #tiles, move<tiles, layout::element_of_ldmatrix>}, capability},                \
      tiles * kRows,                                                                             \
      writes};                                                                                   \
  const MatrixInstruction instruction##X##tiles##Trans{                                          \
      {{name ".x" #tiles ".trans", move<tiles, layout::element_of_ldmatrix_trans>}, capability}, \
      tiles * kRows,                                                                             \
      writes};
CPU_DEVICE_MATRIX(kLdmatrix, "ldmatrix", 1, 75, false, load)
CPU_DEVICE_MATRIX(kLdmatrix, "ldmatrix", 2, 75, false, load)
CPU_DEVICE_MATRIX(kLdmatrix, "ldmatrix", 4, 75, false, load)
CPU_DEVICE_MATRIX(kStmatrix, "stmatrix", 1, 90, true, store)
CPU_DEVICE_MATRIX(kStmatrix, "stmatrix", 2, 90, true, store)
CPU_DEVICE_MATRIX(kStmatrix, "stmatrix", 4, 90, true, store)
#undef CPU_DEVICE_MATRIX

const TensorInstruction kMmaM16n8k16Fp16{
    {"mma.m16n8k16 of fp16", multiply<Fp16Elements, 16, Fp32Sums>}, 80};
const TensorInstruction kMmaM16n8k16Bf16{
    {"mma.m16n8k16 of bf16", multiply<Bf16Elements, 16, Fp32Sums>}, 80};
const TensorInstruction kMmaM16n8k16InFp16{
    {"mma.m16n8k16 of fp16 in fp16", multiply<Fp16Elements, 16, Fp16Sums>}, 80};
const TensorInstruction kMmaM16n8k8Fp16{
    {"mma.m16n8k8 of fp16", multiply<Fp16Elements, 8, Fp32Sums>}, 75};
const TensorInstruction kMmaM16n8k8Tf32{
    {"mma.m16n8k8 of tf32", multiply<Tf32Elements, 8, Fp32Sums>}, 80};
const TensorInstruction kMmaM16n8k32E4m3{
    {"mma.m16n8k32 of e4m3", multiply<Fp8Elements<__nv_fp8_e4m3>, 32, Fp32Sums>}, 89};
const TensorInstruction kMmaM16n8k32E5m2{
    {"mma.m16n8k32 of e5m2", multiply<Fp8Elements<__nv_fp8_e5m2>, 32, Fp32Sums>}, 89};

}  // namespace cpu_device
