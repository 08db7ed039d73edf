// What C++ leaves undefined and every card defines: shifts by as many bits as a type has, and
// floats that an integer type cannot hold. Here they would give what this machine makes of them, so
// where the compiler looks for them (-fsanitize=shift-exponent, float-cast-overflow) they end the
// kernel. Also the end of a function without a return, in every build. The functions are those of
// the compilers' own runtime (llvm-project/compiler-rt/lib/ubsan/ubsan_handlers.h).
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "block.hpp"
#include "source_lines.hpp"

using namespace cpu_device;

namespace {

struct Location {
  const char* file;
  uint32_t line, column;
};
struct Type {
  uint16_t kind;  // 0 integer, 1 floating point
  uint16_t info;  // of an integer: whether it is signed, and above that the logarithm of its bits
  char name[1];   // 'int', in quotes

  bool is_signed() const { return info & 1; }
  uint32_t bits() const { return kind == 0 ? 1u << (info >> 1) : info; }
  std::string word() const {
    std::string text = name;
    return text.size() > 2 ? text.substr(1, text.size() - 2) : text;
  }
};
struct Shift {
  Location location;
  const Type& shifted;
  const Type& distance;
};
struct FloatCast {
  Location location;
  const Type& from;
  const Type& to;
};

[[noreturn]] void fail_at(const Location& location, const std::string& what,
                          const std::string& on_a_card = "") {
  static thread_local std::string text;  // outlives the block that fails
  text =
      what + "\n  at " + shortened(location.file) + ":" + std::to_string(location.line) + on_a_card;
  current_block->fail(cudaErrorLaunchFailure, text.c_str(), Block::Blamed::thread);
}

bool in_kernel() {
  if (!current_block || !current_block->in_kernel()) return false;
  current_block->leaves_kernel();
  return true;
}

}  // namespace

// The parameters are those that g++ knows. Values of up to 64 bits are given as they are, others by
// their address.
extern "C" void __ubsan_handle_shift_out_of_bounds(void* data, void*, void* right) {
  if (!in_kernel()) return;
  const auto* shift = static_cast<const Shift*>(data);
  const auto distance = reinterpret_cast<uintptr_t>(right);
  const uint32_t bits = shift->distance.bits();
  auto by = static_cast<int64_t>(distance);
  if (bits < 64 && shift->distance.is_signed()) by = by << (64 - bits) >> (64 - bits);
  const std::string size = std::to_string(shift->shifted.bits());
  fail_at(shift->location,
          "shifts a value of " + size + " bits by " + std::to_string(by) +
              ", which C++ leaves undefined",
          "\n  a card shifts all bits out, this machine by the remainder of " + size +
              "; let this be a case of its own");
}

extern "C" void __ubsan_handle_float_cast_overflow(void* data, void* from) {
  if (!in_kernel()) return;
  const auto* cast = static_cast<const FloatCast*>(data);
  const auto value = reinterpret_cast<uintptr_t>(from);
  std::string number = "a number";
  if (cast->from.bits() == 32) {
    number = std::to_string(std::bit_cast<float>(static_cast<uint32_t>(value)));
  } else if (cast->from.bits() == 64) {
    number = std::to_string(std::bit_cast<double>(uint64_t{value}));
  }
  fail_at(cast->location,
          "converts " + number + " to " + cast->to.word() +
              ", which cannot hold it, and which C++ leaves undefined",
          "\n  a card takes the nearest value, and 0 for NaN; __float2int_rz() and its like do so "
          "everywhere");
}

extern "C" void __ubsan_handle_missing_return(void* data) {
  const auto* location = static_cast<const Location*>(data);
  if (in_kernel()) fail_at(*location, "came to the end of a function that has to return a value");
  std::fprintf(stderr, "%s:%u: came to the end of a function that has to return a value\n",
               location->file, location->line);
  std::abort();
}
