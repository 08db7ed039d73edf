// Chapter 03's tests: what is refused, and how steps launch.
#include "test_support.hpp"

namespace softmax {

namespace {

// A pass's own names.
template <class Problem>
struct Names;
template <>
struct Names<ForwardProblem> {
  static constexpr const char *in = "x", *out = "y", *in_ld = "ldx", *out_ld = "ldy";
  static constexpr auto in_ld_member = &ForwardProblem::ldx;
  static constexpr auto out_ld_member = &ForwardProblem::ldy;
};
template <>
struct Names<BackwardProblem> {
  static constexpr const char *in = "y", *out = "dx", *in_ld = "ldy", *out_ld = "lddx";
  static constexpr auto in_ld_member = &BackwardProblem::ldy;
  static constexpr auto out_ld_member = &BackwardProblem::lddx;
};

// What no step gets to see: through the first one, as all are called in the same way.
template <class Ladder>
void check_refusals(const Ladder& ladder, DType type) {
  using Problem = typename Ladder::Problem;
  using Buffers = typename Ladder::Buffers;
  using Named = Names<Problem>;
  constexpr bool kBackward = std::is_same_v<Problem, BackwardProblem>;
  const tile::TestedStep<Ladder> step{ladder.steps[0], &ladder, 0};
  const auto element = static_cast<std::int64_t>(tile::size_bytes(type));
  const Layout layout = tile::vector_layout(type, 200);
  // Parts of the output serve as inputs, so it has values.
  DeviceBuffer first = DeviceBuffer::input("first", layout, Values(200, 0.5));
  DeviceBuffer dy = DeviceBuffer::input("dy", layout, Values(200, 0.5));
  DeviceBuffer out = DeviceBuffer::in_out("out", layout, Values(200, 0.5));
  auto bytes_after = [](const DeviceBuffer& buffer, std::int64_t bytes) {
    return static_cast<void*>(static_cast<char*>(buffer.raw()) + bytes);
  };
  auto after = [&](const DeviceBuffer& buffer, std::int64_t elements) {
    return bytes_after(buffer, elements * element);
  };
  auto refuses = [&](const Problem& p, const Buffers& where, const std::string& argument,
                     tile::Code code = tile::Code::invalid_argument) {
    const std::string problem = describe(p);
    CAPTURE(problem);
    CAPTURE(argument);
    const Status status = tile::run_step(step, p, where);
    CHECK(status.code == code);
    CHECK_MESSAGE(status.message.rfind(argument + ": ", 0) == 0, status.message);
    const Status untouched = out.check_unchanged();
    CHECK_MESSAGE(untouched.ok(), untouched.message);
  };
  auto accepts = [&](const Problem& p, const Buffers& where) {
    const std::string problem = describe(p);
    CAPTURE(problem);
    const Status done = tile::run_step(step, p, where);
    CHECK_MESSAGE(done.ok(), done.message);
    out.restore();
  };
  auto with = [](Problem p, auto member, auto value) {
    p.*member = value;
    return p;
  };
  constexpr std::int64_t kMost = INT64_MAX;
  constexpr auto in_ld = Named::in_ld_member;
  constexpr auto out_ld = Named::out_ld_member;

  for (const bool log : {false, true}) {
    // Rows of 7, so far apart: 9 x 7 elements, from the first to the last 63.
    const Problem good = plain(step, type, 9, 7, log);
    auto buffers = [&](void* from, void* to) { return buffers_of(good, from, dy.raw(), to); };
    const Buffers usual = buffers(first.raw(), out.raw());

    // Types and extents.
    for (const int unknown : {-1, 31, 32}) {
      refuses(with(good, &Problem::type, static_cast<DType>(unknown)), usual, "type",
              tile::Code::unsupported);
    }
    for (const DType other : tile::kDTypes) {
      if (step.types.contains(other)) continue;
      refuses(with(good, &Problem::type, other), usual, "type", tile::Code::unsupported);
    }
    refuses(with(good, &Problem::rows, -1), usual, "rows");
    refuses(with(good, &Problem::cols, -1), usual, "cols");
    accepts(with(good, &Problem::rows, 0), {});
    accepts(with(good, &Problem::cols, 0), {});

    // Leading dimensions.
    refuses(with(good, in_ld, 6), usual, Named::in_ld);
    refuses(with(good, out_ld, 6), usual, Named::out_ld);
    refuses(with(good, out_ld, -7), usual, Named::out_ld);
    refuses(with(with(good, &Problem::rows, 0), out_ld, 6), usual, Named::out_ld);
    accepts(with(good, in_ld, 8), usual);
    accepts(with(good, out_ld, 8), usual);
    if constexpr (kBackward) {
      refuses(with(good, &Problem::lddy, 6), usual, "lddy");
      accepts(with(good, &Problem::lddy, 8), usual);
    }

    // Sizes: in elements between the rows, in bytes.
    const std::int64_t most_ld = (kMost / element - 7) / 8;
    for (const std::int64_t ld : {most_ld + 1, kMost / 8, kMost / 8 + 1, kMost}) {
      refuses(with(good, in_ld, ld), usual, Named::in);
      refuses(with(good, out_ld, ld), usual, Named::out);
      if constexpr (kBackward) refuses(with(good, &Problem::lddy, ld), usual, "dy");
    }
    // Nine rows of 8 elements, of which all but the last fit.
    const Problem longer =
        with(with(padded(good, {1, 1, 1}), &Problem::cols, 8), in_ld, kMost / element / 8);
    refuses(longer, usual, Named::in);
    // The greatest that fits is another argument's fault, or none's.
    CHECK(validate(with(good, in_ld, most_ld), buffers(first.raw(), nullptr))
              .message.rfind(Named::out + std::string(": is null"), 0) == 0);
    CHECK(validate(with(good, out_ld, most_ld), buffers(nullptr, out.raw()))
              .message.rfind(Named::in + std::string(": is null"), 0) == 0);
    accepts(with(with(good, &Problem::rows, 0), in_ld, kMost), usual);
    accepts(with(with(good, &Problem::rows, 1), in_ld, kMost), usual);

    // scale and queries.
    const double infinity = kInfinity;
    for (const double scale : {0.0, -0.0, -1.0, infinity, -infinity, kNaN, 3e38}) {
      refuses(scaled(good, static_cast<float>(scale)), usual, "scale");
    }
    for (const float scale : {1e-45f, 2.3e38f}) accepts(scaled(good, scale), usual);
    for (const std::int64_t queries : {std::int64_t{-9}, std::int64_t{-3}, std::int64_t{0},
                                       std::int64_t{2}, std::int64_t{10}, kMost}) {
      refuses(causal(good, queries), usual, "queries");
      accepts(with(good, &Problem::queries, queries), usual);
    }
    refuses(causal(with(good, &Problem::rows, 0), -1), usual, "queries");
    for (const std::int64_t queries : {1, 3, 9}) accepts(causal(good, queries), usual);

    // Pointers.
    refuses(good, buffers(nullptr, out.raw()), Named::in);
    refuses(good, buffers(first.raw(), nullptr), Named::out);
    refuses(good, buffers(bytes_after(first, 1), out.raw()), Named::in);
    refuses(good, buffers(first.raw(), bytes_after(out, 1)), Named::out);
    if constexpr (kBackward) {
      refuses(good, {first.raw(), nullptr, out.raw()}, "dy");
      refuses(good, {first.raw(), bytes_after(dy, 1), out.raw()}, "dy");
    }

    // Overlaps. The output may be an input with the same rows; otherwise one element in common
    // is too much, even if it lies between two rows.
    const Problem wide_out = with(good, out_ld, 10);  // 87 elements
    const Problem wide_in = with(good, in_ld, 10);
    refuses(wide_out, buffers(out.raw(), out.raw()), Named::out);
    refuses(wide_in, buffers(out.raw(), out.raw()), Named::out);
    for (const std::int64_t apart : {1, 7, 62}) {
      refuses(good, buffers(out.raw(), after(out, apart)), Named::out);
      refuses(good, buffers(after(out, apart), out.raw()), Named::out);
    }
    refuses(wide_out, buffers(after(out, 86), out.raw()), Named::out);
    refuses(wide_in, buffers(out.raw(), after(out, 86)), Named::out);
    accepts(good, buffers(out.raw(), out.raw()));
    accepts(with(wide_out, in_ld, 10), buffers(out.raw(), out.raw()));
    accepts(good, buffers(out.raw(), after(out, 63)));
    accepts(good, buffers(after(out, 63), out.raw()));
    accepts(wide_out, buffers(after(out, 87), out.raw()));
    accepts(wide_in, buffers(out.raw(), after(out, 87)));
    if constexpr (kBackward) {
      refuses(good, {first.raw(), after(out, 62), out.raw()}, "dx");
      accepts(good, {first.raw(), after(out, 63), out.raw()});
      accepts(good, {first.raw(), out.raw(), out.raw()});
      refuses(with(good, &Problem::lddy, 8), {first.raw(), out.raw(), out.raw()}, "dx");
      accepts(good, {first.raw(), first.raw(), out.raw()});  // inputs may overlap
    }
  }
  for (const DeviceBuffer* buffer : {&first, &dy, &out}) {
    const Status intact = buffer->check();
    CHECK_MESSAGE(intact.ok(), intact.message);
  }
}

}  // namespace

TEST_SUITE("chapter") {
  TEST_CASE("bad arguments are refused by name and nothing is written") {
    for (const DType type : {DType::fp32, DType::fp16, DType::bf16}) {
      check_refusals(kForwardLadder, type);
      check_refusals(kBackwardLadder, type);
    }
  }
}

TEST_SUITE("launch") {
  TEST_CASE("the kernel runs in the stream it was given, and a launch that fails is reported") {
    // A stream that does not exist shows both.
    if (!tile::device().simulated) return tile::skip("a GPU's driver may crash on such a stream");
    for_each_step(
        [](const auto& step, DType type) {
          CAPTURE(step.name);
          Cases cases(step, type);
          for (const bool log : {false, true}) {
            // By part of a warp, a block or several blocks; with vectors and without.
            for (const std::int64_t cols : columns_of(step, {10, 40, 1031, 1032, 36'864, 33'001})) {
              for (const bool with_mask : {false, true}) {
                auto p = plain(step, type, 2, cols, log);
                if (with_mask) p = causal(p, 2);
                if (!cases.runs(step, p)) continue;
                const std::string problem = describe(p);
                CAPTURE(problem);
                const Layout layout = layout_of(p, cols, 0);
                const Values values(static_cast<std::size_t>(2 * cols), 0.5);
                DeviceBuffer in = DeviceBuffer::input("in", layout, values);
                DeviceBuffer out = DeviceBuffer::output("out", layout, Poison::unwritten_nan);
                int no_stream = 0;
                const Status status = run(*step.ladder, step.number, p,
                                          buffers_of(p, in.raw(), in.raw(), out.raw()), &no_stream);
                CHECK(status.code == tile::Code::device_error);
                const bool named =
                    status.message.find("cudaErrorInvalidResourceHandle") != std::string::npos;
                CHECK_MESSAGE(named, status.message);
                const Status untouched = out.check_unchanged();
                CHECK_MESSAGE(untouched.ok(), untouched.message);
              }
            }
          }
        },
        tile::OwnKernel::need_not_run);
  }
}

}  // namespace softmax
