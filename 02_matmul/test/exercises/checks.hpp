// What the checks of the exercises share. Not part of a task.
#pragma once

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "exercises/exercises.hpp"
#include "harness/answer.hpp"
#include "harness/buffer.hpp"
#include "harness/inputs.hpp"
#include "harness/mistakes.hpp"
#include "reference.hpp"
#include "tile/host/device.hpp"

namespace matmul {

/// A product of matrices with padding between the rows, and what A and B hold.
struct Task {
  Problem p;
  std::vector<double> a, b;  // as stored, without padding

  Task(std::int64_t m, std::int64_t n, std::int64_t k, bool transpose_b = false,
       tile::DType type = tile::DType::fp32)
      : p{.type = type, .m = m, .n = n, .k = k, .transpose_b = transpose_b},
        a(tile::normal(m * k, type, 1)),
        b(tile::normal(k * n, type, 2)) {
    p.lda += 3;
    p.ldb += 5;
    p.ldc += 1;
  }
  /// In fp16, with rows of A and B that begin at multiples of 16 bytes, or not.
  static Task fp16(std::int64_t m, std::int64_t n, std::int64_t k, bool aligned) {
    Task task(m, n, k, false, tile::DType::fp16);
    if (!aligned) return task;
    task.p.lda = (task.p.lda + 7) / 8 * 8;
    task.p.ldb = (task.p.ldb + 7) / 8 * 8;
    return task;
  }

  /// In fp16, with such rows, and with integers of which every sum is exact in fp16 as well: at
  /// most 4 k, and fp16 has all integers up to 2048.
  static Task integers(std::int64_t m, std::int64_t n, std::int64_t k) {
    Task task = fp16(m, n, k, true);
    task.a = tile::integers(m * k, tile::DType::fp16, 1, -2, 2);
    task.b = tile::integers(k * n, tile::DType::fp16, 2, -2, 2);
    return task;
  }

  std::string text() const {
    return "m = " + std::to_string(p.m) + ", n = " + std::to_string(p.n) +
           ", k = " + std::to_string(p.k);
  }
  double a_at(std::int64_t row, std::int64_t col) const {
    return a[static_cast<std::size_t>(row * p.k + col)];
  }
  double b_at(std::int64_t row, std::int64_t col) const {  // if B is not transposed
    return b[static_cast<std::size_t>(row * p.n + col)];
  }
  tile::Expected right() const { return reference(p, a, b, {}, true); }
  /// The same, to the last bit.
  tile::Expected exact() const {
    tile::Expected expected = right();
    std::ranges::fill(expected.bound, 0.0);
    return expected;
  }

  /// What comes out if the element (row, col) is what `element` gives; as far from it as a right
  /// result may be from the right one, or a little more where the sum is longer.
  template <class Element>
  tile::Expected if_it_were(Element element) const {
    tile::Expected expected = right();
    for (std::int64_t i = 0; i < p.m * p.n; ++i) {
      expected.value[static_cast<std::size_t>(i)] = element(i / p.n, i % p.n);
      expected.bound[static_cast<std::size_t>(i)] *= 4;
    }
    return expected;
  }
  /// The same for the sum over 0 <= l < k of what `term` gives.
  template <class Term>
  tile::Expected if_terms_were(Term term) const {
    return if_it_were([&](std::int64_t row, std::int64_t col) {
      double sum = 0;
      for (std::int64_t l = 0; l < p.k; ++l) sum += term(row, col, l);
      return sum;
    });
  }
};

/// Ends the test if the device has no tensor cores that take fp16, or no cp.async.
inline void require_tensor_cores() {
  const tile::Status able = tile::check_requirements(k16Bits, kMmaAndCopies, tile::DType::fp16);
  REQUIRE_MESSAGE(able.ok(), able.message, "; the CPU device can: --device cpu");
}

/// Ends the test if the device does not have Hopper's instructions.
inline void require_hopper() {
  const tile::Status able = tile::check_requirements(k16Bits, kHopper, tile::DType::fp16);
  REQUIRE_MESSAGE(able.ok(), able.message, "; the CPU device can: --device cpu");
}

using Launch = std::function<tile::Status(const Problem&, const Buffers&)>;

/// What an answer makes of C. `fault` says what the reason may be if it fails while it runs.
inline std::vector<double> run(const Problem& p, const Buffers& inputs, tile::Poison poison,
                               const Launch& launch, const std::string& fault = "",
                               std::vector<const tile::DeviceBuffer*> buffers = {}) {
  const tile::DeviceBuffer c =
      tile::DeviceBuffer::output("c", tile::matrix_layout(p.type, p.m, p.n, p.ldc), poison);
  buffers.push_back(&c);
  tile::run_answer([&] { return launch(p, {inputs.a, inputs.b, c.raw()}); }, buffers, fault);
  return c.download();
}

/// The same with A and B between guard bands of NaN.
inline std::vector<double> run(const Task& task, const Launch& launch,
                               tile::Poison poison = tile::Poison::unwritten_nan,
                               const std::string& fault = "") {
  using tile::DeviceBuffer;
  const Problem& p = task.p;
  auto input = [&p](const char* name, std::int64_t rows, std::int64_t cols, std::int64_t ld,
                    const std::vector<double>& values) {
    return DeviceBuffer::input(name, tile::matrix_layout(p.type, rows, cols, ld), values);
  };
  const DeviceBuffer a = input("a", p.m, p.k, p.lda, task.a);
  const DeviceBuffer b =
      input("b", p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.ldb, task.b);
  return run(p, {a.raw(), b.raw(), nullptr}, poison, launch, fault, {&a, &b});
}

/// Floats that end where readable memory ends: who reads the one after the last ends the kernel.
/// The guard bands show a read outside only if the result depends on it. For a device that reads
/// host memory.
class AtTheEdge {
 public:
  explicit AtTheEdge(std::span<const double> values) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t readable = (values.size() * sizeof(float) + page - 1) / page * page;
    size_ = readable + page;
    memory_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    char* edge = static_cast<char*>(memory_) + readable;
    if (mprotect(edge, page, PROT_NONE) != 0) throw std::bad_alloc();
    data_ = reinterpret_cast<float*>(edge) - values.size();
    std::ranges::transform(values, data_, [](double x) { return static_cast<float>(x); });
  }
  ~AtTheEdge() { munmap(memory_, size_); }
  AtTheEdge(const AtTheEdge&) = delete;
  AtTheEdge& operator=(const AtTheEdge&) = delete;

  const float* data() const { return data_; }

 private:
  void* memory_;
  std::size_t size_;
  float* data_;
};

}  // namespace matmul
