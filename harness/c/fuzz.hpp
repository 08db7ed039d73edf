// A call of the C interface that is drawn from a seed and a number: a valid one, in which one
// argument may then be spoilt. What it must do is known from how it was made, and from the
// references of the chapters; no kernel is asked.
#pragma once

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "harness/c/tile.h"
#include "harness/compare.hpp"
#include "harness/convert.hpp"
#include "tile/host/strides.hpp"

namespace fuzz {

using tile::DType;
using tile::Expected;
using tile::Strides;
using Names = std::vector<std::string>;

/// Random numbers that depend on the seed and the call's number alone.
class Draw {
 public:
  /// Those of the call's twin, if `number` is 1, are the same.
  Draw(std::int64_t seed, std::int64_t call, bool of_two, std::int64_t number)
      : has_twin(of_two),
        part(number),
        state_(mixed(mixed(static_cast<std::uint64_t>(seed)) + static_cast<std::uint64_t>(call))) {}

  bool has_twin;
  std::int64_t part;  // 0, or 1 for the twin

  std::int64_t below(std::int64_t n) {
    state_ += 0x9e3779b97f4a7c15;
    return static_cast<std::int64_t>((mixed(state_) >> 1) % static_cast<std::uint64_t>(n));
  }
  bool one_in(std::int64_t n) { return below(n) == 0; }
  template <class T>
  T of(std::initializer_list<T> all) {
    return all.begin()[below(std::ssize(all))];
  }
  /// Numbers of another sequence, so that a twin of another size goes on with the same as the call.
  Draw another() { return {below(INT64_MAX), 0, false, 0}; }
  /// A size for which a kernel must ask for shared memory: `large`, or `small` for the twin.
  std::int64_t of_twins(std::int64_t large, std::int64_t small) const {
    return part == 0 ? large : small;
  }
  /// In [-1, 1].
  double number() { return static_cast<double>(below(2049) - 1024) / 1024; }

 private:
  static std::uint64_t mixed(std::uint64_t z) {  // splitmix64
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  std::uint64_t state_;
};

/// What all structs of operations begin with.
struct Head {
  std::size_t struct_size;
  const char* step;
  tile_type type;
};

/// [batch][length][heads][dim], as in tile_tensor; a matrix has one batch entry and one head.
struct Shape {
  std::int64_t batch = 1, length = 1, heads = 1, dim = 1;
  std::int64_t count() const { return batch * length * heads * dim; }
};

/// Memory in which an operand lies, or several: gradients in one tensor, or y in the place of x.
struct Block {
  DType type;
  bool has_values;             // or poison, which must not be read
  std::vector<double> values;  // of the elements
  std::vector<int> integers;   // in their place
  std::int64_t offset;         // elements from a boundary of 256 bytes
  std::size_t at = 0;          // bytes from the arena's begin
};

enum class Role {
  input,
  output,
  as_it_is  // an input of which a reference takes the same type: integers, and tables
};

struct Operand {
  std::string name;
  std::size_t slot;  // where its pointer stands in the struct
  Role role;
  std::size_t block;
  std::int64_t first;  // element of the block
  Shape shape;
  Strides stride;
  Names extents = {};  // on which its size depends
  std::string ld_name = "";
  bool is_optional = false;       // may be null
  std::string may_be = "";        // an output: the input whose place it may take
  bool is_for_reference = false;  // a kernel does not read it, and it is not checked
  std::int64_t strides = -1;      // where its strides stand in the struct; none: -1
};

/// One argument made wrong, and what the answer has to be.
struct Spoil {
  std::string what;  // for the call's line
  Names names;       // the message begins with one of these
  tile_status status;
  bool in_reference;  // it is wrong there, too
  std::function<void(std::byte* args)> apply;
};

class Call {
 public:
  template <class Args>
  using Operation = tile_status (*)(const Args*);

  template <class Args>
  Call(Draw* numbers, const char* name, Args, Operation<Args> run, Operation<Args> refer)
      : draw(*numbers),
        operation(name),
        run_([run](const std::byte* args) { return run(reinterpret_cast<const Args*>(args)); }),
        args_(sizeof(Args)) {
    if (refer) {
      refer_ = [refer](const std::byte* args) {
        return refer(reinterpret_cast<const Args*>(args));
      };
    }
    head().struct_size = sizeof(Args);
  }
  template <class Args>
  Args& as() {
    return *reinterpret_cast<Args*>(args_.data());
  }

  // ---- The valid call ----

  Draw& draw;
  std::string operation;
  bool is_empty = false;    // nothing is computed, and no pointer matters
  bool is_on_host = false;  // operands are in the host's memory, and there is neither step nor type
  /// What a named step that does not take the call may name as the reason.
  Names steps_refuse = {};
  /// What the outputs should be, in their order.
  std::function<std::vector<Expected>()> expect;
  bool nan_may_spread = false;  // to where none is expected
  bool has_reference = true, is_workspace_optional = false;
  template <class Args>
  void has_workspace(const void* pointer, const void* bytes,
                     tile_status (*tell)(const Args*, std::int64_t*)) {
    tell_ = [tell](const std::byte* args, std::int64_t* told) {
      return tell(reinterpret_cast<const Args*>(args), told);
    };
    workspace_ = static_cast<std::int64_t>(slot_of(pointer));
    if (bytes) workspace_bytes_ = static_cast<std::int64_t>(slot_of(bytes));
  }

  void type(DType t, std::initializer_list<tile_type> unsupported);
  DType type() const { return type_; }

  /// Sizes: negative ones are refused. `most` is the greatest allowed. If that is INT64_MAX, what
  /// overflows is refused, with the name of one of the operands whose size it is; 0: nothing is.
  void extent(const char* name, const std::int64_t* field, std::int64_t most, Names also = {});
  void flag(const char* name, const std::int32_t* field);
  template <class T>
  void note(const char* name, T value) {
    line_.append(" ").append(name).append("=").append(std::to_string(value));
  }
  /// One value of a field that is refused.
  template <class T>
  void refuses(const char* name, const T* field, std::type_identity_t<T> value, tile_status status,
               Names also = {}) {
    also.push_back(name);
    std::string what(name);
    if constexpr (std::is_pointer_v<T>) {
      what += " given";
    } else {
      what += "=" + std::to_string(value);
    }
    spoil(what, also, status, true,
          [at = slot_of(field), value](std::byte* args) { put(args, at, value); });
  }
  template <class T>
  void refuses(const char* name, const T* field,
               std::initializer_list<std::type_identity_t<T>> values, tile_status status,
               const Names& also = {}) {
    for (const T value : values) refuses(name, field, value, status, also);
  }
  void spoil(std::string what, Names names, tile_status status, bool in_reference,
             std::function<void(std::byte*)> apply) {
    spoils_.push_back({std::move(what), std::move(names), status, in_reference, std::move(apply)});
  }

  std::size_t block(DType type, std::int64_t elements, bool has_values);
  /// Registers an operand and sets its pointer later. Without a block it gets its own.
  Operand& operand(const char* name, const void* field, Role role, DType type, const Shape& shape,
                   const Strides& stride, std::int64_t in_block = -1, std::int64_t first = 0);
  struct Rows {
    const char* ld_name;
    std::int64_t* ld;
    Names extents;
    std::string place = "";  // the operand whose place it takes
    std::int64_t chunk = 1;  // of how many elements the distance and the place are multiples
  };
  /// A matrix whose distance of rows is drawn.
  Operand& matrix(const char* name, const void* field, Role role, DType type, std::int64_t rows,
                  std::int64_t cols, const Rows& how);
  Operand& vector(const char* name, const void* field, Role role, DType type, std::int64_t n);
  Operand& integers(const char* name, const void* field, std::vector<int> values);
  /// A tensor whose strides are drawn, multiples of `chunk` elements. Rows of an input may be one.
  Operand& tensor(const char* name, const void* field, std::int64_t* strides, Role role, DType type,
                  const Shape& shape, std::int64_t chunk, bool may_repeat = true);
  const Operand& operand(const std::string& name) const;
  bool has(const std::string& name) const {
    return std::ranges::find(operands_, name, &Operand::name) != operands_.end();
  }
  /// Fills an output, which is read before it is written.
  void give_values(const Operand& x);
  Block& block_of(const Operand& x) { return blocks_[x.block]; }
  /// The elements of an operand, in the order of its shape.
  std::vector<double> values(const std::string& name) const;
  /// Sets the elements of one, which is an input.
  void set_values(const std::string& name, const std::vector<double>& values);

  std::size_t slot_of(const void* field) const {
    return static_cast<std::size_t>(static_cast<const std::byte*>(field) - args_.data());
  }
  /// Makes an operand, or a block, begin at a multiple of `chunk` elements from a boundary.
  void aligned(std::size_t block, std::int64_t chunk) {
    blocks_[block].offset = blocks_[block].offset / chunk * chunk;
  }
  void aligned(const Operand& x, std::int64_t chunk) { aligned(x.block, chunk); }
  /// Device memory of an integer, for an argument that is not to be there.
  static const int* kept_integers();
  /// A number that lives as long as the call.
  const float* kept(float value) { return &numbers_.emplace_back(value); }
  template <class T>
  static void put(std::byte* args, std::size_t at, T value) {
    std::memcpy(args + at, &value, sizeof value);
  }
  template <class T>
  static T get(const std::byte* args, std::size_t at) {
    T value;
    std::memcpy(&value, args + at, sizeof value);
    return value;
  }

  void fault(const std::string& what) { faults_.push_back(what); }

  // ---- What it does ----

  /// Completes the call, and spoils it or not. Returns a line that says what it is; `begin` gets
  /// it, as far as it is known, before anything is called.
  const std::string& prepare(const std::function<void(const std::string& line)>& begin);
  /// Makes the call, and if it has a twin, another thread makes that at the same time.
  void call();
  /// Checks all that there is to check, and returns the faults.
  Names judge();

 private:
  Head& head() { return *reinterpret_cast<Head*>(args_.data()); }
  void place();
  void add_common_spoils();
  void add_operand_spoils(const Operand& x);
  void add_overlaps(const Operand& output);
  void choose_step();
  void check_workspace_told();
  void add_workspace_spoils();
  void check_answer();
  void check_refusal(const char* who, tile_status status, const std::string& error);
  void check_memory(bool is_written);
  void check_reference();
  std::vector<std::int64_t> places(const Operand& x) const;  // elements of its block
  std::byte* arena() const;
  std::byte* address(const Operand& x) const;
  const std::vector<Expected>& expected() {
    if (expected_.empty() && expect) expected_ = expect();
    return expected_;
  }

  std::function<tile_status(const std::byte*)> run_, refer_;
  // Sizes of the workspace, and where its pointer and its bytes stand; -1: there are none.
  std::function<tile_status(const std::byte* args, std::int64_t* bytes)> tell_;
  std::int64_t workspace_ = -1, workspace_bytes_ = -1;
  std::vector<std::byte> args_;
  std::vector<std::byte> given_;  // these, spoilt or not
  const Spoil* spoilt_ = nullptr;
  struct {
    tile_status status;
    std::string error, step;
  } answer_;
  DType type_ = DType::fp32;
  std::vector<Block> blocks_;
  std::vector<Operand> operands_;
  std::vector<Spoil> spoils_;
  std::vector<std::byte> image_;  // what the arena holds before the call
  std::size_t workspace_at_ = 0;
  std::int64_t told_ = 0;
  std::string step_, line_, not_told_;
  std::vector<Expected> expected_;
  std::deque<float> numbers_;
  Names faults_;
};

}  // namespace fuzz
