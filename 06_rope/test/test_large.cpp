// Chapter 06's tests: tensors too large for the host.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>

#include "test_support.hpp"

namespace rope {
namespace {

struct CudaFree {
  void operator()(std::byte* memory) const { static_cast<void>(cudaFree(memory)); }
};

}  // namespace

TEST_SUITE("large") {
  TEST_CASE("rotary: in place, in batch entries more than 2^31 elements apart") {
    if (tile::device().simulated) return tile::skip("needs 9 GiB");
    for (const auto& step : tile::selected_steps(kRotaryLadder)) {
      CAPTURE(step.name);
      const DType type = DType::bf16;
      Case c = simple(type, {3, 5, 4, 2, 64, 48});
      const Rows in = normal(c.p);
      const std::int64_t q_row = 4 * 64, k_row = 2 * 64, row = q_row + k_row;  // side by side
      // Whole rows, so that q and k lie between one another in all of them.
      const std::int64_t apart = ((std::int64_t{1} << 31) / row + 1) * row;
      const tile::Expected q = reference(c.p, in.q, 4, c.frequencies, {}, Angles::computed);
      const tile::Expected k = reference(c.p, in.k, 2, c.frequencies, {}, Angles::computed);
      c.p.q = c.p.k = c.p.q_out = c.p.k_out = {apart, 64, row};
      const std::size_t bytes = 2 * static_cast<std::size_t>(2 * apart + 5 * row);
      std::size_t free_bytes = 0, total_bytes = 0;
      REQUIRE(cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess);
      if (free_bytes < 2 * bytes) return tile::skip("needs 17 GiB of device memory");
      void* room = nullptr;
      REQUIRE(cudaMalloc(&room, bytes) == cudaSuccess);
      auto* raw = static_cast<std::byte*>(room);
      const std::unique_ptr<std::byte, CudaFree> memory(raw);
      // Between the rows of a tensor without gaps and those here.
      const auto copy = [&](const DeviceBuffer& packed, std::int64_t width, std::int64_t column,
                            bool here) {
        const auto bytes_of_row = static_cast<std::size_t>(2 * width);
        for (std::int64_t b = 0; b < 3; ++b) {
          auto* theirs = static_cast<std::byte*>(packed.raw()) +
                         static_cast<std::size_t>(5 * b) * bytes_of_row;
          std::byte* ours = raw + 2 * (b * apart + column);
          const auto pitch = static_cast<std::size_t>(2 * row);
          REQUIRE(cudaMemcpy2D(here ? ours : theirs, here ? pitch : bytes_of_row,
                               here ? theirs : ours, here ? bytes_of_row : pitch, bytes_of_row, 5,
                               cudaMemcpyDeviceToDevice) == cudaSuccess);
        }
      };
      const auto layout = [&](const Values& x) { return tile::vector_layout(type, std::ssize(x)); };
      copy(DeviceBuffer::input("q", layout(in.q), in.q), q_row, 0, true);
      copy(DeviceBuffer::input("k", layout(in.k), in.k), k_row, q_row, true);
      const TestTables tables = tables_of(c.frequencies, 5);
      const auto of_tables = tile::vector_layout(DType::fp32, 5 * 24);
      const DeviceBuffer cos = DeviceBuffer::input("cos", of_tables, tables.cos);
      const DeviceBuffer sin = DeviceBuffer::input("sin", of_tables, tables.sin);
      const DeviceBuffer frequencies =
          DeviceBuffer::input("frequencies", tile::vector_layout(DType::fp64, 24), c.frequencies);
      std::byte* const at_k = raw + 2 * q_row;
      const Status done =
          tile::run_step(step, c.p,
                         {raw, at_k, raw, at_k, static_cast<const float*>(cos.raw()),
                          static_cast<const float*>(sin.raw()),
                          static_cast<const double*>(frequencies.raw()), nullptr});
      REQUIRE_MESSAGE(done.ok(), done.message);
      const DeviceBuffer q_out = DeviceBuffer::output("q_out", layout(in.q), Poison::unwritten_nan);
      const DeviceBuffer k_out = DeviceBuffer::output("k_out", layout(in.k), Poison::unwritten_nan);
      copy(q_out, q_row, 0, false);
      copy(k_out, k_row, q_row, false);
      check_values("q_out", q_out.download(), q);
      check_values("k_out", k_out.download(), k);
    }
  }
}

}  // namespace rope
