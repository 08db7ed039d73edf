// Chapter 05's tests: tensors too large for the host.
#include <cuda_runtime_api.h>

#include <memory>

#include "test_support.hpp"

namespace flash_attention {
namespace {

struct CudaFree {
  void operator()(std::byte* memory) const { static_cast<void>(cudaFree(memory)); }
};

}  // namespace

TEST_SUITE("large") {
  TEST_CASE("batch entries more than 2^31 elements apart") {
    if (tile::device().simulated) return tile::skip("needs 17 GiB");
    const DType type = DType::bf16;
    Case c = causal(full(type, {3, 2, 1, 70, 90, 64}));
    const Inputs in = normal(c.p);
    const ForwardExpected expected = expected_of(c, in);
    const std::int64_t row = 4 * 64;  // q, k and v side by side
    const std::int64_t apart = (std::int64_t{1} << 31) + 64;
    c.p.q.stride = c.p.k.stride = c.p.v.stride = {apart, 64, row};
    const std::size_t bytes = 2 * static_cast<std::size_t>(2 * apart + 90 * row);
    std::size_t free_bytes = 0, total_bytes = 0;
    REQUIRE(cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess);
    if (free_bytes < 2 * bytes) return tile::skip("needs 17 GiB of device memory");
    void* room = nullptr;
    REQUIRE(cudaMalloc(&room, bytes) == cudaSuccess);
    auto* raw = static_cast<std::byte*>(room);
    const std::unique_ptr<std::byte, CudaFree> memory(raw);
    REQUIRE(cudaMemset(raw, 0xff, bytes) == cudaSuccess);
    const auto copy = [&](const Values& values, std::int64_t length, std::int64_t heads,
                          std::int64_t column) {
      const DeviceBuffer packed =
          DeviceBuffer::input("packed", tile::vector_layout(type, std::ssize(values)), values);
      const auto width = static_cast<std::size_t>(heads * 64 * 2);
      for (std::int64_t b = 0; b < 3; ++b) {
        const auto* from = static_cast<const std::byte*>(packed.raw()) +
                           static_cast<std::size_t>(b * length) * width;
        REQUIRE(cudaMemcpy2D(raw + 2 * (b * apart + column), static_cast<std::size_t>(2 * row),
                             from, width, width, static_cast<std::size_t>(length),
                             cudaMemcpyDeviceToDevice) == cudaSuccess);
      }
    };
    copy(in.q, 70, 2, 0);
    copy(in.k, 90, 1, 128);
    copy(in.v, 90, 1, 192);
    for (const auto& step : tile::selected_steps(kForwardLadder)) {
      if (!step.types.contains(type)) continue;
      CAPTURE(step.name);
      const std::int64_t workspace_size = workspace_bytes_of(step, c.p);
      const DeviceBuffer workspace = DeviceBuffer::output(
          "workspace", tile::vector_layout(DType::fp32, workspace_size / 4), Poison::unwritten_nan);
      const DeviceBuffer o = DeviceBuffer::output("o", tile::vector_layout(type, 3 * 70 * 2 * 64),
                                                  Poison::unwritten_nan);
      AttentionForward p = c.p;
      p.q.data = raw, p.k.data = raw + 256, p.v.data = raw + 384, p.o.data = o.raw();
      p.workspace = workspace.raw();
      p.workspace_bytes = workspace_size;
      const Status done = tile::run_step(step, p);
      REQUIRE_MESSAGE(done.ok(), done.message);
      check_values("o", o.download(), expected.o);
    }
  }
}

}  // namespace flash_attention
