// Chapter 07's tests: tensors too large for the host.
#include <cuda_runtime_api.h>

#include <memory>

#include "test_support.hpp"

namespace windowed_rope {
namespace {

struct CudaFree {
  void operator()(std::byte* memory) const { static_cast<void>(cudaFree(memory)); }
};

}  // namespace

TEST_SUITE("large") {
  TEST_CASE("batch entries more than 2^31 elements apart") {
    if (tile::device().simulated) return tile::skip("needs 17 GiB");
    const DType type = DType::bf16;
    Case c = causal(full(type, {3, 2, 1, 70, 90, 64}, 33));
    const Inputs in = normal(kForward[0], c);
    const tile::AttentionExpected expected = expected_outputs(c, in);
    const std::int64_t row = 7 * 64;  // two heads of q1 and of q2, k1, k2 and v side by side
    const std::int64_t apart = (std::int64_t{1} << 31) + 64;
    for (auto tensor : {&AttentionForward::q, &AttentionForward::k, &AttentionForward::q_far,
                        &AttentionForward::k_far, &AttentionForward::v}) {
      (c.p.*tensor).stride = {apart, 64, row};
    }
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
    copy(in.q_far, 70, 2, 128);
    copy(in.k, 90, 1, 256);
    copy(in.k_far, 90, 1, 320);
    copy(in.v, 90, 1, 384);
    for (const auto& step : tile::selected_steps(kForwardLadder)) {
      CAPTURE(step.name);
      AttentionForward p = c.p;
      p.workspace_bytes = workspace_bytes_of(step, p);
      const DeviceBuffer workspace =
          DeviceBuffer::output("workspace", tile::vector_layout(DType::fp32, p.workspace_bytes / 4),
                               Poison::unwritten_nan);
      const DeviceBuffer o = DeviceBuffer::output("o", tile::vector_layout(type, 3 * 70 * 2 * 64),
                                                  Poison::unwritten_nan);
      p.q.data = raw, p.k.data = raw + 512, p.q_far.data = raw + 256, p.k_far.data = raw + 640;
      p.v.data = raw + 768, p.o.data = o.raw();
      p.workspace = workspace.raw();
      const Status done = tile::run_step(step, p);
      REQUIRE_MESSAGE(done.ok(), done.message);
      check_values({"o", o.download()}, expected.o);
    }
  }
}

}  // namespace windowed_rope
