#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "harness/poison.hpp"
#include "tile/host/dtype.hpp"
#include "tile/host/status.hpp"

namespace tile {

/// How a tensor lies in memory: rows x cols elements, ld of them from one row to the next. The
/// ld - cols elements between two rows are padding.
struct Layout {
  DType dtype = DType::fp32;
  std::int64_t rows = 1;
  std::int64_t cols = 0;
  std::int64_t ld = cols;
  std::int64_t offset = 0;  ///< elements from a 256-byte boundary to the first: 1 or 3 misaligns

  std::int64_t count() const { return rows * cols; }
};

Layout vector_layout(DType dtype, std::int64_t count, std::int64_t offset = 0);
Layout matrix_layout(DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t ld,
                     std::int64_t offset = 0);

/// Memory of the device. What is smaller than a page of a GPU, 2 MiB, comes from the card's pool,
/// as does more where that is asked for. Processes that ask the driver for memory wait for one
/// another, 7 ms for five buffers if 16 do, and those that have a pool wait for less than 2 ms.
/// Other memory has pages of its own, so that a kernel that goes far beyond it meets a bad address.
/// Throws std::runtime_error if there is none.
class DeviceMemory {
 public:
  static constexpr std::size_t kPage = std::size_t{2} << 20;

  DeviceMemory() = default;
  DeviceMemory(const std::string& name, std::size_t bytes)
      : DeviceMemory(name, bytes, bytes < kPage) {}
  DeviceMemory(const std::string& name, std::size_t bytes, bool from_pool);

  std::byte* get() const { return memory_.get(); }

 private:
  struct Free {
    bool from_pool;
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
};

/// A tensor in device memory that notices damage:
///
///       canary | row 0 | padding | row 1 | padding | ... | last row | canary
///
/// The canaries, 32 KiB each, adjoin the first and the last element to the byte. Everything that no
/// kernel may touch (canaries and padding) is poisoned, and compared byte for byte by check():
///
///     DeviceBuffer x = DeviceBuffer::input("x", vector_layout(dtype, n), values);
///     DeviceBuffer y = DeviceBuffer::output("y", vector_layout(dtype, n), Poison::unwritten_nan);
///     const Status launched = step.launch(problem, {x.raw(), y.raw()}, nullptr);
///     const Status done = synchronize_status(nullptr);
///     const Comparison c = compare("y", y.download(), reference(values));
///     const Status damage = y.check();  // and x.check()
///
/// For simple tests the constructors and everything that talks to the device throw: std::
/// runtime_error with the runtime's message when the device fails, std::invalid_argument when the
/// test itself is wrong. Damage is what a test looks for, so the checks return it as a Status.
class DeviceBuffer {
 public:
  /// Memory that kernels only read. Canaries and padding are NaN (Poison::outside), so that a
  /// kernel that reads too far shows it. `values` are row-major, without padding, and must be
  /// values of the type already (see rounded()): the reference has to see what the kernel sees.
  static DeviceBuffer input(std::string name, const Layout& layout, std::span<const double> values);

  /// Memory that kernels write. The elements hold `poison`: run the kernel once with each of
  /// kOutputPoisons, on a new buffer each. Canaries and padding as in in_out().
  static DeviceBuffer output(std::string name, const Layout& layout, Poison poison);

  /// Memory that kernels read and write. Canaries and padding hold Poison::unwritten_finite: were
  /// they NaN, arithmetic in place could leave them as they are.
  static DeviceBuffer in_out(std::string name, const Layout& layout,
                             std::span<const double> values);

  /// Device pointer to the first element. Never null, not even for no elements.
  void* raw() const;
  const Layout& layout() const { return layout_; }

  /// Makes all of the memory what it was at first. An output is poison again: what one kernel wrote
  /// cannot pass for the next one's result.
  void restore();

  /// The elements, row-major, without padding. Does not wait for streams other than the default.
  std::vector<double> download() const;
  /// The same as bytes, for comparing runs bit for bit.
  std::vector<std::byte> download_bytes() const;

  /// Fails if a byte before the start, past the end or in the padding has changed.
  Status check_guards() const;
  /// Fails if an element has changed since the buffer was made: for an input after a kernel, for
  /// an output after a call that was refused.
  Status check_unchanged() const;
  /// The checks for every buffer at the end of a test: check_guards(), and for an input also
  /// check_unchanged().
  Status check() const;

 private:
  enum class Content { input, values, poison };  // poison must not be read

  DeviceBuffer(std::string name, const Layout& layout, Poison surround,
               std::span<const std::byte> elements, Content content);

  std::int64_t start() const;   // bytes before the first element
  std::int64_t extent() const;  // elements from the first to the last, with the padding between
  std::vector<std::byte> fetch() const;

  std::string name_;
  Layout layout_;
  Content content_;
  std::vector<std::byte> image_;              // all of the memory as it was uploaded
  std::shared_ptr<const std::string> shown_;  // for small_inputs()
  DeviceMemory memory_;
};

/// "x = 1 2 3" for each buffer that was made with at most eight values and is still there: the
/// inputs that a failed check can show.
std::vector<std::string> small_inputs();

/// Device memory for `count` elements with the same canaries, whose contents are never on the host
/// as a whole: for tensors of gigabytes. All bits are one at first, a NaN in every type. Throws as
/// DeviceBuffer does.
class GuardedMemory {
 public:
  /// `layout` has no padding.
  GuardedMemory(std::string name, const Layout& layout);

  void* raw() const;
  const Layout& layout() const { return layout_; }
  const std::string& name() const { return name_; }

  /// Uploads elements, row-major, values of the type.
  void upload(std::span<const double> values);
  /// Copies the elements of another one, with as many.
  void copy(const GuardedMemory& other);
  /// Makes all bits of the elements one.
  void poison();
  /// Says that kernels will write all elements before they read one.
  void mark_written() { tell_device(true); }
  /// Rows by their numbers.
  std::vector<double> rows(std::span<const std::int64_t> numbers) const;
  /// Fails if a byte before the start or past the end has changed.
  Status check_guards() const;
  /// Makes the canaries what they were.
  void restore_guards();

 private:
  std::size_t bytes() const;
  std::byte* begin() const;  // of the canary before the elements
  void tell_device(bool written) const;

  std::string name_;
  Layout layout_;
  DeviceMemory memory_;
};

}  // namespace tile
