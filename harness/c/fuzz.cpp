#include "harness/c/fuzz.hpp"

#include <array>
#include <cmath>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include "tile/host/text.hpp"

namespace fuzz {
namespace {

constexpr tile_status kMayBeTaken = -1;  // by a step that needs less
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr std::size_t kHostBytes = 1 << 20;  // for a call whose operands are the host's
constexpr std::int64_t kMargin = 64;         // elements around a block of the host

// Device memory in which all operands of a call lie, one after the other; the calls of a pair have
// one each.
class Arena {
 public:
  static constexpr std::size_t kBytes = std::size_t{96} << 20, kMost = kBytes / 2;
  static std::byte* begin(std::int64_t part) {
    static const Arena arenas[2];
    return static_cast<std::byte*>(arenas[part].memory_);
  }

 private:
  Arena() {
    if (tile_alloc(&memory_, kBytes) != TILE_OK) throw std::runtime_error(tile_last_error());
  }
  void* memory_ = nullptr;
};

std::size_t bytes_of(const Block& b) {
  return b.integers.empty() ? b.values.size() * size_bytes(b.type)
                            : b.integers.size() * sizeof(int);
}
std::int64_t element_of(const Block& b) {
  return b.integers.empty() ? static_cast<std::int64_t>(size_bytes(b.type)) : 4;
}

constexpr tile_type kTypes[] = {TILE_FP32, TILE_FP16, TILE_BF16, TILE_FP64, TILE_TF32, TILE_E4M3};
tile_type code_of(DType type) { return kTypes[static_cast<std::size_t>(type)]; }

bool is_same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// The arguments that a message begins with: "queries, keys and heads: ...".
bool is_named(std::string_view message, const Names& names) {
  const std::string_view before = message.substr(0, message.find(": "));
  return std::ranges::any_of(names, [&](const std::string& name) {
    for (std::size_t at = before.find(name); at != before.npos; at = before.find(name, at + 1)) {
      const std::string_view rest = before.substr(at + name.size());
      const bool begins = at == 0 || before.substr(0, at).ends_with(", ") ||
                          before.substr(0, at).ends_with(" and ");
      if (begins && (rest.empty() || rest.starts_with(", ") || rest.starts_with(" and "))) {
        return true;
      }
    }
    return false;
  });
}

std::string joined(const Names& names) {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : " or ") + name;
  return all;
}

}  // namespace

// ---- The valid call ----

void Call::type(DType t, std::initializer_list<tile_type> unsupported) {
  type_ = t;
  head().type = code_of(t);
  line_.append(" type=").append(name(t));
  refuses("type", &head().type, {0, 7, -1, INT_MAX, INT_MIN}, TILE_INVALID_ARGUMENT);
  for (const tile_type other : unsupported) {
    spoil("type=" + std::to_string(other), {"type"}, TILE_UNSUPPORTED, false,
          [other, at = slot_of(&head().type)](std::byte* args) { put(args, at, other); });
  }
}

void Call::extent(const char* name, const std::int64_t* field, std::int64_t most, Names also) {
  note(name, *field);
  refuses(name, field, {-1, INT64_MIN}, TILE_INVALID_ARGUMENT);
  if (most == 0) return;
  if (most < INT64_MAX) {
    return refuses(name, field, {most + 1, std::int64_t{1} << 40, INT64_MAX}, TILE_UNSUPPORTED);
  }
  if (is_empty) return;
  also.push_back(name);
  spoils_.push_back({std::string(name) + "=INT64_MAX", also, TILE_INVALID_ARGUMENT, true,
                     [at = slot_of(field)](std::byte* args) { put(args, at, INT64_MAX); }});
  for (const Operand& x : operands_) {
    if (std::ranges::find(x.extents, name) == x.extents.end()) continue;
    spoils_.back().names.push_back(x.name);
    spoils_.back().names.push_back(x.ld_name);
  }
}

void Call::flag(const char* name, const std::int32_t* field) {
  note(name, *field);
  refuses(name, field, {2, -1, INT_MIN}, TILE_INVALID_ARGUMENT);
}

std::size_t Call::block(DType type, std::int64_t elements, bool has_values) {
  Block made{type,
             has_values,
             std::vector<double>(static_cast<std::size_t>(elements), kNan),
             {},
             draw.one_in(4) ? draw.below(9) : 0};
  if (has_values) {
    Draw numbers = draw.another();
    for (double& x : made.values) x = numbers.number();
    tile::round_to(made.values, type);
  }
  blocks_.push_back(std::move(made));
  return blocks_.size() - 1;
}

void Call::give_values(const Operand& x) {
  Block& b = blocks_[x.block];
  b.has_values = true;
  Draw numbers = draw.another();
  for (double& each : b.values) each = numbers.number();
  tile::round_to(b.values, b.type);
}

Operand& Call::operand(const char* name, const void* field, Role role, DType type,
                       const Shape& shape, const Strides& stride, std::int64_t in_block,
                       std::int64_t first) {
  if (in_block < 0) {
    std::int64_t elements = 0;
    if (shape.count() > 0) {
      const auto reach = [](std::int64_t count, std::int64_t apart) {
        return count > 1 ? (count - 1) * apart : 0;
      };
      elements = shape.dim + reach(shape.batch, stride.batch) + reach(shape.heads, stride.head) +
                 reach(shape.length, stride.row);
    }
    in_block = static_cast<std::int64_t>(block(type, elements, role != Role::output));
  }
  operands_.push_back(
      {name, slot_of(field), role, static_cast<std::size_t>(in_block), first, shape, stride});
  return operands_.back();
}

Operand& Call::matrix(const char* name, const void* field, Role role, DType type, std::int64_t rows,
                      std::int64_t cols, const Rows& how) {
  const auto [ld_name, ld, extents, in_place, chunk] = how;
  std::int64_t distance = std::max<std::int64_t>(1, cols), place = -1;
  if (!in_place.empty()) {
    const Operand& other = operand(in_place);
    distance = other.stride.row, place = static_cast<std::int64_t>(other.block);
    *ld = distance;
  } else if (distance % chunk != 0 || !draw.one_in(3)) {
    distance += draw.of<std::int64_t>({0, 0, 1, 3, 8, 16});
    *ld = distance = (distance + chunk - 1) / chunk * chunk;
  }
  note(ld_name, *ld);
  Operand& x = operand(name, field, role, type, {1, rows, 1, cols}, {0, 0, distance}, place);
  blocks_[x.block].offset = blocks_[x.block].offset / chunk * chunk;
  x.extents = extents, x.ld_name = ld_name;
  if (cols > 1) refuses(ld_name, ld, cols - 1, TILE_INVALID_ARGUMENT);
  refuses(ld_name, ld, {-1, INT64_MIN}, TILE_INVALID_ARGUMENT);
  if (rows > 2 && cols > 0) refuses(ld_name, ld, INT64_MAX, TILE_INVALID_ARGUMENT, {name});
  return x;
}

Operand& Call::vector(const char* name, const void* field, Role role, DType type, std::int64_t n) {
  return operand(name, field, role, type, {1, 1, 1, n}, {});
}

Operand& Call::integers(const char* name, const void* field, std::vector<int> values) {
  const std::size_t made = block(DType::fp32, 0, true);
  const auto count = static_cast<std::int64_t>(values.size());
  line_.append(" ").append(name).append("=");
  for (const int each : values) line_.append(std::to_string(each)).append(",");
  blocks_[made].integers = std::move(values);
  Operand& x = operand(name, field, Role::as_it_is, DType::fp32, {1, 1, 1, count}, {},
                       static_cast<std::int64_t>(made));
  x.is_optional = true;
  return x;
}

Operand& Call::tensor(const char* name, const void* field, std::int64_t* strides, Role role,
                      DType type, const Shape& s, std::int64_t chunk, bool may_repeat) {
  Strides x = tile::packed_strides(s.length, s.heads, s.dim);
  const std::int64_t row = s.dim + chunk * draw.of<std::int64_t>({0, 0, 1, 3});
  bool is_default = false;
  switch (draw.below(6)) {
    case 0: is_default = true; break;
    case 1: break;
    case 2: x = {s.length * s.heads * row, row, s.heads * row}; break;
    case 3: x = {s.heads * s.length * row, s.length * row, row}; break;  // heads first
    case 4: x = {s.heads * row, row, s.batch * s.heads * row}; break;    // batch entries last
    default:
      if (role == Role::output || !may_repeat) break;
      std::int64_t* shared[] = {&x.batch, &x.head, &x.row};
      *shared[draw.below(3)] = 0;
  }
  if (!is_default && draw.one_in(3)) {  // the stride of a lone one does not matter
    const std::int64_t any =
        chunk * draw.of<std::int64_t>({0, 1, std::int64_t{1} << 40, INT64_MAX / 16});
    if (s.batch <= 1) x.batch = any;
    if (s.heads <= 1) x.head = any;
    if (s.length <= 1 && draw.one_in(2)) x.row = any;
  }
  if (x == Strides{}) x.head = chunk;  // not all zero, which is the default
  if (is_default) {
    x = tile::packed_strides(s.length, s.heads, s.dim);
  } else {
    strides[0] = x.batch, strides[1] = x.head, strides[2] = x.row;
  }
  Operand& made = operand(name, field, role, type, s, x);
  made.strides = static_cast<std::int64_t>(slot_of(strides));
  blocks_[made.block].offset = blocks_[made.block].offset / chunk * chunk;
  return made;
}

const Operand& Call::operand(const std::string& name) const {
  return *std::ranges::find(operands_, name, &Operand::name);
}

std::vector<std::int64_t> Call::places(const Operand& x) const {
  std::vector<std::int64_t> all;
  if (x.shape.count() == 0) return all;
  all.reserve(static_cast<std::size_t>(x.shape.count()));
  const auto at = [](std::int64_t i, std::int64_t apart) { return i > 0 ? i * apart : 0; };
  for (std::int64_t b = 0; b < x.shape.batch; ++b) {
    for (std::int64_t row = 0; row < x.shape.length; ++row) {
      for (std::int64_t head = 0; head < x.shape.heads; ++head) {
        const std::int64_t begin =
            x.first + at(b, x.stride.batch) + at(row, x.stride.row) + at(head, x.stride.head);
        for (std::int64_t d = 0; d < x.shape.dim; ++d) all.push_back(begin + d);
      }
    }
  }
  return all;
}

std::vector<double> Call::values(const std::string& name) const {
  const Operand& x = operand(name);
  std::vector<double> all;
  for (const std::int64_t each : places(x)) {
    all.push_back(blocks_[x.block].values[static_cast<std::size_t>(each)]);
  }
  return all;
}

void Call::set_values(const std::string& name, const std::vector<double>& values) {
  const Operand& x = operand(name);
  auto next = values.begin();
  for (const std::int64_t each : places(x)) {
    blocks_[x.block].values[static_cast<std::size_t>(each)] = *next++;
  }
}

const int* Call::kept_integers() { return reinterpret_cast<const int*>(Arena::begin(0)); }

// ---- Placing it, and the ways to spoil it ----

std::byte* Call::arena() const {
  if (!is_on_host) return Arena::begin(draw.part);
  static std::vector<std::byte> of_host(2 * kHostBytes);
  return of_host.data() + static_cast<std::size_t>(draw.part) * kHostBytes;
}

std::byte* Call::address(const Operand& x) const {
  const Block& b = blocks_[x.block];
  return arena() + b.at + x.first * element_of(b);
}

void Call::place() {
  std::size_t end = 4096;
  const auto to_boundary = [&] { end = (end + 64 + 255) / 256 * 256; };
  for (Block& b : blocks_) {
    to_boundary();
    b.at = end + static_cast<std::size_t>(b.offset * element_of(b));
    end = b.at + bytes_of(b);
  }
  const bool has_pointers = !is_empty || draw.one_in(2);
  for (const Operand& x : operands_) {
    // Without integers the call would be another one.
    if (has_pointers || !blocks_[x.block].integers.empty()) put(args_.data(), x.slot, address(x));
    line_.append(" ").append(x.name);
    if (!has_pointers) {
      line_.append("=NULL");
      continue;
    }
    line_.append("+").append(std::to_string(blocks_[x.block].offset + x.first));
    if (x.strides < 0) continue;
    line_.append("[").append(std::to_string(x.stride.batch)).append(",");
    line_.append(std::to_string(x.stride.head)).append(",");
    line_.append(std::to_string(x.stride.row)).append("]");
  }
  to_boundary();
  workspace_at_ = end;
}

void Call::add_operand_spoils(const Operand& x) {
  const bool in_reference = x.role != Role::as_it_is;
  const bool is_there = !is_empty && x.shape.count() > 0 && !x.is_for_reference;
  const auto change = [&](const char* what, std::function<void(std::byte*)> apply) {
    spoil(x.name + what, {x.name}, TILE_INVALID_ARGUMENT, in_reference, std::move(apply));
  };
  if (is_there && !x.is_optional) {
    change("=NULL", [at = x.slot](std::byte* args) { put<void*>(args, at, nullptr); });
  }
  if (is_there && element_of(blocks_[x.block]) > 1) {
    change(" unaligned",
           [at = x.slot](std::byte* args) { put(args, at, get<std::byte*>(args, at) + 1); });
  }
  if (x.strides < 0) return;
  const auto stride = [&](const char* what, std::size_t number, std::int64_t value) {
    std::array<std::int64_t, 3> all{x.stride.batch, x.stride.head, x.stride.row};
    all[number] = value;
    if (all[0] == 0 && all[1] == 0 && all[2] == 0) return;  // the default
    change(what, [at = static_cast<std::size_t>(x.strides), all](std::byte* args) {
      put(args, at, all);
    });
  };
  stride("'s batch stride is negative", 0, -1);
  stride("'s head stride is negative", 1, -8);
  stride("'s row stride is negative", 2, INT64_MIN);
  if (!is_there) return;
  if (x.shape.length > 1) stride("'s row stride overflows", 2, INT64_MAX);
  if (x.shape.batch > 1) stride("'s batch stride overflows", 0, INT64_MAX);
  if (x.role == Role::output && x.shape.length > 1) stride("'s rows are one", 2, 0);
}

void Call::add_overlaps(const Operand& x) {
  const Operand& other = operands_[static_cast<std::size_t>(draw.below(std::ssize(operands_)))];
  const std::int64_t size = element_of(blocks_[x.block]);
  const std::int64_t other_size = element_of(blocks_[other.block]);
  if (&x == &other || x.shape.count() == 0 || other.shape.count() == 0) return;
  if (other.is_for_reference) return;
  auto at = reinterpret_cast<std::uintptr_t>(address(other));
  if (!x.may_be.empty()) {  // not quite there
    if (other.shape.dim * other_size < 2 * size) return;
    at += static_cast<std::uintptr_t>(size);
  }
  at = at / static_cast<std::uintptr_t>(size) * static_cast<std::uintptr_t>(size);
  // What lies there by then: the message may name any output of these.
  std::vector<bool> taken(workspace_at_ + 65536);
  const auto for_each_byte = [&](const Operand& y, auto visit) {
    const auto size_of_y = static_cast<std::size_t>(element_of(blocks_[y.block]));
    const std::byte* from = &y == &x ? reinterpret_cast<std::byte*>(at) : address(y);
    const auto begin = static_cast<std::int64_t>(from - arena());
    for (const std::int64_t each : places(y)) {
      const auto first =
          static_cast<std::size_t>(begin + (each - y.first) * static_cast<std::int64_t>(size_of_y));
      for (std::size_t i = 0; i < size_of_y; ++i) {
        if (first + i < taken.size()) visit(first + i);
      }
    }
  };
  for_each_byte(x, [&](std::size_t i) { taken[i] = true; });
  Names names{x.name};
  if (workspace_ >= 0) names.emplace_back("workspace");
  for (const Operand& y : operands_) {
    bool is_hit = false;
    if (y.role == Role::output) for_each_byte(y, [&](std::size_t i) { is_hit |= taken[i]; });
    if (is_hit) names.push_back(y.name);
  }
  spoil(x.name + " over " + other.name, names, TILE_INVALID_ARGUMENT, false,
        [slot = x.slot, at](std::byte* args) { put(args, slot, at); });
}

void Call::add_common_spoils() {
  refuses("struct_size", &head().struct_size, {0, args_.size() - 1, args_.size() + 8, SIZE_MAX},
          TILE_INVALID_ARGUMENT);
  if (is_on_host) return;
  for (const char* step : {"fastest", ""}) {
    spoil(std::string("step='") + step + "'", {"step"}, TILE_INVALID_ARGUMENT, false,
          [step, at = slot_of(&head().step)](std::byte* args) { put(args, at, step); });
  }
  for (const Operand& x : operands_) add_operand_spoils(x);
  if (is_empty) return;
  for (const Operand& x : operands_) {
    if (x.role == Role::output) add_overlaps(x);
  }
}

// The names of the operation's steps, as the message for another name lists them.
void Call::choose_step() {
  if (is_on_host) return;
  static std::map<std::string, Names> steps;
  Names& all = steps[operation];
  if (all.empty()) {
    head().step = "?";
    if (workspace_ >= 0) {
      put(args_.data(), static_cast<std::size_t>(workspace_), arena() + workspace_at_);
    }
    run_(args_.data());
    head().step = nullptr;
    const std::string message = tile_last_error();
    const std::string_view before = "step: '?' is not one of ";
    if (!message.starts_with(before)) return fault("no list of steps: " + message);
    for (std::size_t at = before.size(); at < message.size();) {
      const std::size_t end = std::min(message.find(", ", at), message.size());
      all.push_back(message.substr(at, end - at));
      at = end + 2;
    }
  }
  if (!draw.one_in(2)) return;
  step_ = all[static_cast<std::size_t>(draw.below(std::ssize(all)))];
  head().step = step_.c_str();
  line_.append(" step=").append(step_);
}

void Call::check_workspace_told() {
  if (!tell_) return;
  std::int64_t bytes = -1;
  if (tell_(args_.data(), &bytes) != TILE_OK) {
    // A step that does not take the call at all has none.
    not_told_ = tile_last_error();
    if (step_.empty()) fault("no size of the workspace: " + not_told_);
    return;
  }
  if (bytes < 0 || (is_empty && bytes != 0) || bytes > static_cast<std::int64_t>(Arena::kMost)) {
    return fault("the workspace's size is said to be " + std::to_string(bytes));
  }
  told_ = bytes;
  // Null pointers count as aligned.
  std::vector<std::byte> without = args_;
  bool is_aligned = true;
  for (const Operand& x : operands_) {
    is_aligned &= reinterpret_cast<std::uintptr_t>(address(x)) % 16 == 0;
    if (x.role != Role::as_it_is) put<void*>(without.data(), x.slot, nullptr);
  }
  if (is_aligned && (tell_(without.data(), &bytes) != TILE_OK || bytes != told_)) {
    fault("the workspace has " + std::to_string(told_) + " bytes, and before there are tensors " +
          std::to_string(bytes) + " " + tile_last_error());
  }
}

void Call::add_workspace_spoils() {
  const auto pointer = static_cast<std::size_t>(workspace_);
  if (workspace_ >= 0 && told_ > 0 && !is_empty) {
    put(args_.data(), pointer, arena() + workspace_at_);
    if (!is_workspace_optional)
      spoil("workspace=NULL", {"workspace"}, TILE_INVALID_ARGUMENT, false,
            [pointer](std::byte* args) { put<void*>(args, pointer, nullptr); });
    spoil("workspace unaligned", {"workspace"}, TILE_INVALID_ARGUMENT, false,
          [pointer](std::byte* args) { put(args, pointer, get<std::byte*>(args, pointer) + 8); });
  }
  if (workspace_bytes_ < 0) return;
  const auto at = static_cast<std::size_t>(workspace_bytes_);
  put(args_.data(), at, told_);
  const auto bytes = [&](std::int64_t given, tile_status status) {
    spoil("workspace_bytes=" + std::to_string(given), {"workspace_bytes"}, status, false,
          [at, given](std::byte* args) { put(args, at, given); });
  };
  for (const std::int64_t given : {std::int64_t{-1}, std::int64_t{-256}, INT64_MIN}) {
    bytes(given, TILE_INVALID_ARGUMENT);
  }
  if (told_ == 0) return;
  for (const std::int64_t given : {told_ - 1, told_ - 1, told_ / 2, std::int64_t{0}}) {
    bytes(given, kMayBeTaken);
  }
}

// ---- What it does ----

const std::string& Call::prepare(const std::function<void(const std::string&)>& begin) {
  line_ = operation + line_;
  place();
  begin(line_);
  choose_step();
  begin(line_);
  check_workspace_told();
  line_.append(" workspace=").append(std::to_string(told_));
  add_common_spoils();
  add_workspace_spoils();
  given_ = args_;
  if (draw.one_in(2)) {
    spoilt_ = &spoils_[static_cast<std::size_t>(draw.below(std::ssize(spoils_)))];
    line_.append(" SPOILT ").append(spoilt_->what);
    spoilt_->apply(given_.data());
  }
  begin(line_);
  const std::size_t end = workspace_at_ + static_cast<std::size_t>(told_) + 4096;
  image_.assign(end, std::byte{0xff});  // NaN in every type
  for (const Block& b : blocks_) {
    if (!b.integers.empty()) {
      std::memcpy(image_.data() + b.at, b.integers.data(), bytes_of(b));
    } else if (b.has_values) {
      const std::vector<std::byte> bytes = tile::from_double(b.values, b.type);
      std::ranges::copy(bytes, image_.data() + b.at);
    }
  }
  if (end > (is_on_host ? kHostBytes : Arena::kMost)) {
    throw std::runtime_error("the call is too large: " + line_);
  } else if (is_on_host) {
    std::ranges::copy(image_, arena());
  } else if (tile_copy_to_device(arena(), image_.data(), std::ssize(image_)) != TILE_OK) {
    fault(tile_last_error());
  }
  return line_;
}

void Call::call() { answer_ = {run_(given_.data()), tile_last_error(), tile_last_step()}; }

Names Call::judge() {
  check_answer();
  if (refer_ && has_reference && (!spoilt_ || spoilt_->in_reference)) check_reference();
  return faults_;
}

void Call::check_answer() {
  const auto& [status, error, step] = answer_;
  if ((status == TILE_OK) != error.empty()) fault("status and message differ: " + error);
  if (!is_on_host && (status == TILE_OK) == step.empty())
    fault("status and last step differ: " + step);
  if (tile_synchronize(nullptr) != TILE_OK) return fault(tile_last_error());

  bool is_written = !spoilt_;
  const auto at = static_cast<std::size_t>(workspace_bytes_);
  if (spoilt_ && spoilt_->status != kMayBeTaken) {
    check_refusal("", status, error);
  } else if (spoilt_ && status != TILE_OK) {
    const std::string wanted = "workspace_bytes: " + tile::grouped(told_) + " are needed, not " +
                               tile::grouped(get<std::int64_t>(given_.data(), at));
    if (status != TILE_UNSUPPORTED || error != wanted) {
      fault(std::string(tile_status_name(status)) + " '" + error + "', not '" + wanted + "'");
    }
  } else if (spoilt_) {
    is_written = true;
    std::int64_t needed = -1;
    std::vector<std::byte> args = given_;
    reinterpret_cast<Head*>(args.data())->step = step.c_str();
    bool is_enough =
        tell_(args.data(), &needed) == TILE_OK && needed <= get<std::int64_t>(args.data(), at);
    if (!is_enough) {  // unless that is what another step needs, to which it gives way
      put(args.data(), at, told_);
      is_enough = run_(args.data()) == TILE_OK && step != tile_last_step();
      if (tile_synchronize(nullptr) != TILE_OK) return fault(tile_last_error());
    }
    if (!is_enough) fault("taken by " + step + ", which needs " + std::to_string(needed));
  } else if (status != TILE_OK) {
    is_written = false;
    // With a workspace's size comes a step that runs.
    const bool is_steps_own = !step_.empty() && status == TILE_UNSUPPORTED &&
                              is_named(error, steps_refuse) &&
                              (workspace_bytes_ < 0 || error == not_told_);
    if (!is_steps_own) fault("refused: " + error);
  }
  check_memory(is_written && !is_empty && status == TILE_OK);
}

void Call::check_refusal(const char* who, tile_status status, const std::string& error) {
  if (status == spoilt_->status && is_named(error, spoilt_->names)) return;
  fault(std::string(who) + tile_status_name(status) + " '" + error + "', not " +
        tile_status_name(spoilt_->status) + " for " + joined(spoilt_->names));
}

void Call::check_memory(bool is_written) {
  std::vector<std::byte> after(image_.size());
  if (is_on_host) {
    std::copy_n(arena(), after.size(), after.begin());
  } else if (tile_copy_from_device(after.data(), arena(), std::ssize(after)) != TILE_OK) {
    return fault(tile_last_error());
  }
  if (is_written) {
    const std::vector<Expected>& wanted = expected();
    std::size_t next = 0;
    const auto keep = [&](std::size_t at, std::size_t bytes) {  // as it was
      std::copy_n(image_.begin() + static_cast<std::ptrdiff_t>(at), bytes,
                  after.begin() + static_cast<std::ptrdiff_t>(at));
    };
    for (const Operand& x : operands_) {
      if (x.role != Role::output) continue;
      const Block& b = blocks_[x.block];
      const auto size = static_cast<std::size_t>(element_of(b));
      const Expected& e = wanted.at(next++);
      std::size_t i = 0;
      bool is_right = true;
      for (const std::int64_t each : places(x)) {
        const std::size_t at = b.at + static_cast<std::size_t>(each) * size;
        const double got = tile::to_double(after.data() + at, b.type, 1)[0];
        const bool may_be_any = nan_may_spread && std::isnan(got);
        if (is_right && !may_be_any && !tile::matches(got, e.value.at(i), e.bound.at(i))) {
          is_right = false;
          fault(x.name + " " + std::to_string(i) + " is " + std::to_string(got) + ", not " +
                std::to_string(e.value[i]) + " +- " + std::to_string(e.bound[i]));
        }
        ++i;
        keep(at, size);
      }
      if (i != e.value.size()) fault(x.name + ": the reference has another size");
    }
    keep(workspace_at_, static_cast<std::size_t>(told_));
  }
  const auto [got, was] = std::ranges::mismatch(after, image_);
  if (got == after.end()) return;
  const auto at = static_cast<std::size_t>(got - after.begin());
  const Block* nearest = nullptr;
  for (const Block& b : blocks_) {
    if (b.at <= at) nearest = &b;
  }
  std::string where = "the arena's begin";
  for (const Operand& x : operands_) {
    if (&blocks_[x.block] == nearest) where = x.name;
  }
  fault("a byte that is no output's has changed, " +
        std::to_string(at - (nearest ? nearest->at : 0)) + " from the begin of " + where);
}

void Call::check_reference() {
  std::vector<std::byte> args = args_;
  reinterpret_cast<Head*>(args.data())->type = TILE_FP64;
  if (workspace_ >= 0) put<void*>(args.data(), static_cast<std::size_t>(workspace_), nullptr);
  if (workspace_bytes_ >= 0) {
    put(args.data(), static_cast<std::size_t>(workspace_bytes_), std::int64_t{0});
  }
  // NaN around all, and integers that are no lengths.
  std::vector<std::vector<double>> host;
  std::vector<std::vector<int>> integers;
  for (const Block& b : blocks_) {
    host.emplace_back(b.values.size() + 2 * kMargin, kNan);
    std::ranges::copy(b.values, host.back().begin() + kMargin);
    integers.emplace_back(b.integers.size() + 2 * kMargin, INT_MAX);
    std::ranges::copy(b.integers, integers.back().begin() + kMargin);
  }
  const std::vector<std::vector<double>> before = host;
  for (const Operand& x : operands_) {
    const Block& b = blocks_[x.block];
    if (!get<void*>(args_.data(), x.slot)) continue;
    if (!b.integers.empty()) {
      put(args.data(), x.slot, integers[x.block].data() + kMargin + x.first);
    } else if (x.role != Role::as_it_is || b.type == DType::fp64) {
      put(args.data(), x.slot, host[x.block].data() + kMargin + x.first);
    }
  }
  if (spoilt_) spoilt_->apply(args.data());
  const tile_status status = refer_(args.data());
  const std::string error = tile_last_error();
  if (spoilt_) {
    check_refusal("the reference: ", status, error);
  } else if (status != TILE_OK) {
    fault("the reference refuses: " + error);
  } else if (!is_empty) {
    std::size_t next = 0;
    for (const Operand& x : operands_) {
      if (x.role != Role::output) continue;
      const Expected& e = expected().at(next++);
      std::size_t i = 0;
      bool is_right = true;
      for (const std::int64_t each : places(x)) {
        double& got = host[x.block][static_cast<std::size_t>(kMargin + each)];
        if (is_right && !is_same(got, e.value.at(i))) {
          is_right = false;
          fault("the reference: " + x.name + " " + std::to_string(i) + " is " +
                std::to_string(got) + ", not " + std::to_string(e.value[i]));
        }
        ++i;
        got = before[x.block][static_cast<std::size_t>(kMargin + each)];
      }
    }
  }
  for (std::size_t i = 0; i < host.size(); ++i) {
    if (std::ranges::equal(host[i], before[i], is_same)) continue;
    fault("the reference writes what is no output's");
  }
}

}  // namespace fuzz
