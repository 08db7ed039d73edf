#include "harness/buffer.hpp"

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <stdexcept>

#include "harness/compare.hpp"
#include "harness/inputs.hpp"
#include "harness/test/contains.hpp"
#include "tile/host/cuda_check.hpp"

namespace tile {
namespace {

// Inverts the byte at `offset` bytes from the first element: what a kernel's stray write does.
void flip(const DeviceBuffer& buffer, std::int64_t offset) {
  std::byte* address = static_cast<std::byte*>(buffer.raw()) + offset;
  std::byte byte;
  REQUIRE(cudaMemcpy(&byte, address, 1, cudaMemcpyDeviceToHost) == cudaSuccess);
  byte = ~byte;
  REQUIRE(cudaMemcpy(address, &byte, 1, cudaMemcpyHostToDevice) == cudaSuccess);
}

template <class Make>
std::string error_of(Make make) {
  try {
    make();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

const std::vector<double> kThree = {1.5, -2, 0.25};

TEST_CASE("buffer: values come back, in every type and at every offset") {
  for (const DType dtype : kDTypes) {
    for (const std::int64_t offset : pointer_offsets()) {
      const auto buffer = DeviceBuffer::input("a", vector_layout(dtype, 3, offset), kThree);
      CHECK(buffer.download() == kThree);
      CHECK(buffer.download_bytes().size() == 3 * size_bytes(dtype));
      CHECK(buffer.check().ok());
      // cudaMalloc aligns to at least 256 bytes, and the canary is a multiple of that.
      const auto misalignment = reinterpret_cast<std::uintptr_t>(buffer.raw()) % 256;
      CHECK(misalignment == static_cast<std::size_t>(offset) * size_bytes(dtype));
    }
  }
}

TEST_CASE("buffer: special values go through unchanged") {
  for (const DType dtype : kDTypes) {
    const std::vector<double> values = adversarial(31, dtype);
    const auto buffer = DeviceBuffer::input("a", vector_layout(dtype, 31), values);
    const std::vector<double> back = buffer.download();
    REQUIRE(back.size() == values.size());
    for (std::size_t i = 0; i < values.size(); ++i) CHECK(matches(back[i], values[i], 0));
  }
}

TEST_CASE("buffer: one byte past the end is caught, and how far it is") {
  for (const DType dtype : kDTypes) {
    for (const std::int64_t offset : pointer_offsets()) {
      const auto size = static_cast<std::int64_t>(size_bytes(dtype));
      const auto buffer = DeviceBuffer::input("c", vector_layout(dtype, 3, offset), kThree);
      flip(buffer, 3 * size);
      CHECK(buffer.check_guards().message ==
            "c: 1 byte (1 element) written past its end, first at element 3 of 3 (index n+0): is "
            "the bounds guard missing?");
      CHECK_FALSE(buffer.check().ok());
      flip(buffer, 3 * size);
      CHECK(buffer.check_guards().ok());
      flip(buffer, 3 * size + 4095);  // the canary's last byte
      CHECK(contains(buffer.check().message, "past its end"));
    }
  }
}

TEST_CASE("buffer: one byte before the start is caught, down to the allocation's first") {
  for (const DType dtype : kDTypes) {
    for (const std::int64_t offset : pointer_offsets()) {
      const auto poison = Poison::unwritten_nan;
      const auto buffer = DeviceBuffer::output("c", vector_layout(dtype, 3, offset), poison);
      flip(buffer, -1);
      CHECK(buffer.check_guards().message ==
            "c: 1 byte (1 element) written before its start, first at element -1: an index below "
            "0?");
      CHECK_FALSE(buffer.check().ok());
      flip(buffer, -1);
      flip(buffer, -32 * 1024 - offset * static_cast<std::int64_t>(size_bytes(dtype)));
      CHECK(contains(buffer.check().message, "before its start"));
    }
  }
}

TEST_CASE("buffer: damage on both sides is counted in bytes and elements") {
  const auto buffer =
      DeviceBuffer::output("c", vector_layout(DType::fp32, 1000, 1), Poison::unwritten_finite);
  for (std::int64_t byte = 4008; byte < 4032; ++byte) flip(buffer, byte);
  flip(buffer, -8);
  flip(buffer, -1);
  const Status status = buffer.check_guards();
  CHECK(status.code == Code::device_error);
  CHECK(contains(status.message,
                 "c: 2 bytes (2 elements) written before its start, first at "
                 "element -2"));
  CHECK(contains(status.message,
                 "; 24 bytes (6 elements) written past its end, first at element "
                 "1002 of 1000 (index n+2)"));
}

TEST_CASE("buffer: a changed element is damage to an input, not to an output") {
  const Layout layout = vector_layout(DType::fp16, 3);
  const auto input = DeviceBuffer::input("a", layout, kThree);
  const auto output = DeviceBuffer::output("c", layout, Poison::unwritten_nan);
  const auto both = DeviceBuffer::in_out("x", layout, kThree);
  for (const DeviceBuffer* buffer : {&input, &output, &both}) {
    flip(*buffer, 3);
    CHECK(buffer->check_guards().ok());
    CHECK(contains(buffer->check_unchanged().message,
                   ": 1 byte (1 element) changed that must not be, first at element 1"));
  }
  CHECK(input.check().message == input.check_unchanged().message);
  CHECK(output.check().ok());
  CHECK(both.check().ok());
}

TEST_CASE("buffer: the first and the last byte of an input are watched") {
  const auto buffer = DeviceBuffer::input("a", vector_layout(DType::fp64, 3), kThree);
  for (const std::int64_t byte : {0, 23}) {
    flip(buffer, byte);
    CHECK(contains(buffer.check().message, "a: 1 byte (1 element) changed"));
    flip(buffer, byte);
    CHECK(buffer.check().ok());
  }
}

TEST_CASE("buffer: rows are ld apart, and padding does not come back") {
  const auto values = integers(3 * 5, DType::fp32, 1, -9, 9);
  const Layout layout = matrix_layout(DType::fp32, 3, 5, 8, 1);
  const auto buffer = DeviceBuffer::input("a", layout, values);
  CHECK(buffer.download() == values);
  float strided[2 * 8 + 5];
  REQUIRE(cudaMemcpy(strided, buffer.raw(), sizeof strided, cudaMemcpyDeviceToHost) == cudaSuccess);
  for (std::size_t row = 0; row < 3; ++row) {
    for (std::size_t col = 0; col < (row < 2 ? 8 : 5); ++col) {
      const double got = static_cast<double>(strided[row * 8 + col]);
      if (col < 5) {
        CHECK(got == values[row * 5 + col]);
      } else {
        CHECK(is_poison(got, Poison::outside));  // NaN: reading it shows
      }
    }
  }
}

TEST_CASE("buffer: written padding is reported by row and column") {
  const Layout layout = matrix_layout(DType::fp32, 3, 5, 8);
  const std::vector<double> zeros(15, 0.0);
  for (const auto& buffer :
       {DeviceBuffer::input("x", layout, zeros), DeviceBuffer::in_out("x", layout, zeros),
        DeviceBuffer::output("x", layout, Poison::unwritten_nan)}) {
    flip(buffer, 4 * (8 + 5));  // row 1, column 5: the first column that is padding
    CHECK(buffer.check().message ==
          "x: 1 byte (1 element) written into its padding, first at row 1, column 5 of rows of 5 "
          "columns: is the column checked, and does row r begin at r * ld?");
    CHECK(buffer.check_unchanged().ok());
    flip(buffer, 4 * (8 + 5));
    flip(buffer, 4 * (8 + 4));  // row 1, column 4 is an element
    CHECK(buffer.check_guards().ok());
    CHECK(contains(buffer.check_unchanged().message, "first at row 1, column 4"));
    flip(buffer, 4 * (8 + 4));
    flip(buffer, 4 * (2 * 8 + 5));  // the last row has no padding: the canary adjoins it
    CHECK(contains(buffer.check().message, "element 21 of 21 (index n+0)"));
  }
}

TEST_CASE("buffer: what lies around memory that is written is finite, around an input NaN") {
  const Layout layout = vector_layout(DType::fp32, 3);
  float after_input, after_in_out, after_output;
  const auto input = DeviceBuffer::input("a", layout, kThree);
  const auto in_out = DeviceBuffer::in_out("x", layout, kThree);
  const auto output = DeviceBuffer::output("y", layout, Poison::unwritten_nan);
  REQUIRE(cudaMemcpy(&after_output, static_cast<float*>(output.raw()) + 3, sizeof(float),
                     cudaMemcpyDeviceToHost) == cudaSuccess);
  REQUIRE(cudaMemcpy(&after_input, static_cast<float*>(input.raw()) + 3, sizeof(float),
                     cudaMemcpyDeviceToHost) == cudaSuccess);
  REQUIRE(cudaMemcpy(&after_in_out, static_cast<float*>(in_out.raw()) + 3, sizeof(float),
                     cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(is_poison(static_cast<double>(after_input), Poison::outside));
  CHECK(is_poison(static_cast<double>(after_in_out), Poison::unwritten_finite));
  CHECK(is_poison(static_cast<double>(after_output), Poison::unwritten_finite));
}

TEST_CASE("buffer: no elements still have guards and an address") {
  for (const Layout& layout :
       {vector_layout(DType::fp32, 0), matrix_layout(DType::fp32, 0, 5, 8),
        matrix_layout(DType::fp32, 3, 0, 8), matrix_layout(DType::fp32, 3, 0, 0)}) {
    const auto buffer = DeviceBuffer::output("c", layout, Poison::unwritten_nan);
    CHECK(buffer.raw() != nullptr);
    CHECK(buffer.download().empty());
    CHECK(buffer.check().ok());
    flip(buffer, 0);
    CHECK(contains(buffer.check().message, "first at element 0 of 0 (index n+0)"));
    CHECK(DeviceBuffer::input("a", layout, {}).check().ok());
  }
}

TEST_CASE("buffer: a test's own mistakes are named") {
  const Layout three = vector_layout(DType::fp16, 3);
  CHECK(error_of([&] { DeviceBuffer::input("a", three, std::vector{1.0}); }) ==
        "a.values: 1 value for 3 elements");
  CHECK(error_of([&] {
          DeviceBuffer::in_out("a", three, std::vector{1.0, 0.1, 2.0});
        }) == "a.values: 0.1 is not a value of fp16: round it first");
  const auto output_error = [](const Layout& layout) {
    return error_of([&] { DeviceBuffer::output("c", layout, Poison::unwritten_nan); });
  };
  CHECK(output_error(vector_layout(DType::fp32, -1)) == "c.cols: -1 is negative");
  CHECK(output_error(vector_layout(DType::fp32, 1, -1)) == "c.offset: -1 is negative");
  CHECK(output_error(matrix_layout(DType::fp32, -2, 1, 1)) == "c.rows: -2 is negative");
  CHECK(output_error(matrix_layout(DType::fp32, 2, 5, 4)) == "c.ld: 4 is below cols");
}

TEST_CASE("buffer: what was written is gone after restore()") {
  const Layout layout = matrix_layout(DType::bf16, 2, 3, 4, 1);
  const std::vector<double> six = {1, 2, 3, 4, 5, 6};
  auto output = DeviceBuffer::output("c", layout, Poison::unwritten_nan);
  auto in_out = DeviceBuffer::in_out("x", layout, six);
  for (DeviceBuffer* buffer : {&output, &in_out}) {
    for (const std::int64_t byte : {-1, 0, 7, 13, 14}) flip(*buffer, byte);  // all regions
    CHECK_FALSE(buffer->check_guards().ok());
    CHECK_FALSE(buffer->check_unchanged().ok());
    buffer->restore();
    CHECK(buffer->check_guards().ok());
    CHECK(buffer->check_unchanged().ok());
  }
  for (const double value : output.download()) CHECK(is_poison(value, Poison::unwritten_nan));
  CHECK(in_out.download() == six);
}

TEST_CASE("buffer: it can be moved") {
  auto first = DeviceBuffer::input("a", vector_layout(DType::fp32, 3), kThree);
  void* const address = first.raw();
  const DeviceBuffer second = std::move(first);
  CHECK(second.raw() == address);
  CHECK(second.download() == kThree);
}

}  // namespace
}  // namespace tile
