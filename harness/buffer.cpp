#include "harness/buffer.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "harness/compare.hpp"
#include "harness/convert.hpp"
#include "harness/parallel.hpp"
#include "harness/sample.hpp"
#include "tile/host/cuda_check.hpp"
#include "tile/host/device.hpp"
#include "tile/host/stream_memory.hpp"
#include "tile/host/text.hpp"

namespace tile {
namespace {

// More than one block of a kernel without a guard writes past the end: beyond the canaries it would
// crash the test instead of failing it.
constexpr std::int64_t kCanaryBytes = 32 * 1024;

void throw_if_failed(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message);
}

void require(bool condition, std::string_view argument, std::string_view why) {
  if (!condition) throw std::invalid_argument(invalid_argument(argument, why).message);
}

void require_valid(const std::string& name, const Layout& layout) {
  require(layout.rows >= 0, name + ".rows", std::to_string(layout.rows) + " is negative");
  require(layout.cols >= 0, name + ".cols", std::to_string(layout.cols) + " is negative");
  require(layout.ld >= layout.cols, name + ".ld", std::to_string(layout.ld) + " is below cols");
  require(layout.offset >= 0, name + ".offset", std::to_string(layout.offset) + " is negative");
}

// `values` as elements, if there is one for each element and none of them needs rounding.
std::vector<std::byte> packed(const std::string& name, const Layout& layout,
                              std::span<const double> values) {
  require_valid(name, layout);
  require(std::ssize(values) == layout.count(), name + ".values",
          counted(std::ssize(values), "value") + " for " + counted(layout.count(), "element"));
  const std::vector<std::byte> elements = from_double(values, layout.dtype);
  constexpr std::size_t kSeenAtOnce = 4096;
  in_parts(values.size(), kElementsForAThread, [&](std::size_t begin, std::size_t end) {
    std::vector<double> seen;  // some of them, which stay in the cache
    for (std::size_t i = begin; i < end; ++i) {
      const std::size_t at = (i - begin) % kSeenAtOnce;
      if (at == 0) {
        seen = to_double(&elements[i * size_bytes(layout.dtype)], layout.dtype,
                         static_cast<std::int64_t>(std::min(kSeenAtOnce, end - i)));
      }
      if (matches(seen[at], values[i], 0)) continue;  // no message is made for what is right
      require(false, name + ".values",
              number(values[i]) + " is not a value of " + std::string(tile::name(layout.dtype)) +
                  ": round it first");
    }
  });
  return elements;
}

// Repeats the pattern: copies of whole stretches, of what is there already, are fast.
void fill(std::span<std::byte> bytes, std::span<const std::byte> pattern) {
  if (bytes.empty()) return;
  std::copy(pattern.begin(), pattern.end(), bytes.begin());
  for (std::size_t done = pattern.size(); done < bytes.size(); done *= 2) {
    std::copy_n(bytes.begin(), std::min(done, bytes.size() - done),
                bytes.begin() + static_cast<std::int64_t>(done));
  }
}

// Changed bytes of one region, counted in ascending order of position. A position is an element's
// distance from the first element: negative before the start.
struct Damage {
  std::int64_t bytes = 0;
  std::int64_t elements = 0;
  std::int64_t first = 0;  // position of the first changed element
  std::int64_t last = 0;

  void add(std::int64_t position) {
    if (bytes == 0) first = position;
    if (bytes == 0 || position != last) ++elements;
    last = position;
    ++bytes;
  }
  std::string amount() const {
    return counted(bytes, "byte") + " (" + counted(elements, "element") + ")";
  }
};

struct Damages {
  Damage before, element, padding, past;
};

// Compares the memory from byte `at` on with its image, either the elements or all beside them, and
// sorts what changed by region: in stretches that lie in one.
void find_damage(std::span<const std::byte> now, std::span<const std::byte> image,
                 const Layout& layout, std::int64_t start, std::int64_t extent, std::int64_t at,
                 bool of_elements, Damages* damages) {
  const auto size = static_cast<std::int64_t>(size_bytes(layout.dtype));
  // `start` is a multiple of the size, so the division rounds down to whole elements.
  const auto position_of = [&](std::int64_t i) { return (at + i) / size - start / size; };
  for (std::int64_t i = 0, end = 0; i < std::ssize(image); i = end) {
    const std::int64_t position = position_of(i);
    Damage* damage = &damages->past;
    std::int64_t until = position_of(std::ssize(image)) + 1;
    if (position < 0) {
      damage = &damages->before;
      until = 0;
    } else if (position < extent) {  // so a row has a column at least
      const std::int64_t row = position - position % layout.ld;
      const bool is_element = position - row < layout.cols;
      damage = is_element ? &damages->element : &damages->padding;
      until = layout.cols == layout.ld ? extent : row + (is_element ? layout.cols : layout.ld);
      until = std::min(until, extent);
    }
    end = std::min(std::ssize(image), (until + start / size) * size - at);
    const auto bytes = static_cast<std::size_t>(end - i);
    if ((damage == &damages->element) != of_elements ||
        std::memcmp(now.data() + i, image.data() + i, bytes) == 0) {
      continue;
    }
    for (; i < end; ++i) {
      const auto byte = static_cast<std::size_t>(i);
      if (now[byte] != image[byte]) damage->add(position_of(i));
    }
  }
}

// "element 17", or "row 3, column 17" of a matrix.
std::string place(std::int64_t position, const Layout& layout) {
  if (layout.rows == 1) return "element " + std::to_string(position);
  return "row " + std::to_string(position / layout.ld) + ", column " +
         std::to_string(position % layout.ld);
}

// What was written where nothing may be.
Status guard_status(const Damages& found, const std::string& name, const Layout& layout,
                    std::int64_t extent) {
  std::string why;
  // `text` describes damage that exists: without elements there are no rows to locate it in.
  const auto report = [&](const Damage& damage, auto text) {
    if (damage.bytes > 0) why += (why.empty() ? "" : "; ") + damage.amount() + text(damage.first);
  };
  report(found.before, [](std::int64_t first) {
    return " written before its start, first at element " + std::to_string(first) +
           ": an index below 0?";
  });
  report(found.padding, [&](std::int64_t first) {
    return " written into its padding, first at " + place(first, layout) + " of rows of " +
           counted(layout.cols, "column") +
           ": is the column checked, and does row r begin at r * ld?";
  });
  report(found.past, [&](std::int64_t first) {
    return " written past its end, first at element " + std::to_string(first) + " of " +
           std::to_string(extent) + " (index n+" + std::to_string(first - extent) +
           "): is the bounds guard missing?";
  });
  return why.empty() ? Status{} : device_error(name, why);
}

// The text for small_inputs(), as long as its buffer lives.
std::vector<std::weak_ptr<const std::string>>& shown_inputs() {
  static std::vector<std::weak_ptr<const std::string>> inputs;
  return inputs;
}

std::shared_ptr<const std::string> show(const std::string& name, std::span<const double> values) {
  constexpr std::size_t kFew = 8;
  std::erase_if(shown_inputs(), [](const auto& input) { return input.expired(); });
  if (values.empty() || values.size() > kFew) return nullptr;
  std::string text = name + " =";
  for (const double value : values) text += " " + brief(value);
  auto shown = std::make_shared<const std::string>(std::move(text));
  shown_inputs().push_back(shown);
  return shown;
}

}  // namespace

DeviceMemory::DeviceMemory(const std::string& name, std::size_t bytes, bool from_pool) {
  void* memory = nullptr;
  if (from_pool) {
    cudaMemPool_t pool = nullptr;
    throw_if_failed(pool_of_card(&pool));
    throw_if_failed(cuda_status(cudaMallocFromPoolAsync(&memory, bytes, pool, nullptr),
                                name + ": cudaMallocFromPoolAsync"));
  } else {
    throw_if_failed(cuda_status(cudaMalloc(&memory, bytes), name + ": cudaMalloc"));
  }
  memory_ = {static_cast<std::byte*>(memory), Free{from_pool}};
}

void DeviceMemory::Free::operator()(std::byte* memory) const {
  // A destructor cannot report an error.
  static_cast<void>(from_pool ? cudaFreeAsync(memory, nullptr) : cudaFree(memory));
}

std::vector<std::string> small_inputs() {
  std::vector<std::string> texts;
  for (const auto& input : shown_inputs()) {
    if (const auto text = input.lock()) texts.push_back(*text);
  }
  return texts;
}

Layout vector_layout(DType dtype, std::int64_t count, std::int64_t offset) {
  return {dtype, 1, count, count, offset};
}

Layout matrix_layout(DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t ld,
                     std::int64_t offset) {
  return {dtype, rows, cols, ld, offset};
}

DeviceBuffer DeviceBuffer::input(std::string name, const Layout& layout,
                                 std::span<const double> values) {
  const std::vector<std::byte> elements = packed(name, layout, values);
  auto shown = show(name, values);
  DeviceBuffer buffer(std::move(name), layout, Poison::outside, elements, Content::input);
  buffer.shown_ = std::move(shown);
  return buffer;
}

DeviceBuffer DeviceBuffer::output(std::string name, const Layout& layout, Poison poison) {
  require_valid(name, layout);
  const std::vector<std::byte> one = poison_bytes(poison, layout.dtype);
  std::vector<std::byte> elements(static_cast<std::size_t>(layout.count()) * one.size());
  fill(elements, one);
  return {std::move(name), layout, Poison::unwritten_finite, elements, Content::poison};
}

DeviceBuffer DeviceBuffer::in_out(std::string name, const Layout& layout,
                                  std::span<const double> values) {
  const std::vector<std::byte> elements = packed(name, layout, values);
  auto shown = show(name, values);
  DeviceBuffer buffer(std::move(name), layout, Poison::unwritten_finite, elements, Content::values);
  buffer.shown_ = std::move(shown);
  return buffer;
}

// `elements` are packed.
DeviceBuffer::DeviceBuffer(std::string name, const Layout& layout, Poison surround,
                           std::span<const std::byte> elements, Content content)
    : name_(std::move(name)), layout_(layout), content_(content) {
  const std::vector<std::byte> pattern = poison_bytes(surround, layout.dtype);
  const std::int64_t size = std::ssize(pattern);
  image_.resize(static_cast<std::size_t>(start() + extent() * size + kCanaryBytes));
  fill(image_, pattern);
  for (std::int64_t row = 0; row < layout.rows && !elements.empty(); ++row) {
    std::copy_n(elements.begin() + row * layout.cols * size, layout.cols * size,
                image_.begin() + start() + row * layout.ld * size);
  }

  memory_ = DeviceMemory(name_, image_.size());
  restore();
}

void DeviceBuffer::restore() {
  throw_if_failed(
      cuda_status(cudaMemcpy(memory_.get(), image_.data(), image_.size(), cudaMemcpyHostToDevice),
                  name_ + ": cudaMemcpy to the device"));
  name_array({.name = name_.c_str(),
              .data = raw(),
              .element_bytes = size_bytes(layout_.dtype),
              .rows = layout_.rows,
              .cols = layout_.cols,
              .ld = layout_.ld,
              .written = content_ != Content::poison});
}

void* DeviceBuffer::raw() const { return memory_.get() + start(); }

std::int64_t DeviceBuffer::start() const {
  return kCanaryBytes + layout_.offset * static_cast<std::int64_t>(size_bytes(layout_.dtype));
}

std::int64_t DeviceBuffer::extent() const {
  return layout_.count() == 0 ? 0 : (layout_.rows - 1) * layout_.ld + layout_.cols;
}

std::vector<std::byte> DeviceBuffer::fetch() const {
  std::vector<std::byte> now(image_.size());
  throw_if_failed(
      cuda_status(cudaMemcpy(now.data(), memory_.get(), now.size(), cudaMemcpyDeviceToHost),
                  name_ + ": cudaMemcpy from the device"));
  return now;
}

std::vector<double> DeviceBuffer::download() const {
  return to_double(download_bytes().data(), layout_.dtype, layout_.count());
}

std::vector<std::byte> DeviceBuffer::download_bytes() const {
  const auto size = static_cast<std::int64_t>(size_bytes(layout_.dtype));
  std::vector<std::byte> elements(static_cast<std::size_t>(layout_.count() * size));
  if (extent() == layout_.count()) {  // no padding
    throw_if_failed(
        cuda_status(cudaMemcpy(elements.data(), raw(), elements.size(), cudaMemcpyDeviceToHost),
                    name_ + ": cudaMemcpy from the device"));
    return elements;
  }
  const std::vector<std::byte> now = fetch();
  for (std::int64_t row = 0; row < layout_.rows; ++row) {
    std::copy_n(now.begin() + start() + row * layout_.ld * size, layout_.cols * size,
                elements.begin() + row * layout_.cols * size);
  }
  return elements;
}

Status DeviceBuffer::check_guards() const {
  Damages found;
  find_damage(fetch(), image_, layout_, start(), extent(), 0, false, &found);
  return guard_status(found, name_, layout_, extent());
}

Status DeviceBuffer::check_unchanged() const {
  Damages damages;
  find_damage(fetch(), image_, layout_, start(), extent(), 0, true, &damages);
  const Damage& found = damages.element;
  if (found.bytes == 0) return {};
  return device_error(
      name_, found.amount() + " changed that must not be, first at " + place(found.first, layout_));
}

Status DeviceBuffer::check() const {
  if (Status guards = check_guards(); !guards.ok() || content_ != Content::input) return guards;
  return check_unchanged();
}

// ---- Memory that is never on the host as a whole ----

namespace {
constexpr int kCanaryByte = 0xa5, kUnwrittenByte = 0xff;

std::size_t offset_bytes(const Layout& layout) {
  return static_cast<std::size_t>(layout.offset) * size_bytes(layout.dtype);
}
}  // namespace

GuardedMemory::GuardedMemory(std::string name, const Layout& layout)
    : name_(std::move(name)), layout_(layout) {
  require_valid(name_, layout_);
  require(layout_.ld == layout_.cols || layout_.rows <= 1, name_ + ".ld", "padding is not for it");
  memory_ = DeviceMemory(name_, offset_bytes(layout_) + bytes() + 2 * kCanaryBytes);
  restore_guards();
  poison();
}

void GuardedMemory::restore_guards() {
  for (std::byte* guard : {begin(), begin() + kCanaryBytes + bytes()}) {
    throw_if_failed(
        cuda_status(cudaMemset(guard, kCanaryByte, kCanaryBytes), name_ + ": cudaMemset"));
  }
}

std::size_t GuardedMemory::bytes() const {
  return static_cast<std::size_t>(layout_.count()) * size_bytes(layout_.dtype);
}

std::byte* GuardedMemory::begin() const { return memory_.get() + offset_bytes(layout_); }

void* GuardedMemory::raw() const { return begin() + kCanaryBytes; }

void GuardedMemory::tell_device(bool written) const {
  name_array({.name = name_.c_str(),
              .data = raw(),
              .element_bytes = size_bytes(layout_.dtype),
              .rows = layout_.rows,
              .cols = layout_.cols,
              .ld = layout_.cols,
              .written = written});
}

void GuardedMemory::upload(std::span<const double> values) {
  const std::vector<std::byte> elements = packed(name_, layout_, values);
  throw_if_failed(
      cuda_status(cudaMemcpy(raw(), elements.data(), elements.size(), cudaMemcpyHostToDevice),
                  name_ + ": cudaMemcpy to the device"));
  tell_device(true);
}

void GuardedMemory::copy(const GuardedMemory& other) {
  require(other.bytes() == bytes(), name_, "is not as large as " + other.name_);
  throw_if_failed(cuda_status(cudaMemcpy(raw(), other.raw(), bytes(), cudaMemcpyDeviceToDevice),
                              name_ + ": cudaMemcpy on the device"));
  tell_device(true);
}

void GuardedMemory::poison() {
  throw_if_failed(cuda_status(cudaMemset(raw(), kUnwrittenByte, bytes()), name_ + ": cudaMemset"));
  tell_device(false);
}

std::vector<double> GuardedMemory::rows(std::span<const std::int64_t> numbers) const {
  std::int64_t next = 0;
  if (std::ssize(numbers) == layout_.rows &&
      std::ranges::all_of(numbers, [&next](std::int64_t row) { return row == next++; })) {
    // All of them, in one copy.
    std::vector<std::byte> elements(bytes());
    throw_if_failed(
        cuda_status(cudaMemcpy(elements.data(), raw(), elements.size(), cudaMemcpyDeviceToHost),
                    name_ + ": cudaMemcpy from the device"));
    return to_double(elements.data(), layout_.dtype, layout_.count());
  }
  std::vector<double> values;
  throw_if_failed(download_rows(raw(), layout_.dtype, layout_.cols, numbers, &values));
  return values;
}

Status GuardedMemory::check_guards() const {
  Damages found;
  const std::vector<std::byte> image(kCanaryBytes, std::byte{kCanaryByte});
  std::vector<std::byte> now(kCanaryBytes);
  const std::int64_t past = kCanaryBytes + static_cast<std::int64_t>(bytes());
  for (const std::int64_t at : {std::int64_t{0}, past}) {
    TILE_RETURN_IF_CUDA_ERROR(
        cudaMemcpy(now.data(), begin() + at, kCanaryBytes, cudaMemcpyDeviceToHost));
    find_damage(now, image, layout_, kCanaryBytes, layout_.count(), at, false, &found);
  }
  return guard_status(found, name_, layout_, layout_.count());
}

}  // namespace tile
