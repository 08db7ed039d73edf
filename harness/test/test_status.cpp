#include "tile/host/status.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tile/host/cuda_check.hpp"
#include "tile/host/dtype.hpp"
#include "tile/host/heads_together.hpp"
#include "tile/host/text.hpp"

namespace tile {
namespace {

TEST_CASE("status: a new one is a success without a message") {
  CHECK(Status{}.ok());
  CHECK(Status{}.message.empty());
}

TEST_CASE("status: each maker sets its code and names its subject") {
  const Status bad = invalid_argument("n", "-1 is negative");
  CHECK_FALSE(bad.ok());
  CHECK(bad.code == Code::invalid_argument);
  CHECK(bad.message == "n: -1 is negative");
  CHECK(unsupported("head_dim", "96").code == Code::unsupported);
  CHECK(out_of_memory("workspace", "64 GiB").code == Code::out_of_memory);
  CHECK(device_error("c", "damaged").code == Code::device_error);
  CHECK_FALSE(device_error("c", "damaged").ok());
}

TEST_CASE("status: every code has a name of its own") {
  CHECK(to_string(Code::ok) == "ok");
  CHECK(to_string(Code::invalid_argument) == "invalid argument");
  CHECK(to_string(Code::unsupported) == "unsupported");
  CHECK(to_string(Code::out_of_memory) == "out of memory");
  CHECK(to_string(Code::device_error) == "device error");
}

TEST_CASE("dtype: names and sizes, and parsing gives the type back") {
  CHECK(size_bytes(DType::fp32) == 4);
  CHECK(size_bytes(DType::fp16) == 2);
  CHECK(size_bytes(DType::bf16) == 2);
  CHECK(size_bytes(DType::fp64) == 8);
  CHECK(size_bytes(DType::tf32) == 4);
  for (const DType dtype : kDTypes) CHECK(parse_dtype(name(dtype)) == dtype);
  CHECK(parse_dtype("bf16") == DType::bf16);
  CHECK_FALSE(parse_dtype("fp8").has_value());
  CHECK_FALSE(parse_dtype("").has_value());
}

TEST_CASE("text: numbers keep every bit, counts are grouped and declined") {
  CHECK(number(0.1) == "0.1");
  CHECK(number(0.1) != number(0x1.999999999999bp-4));
  CHECK(number(-2.2250738585072014e-308) == "-2.2250738585072014e-308");
  CHECK(counted(1, "byte") == "1 byte");
  CHECK(counted(0, "byte") == "0 bytes");
  CHECK(counted(-1000, "byte") == "-1,000 bytes");
  CHECK(grouped(999) == "999");
  CHECK(grouped(-123) == "-123");
  CHECK(grouped(1234567) == "1,234,567");
  auto same = [](const char* text) { return text; };
  CHECK(joined(std::vector{"a", "b", "c"}, same) == "a, b, c");
  CHECK(joined(std::vector<const char*>{}, same).empty());
}

TEST_CASE("cuda_check: success is ok, a failure names the call and the error") {
  CHECK(cuda_status(cudaSuccess, "cudaFree(p)").ok());
  const Status failed = cuda_status(cudaErrorInvalidConfiguration, "cudaFree(p)");
  CHECK(failed.code == Code::device_error);
  CHECK(failed.message.starts_with("cudaFree(p): cudaErrorInvalidConfiguration (invalid conf"));
  CHECK(cuda_status(cudaErrorMemoryAllocation, "cudaMalloc").code == Code::out_of_memory);
}

Status allocate_too_much(bool& went_on) {
  void* memory = nullptr;
  TILE_RETURN_IF_CUDA_ERROR(cudaFree(nullptr));  // CUDA: does nothing, successfully
  TILE_RETURN_IF_CUDA_ERROR(cudaMalloc(&memory, std::size_t{1} << 60));
  went_on = true;
  return {};
}

TEST_CASE("cuda_check: the macro returns at the first failing call and names it") {
  bool went_on = false;
  const Status status = allocate_too_much(went_on);
  CHECK(status.code == Code::out_of_memory);
  CHECK(status.message.starts_with("cudaMalloc(&memory, std::size_t{1} << 60): cudaErrorMemoryA"));
  CHECK_FALSE(went_on);
}

TEST_CASE("cuda_check: a failure that was reported is not reported again by the next launch") {
  bool went_on = false;
  REQUIRE_FALSE(allocate_too_much(went_on).ok());
  CHECK(launch_status("kernel").ok());
}

TEST_CASE("cuda_check: launch_status reports the last error once and names the kernel") {
  void* memory = nullptr;
  REQUIRE(cudaMalloc(&memory, std::size_t{1} << 60) != cudaSuccess);
  const Status status = launch_status("vector_add");
  CHECK_FALSE(status.ok());
  CHECK(status.message.starts_with("launch of vector_add: cudaErrorMemoryAllocation"));
  CHECK(launch_status("vector_add").ok());
}

TEST_CASE("cuda_check: an idle stream synchronises") { CHECK(synchronize_status(nullptr).ok()); }

TEST_CASE("heads_together: no more than asked for, at least half, and the last group the fullest") {
  constexpr int kManyBlocks = 1 << 20;  // a head fills the card
  for (std::int64_t all = 1; all <= 200; ++all) {
    const auto last = [all](std::int64_t n) { return all % n == 0 ? n : all % n; };
    for (std::int64_t most = 0; most <= all + 1; ++most) {
      const std::int64_t limit = std::clamp<std::int64_t>(most, 1, all);
      const std::int64_t together = heads_together(all, most, kManyBlocks);
      CAPTURE(all);
      CAPTURE(most);
      REQUIRE(together >= 1);
      CHECK(together <= limit);
      bool is_fullest = true;
      for (std::int64_t n = (limit + 1) / 2; n <= limit; ++n) {
        is_fullest = is_fullest && last(together) * n >= last(n) * together;
      }
      CHECK(is_fullest);
      CHECK(together >= (limit + 1) / 2);
    }
    // Of short heads there are enough for two blocks on each multiprocessor.
    CHECK(heads_together(all, 1, 1) >=
          std::min<std::int64_t>(all, 2 * device().multiprocessors) / 2);
  }
  CHECK(heads_together(0, 1, 1) == 1);
}

}  // namespace
}  // namespace tile
