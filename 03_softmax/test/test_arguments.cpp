// Chapter 03's tests: what every step refuses, and how it launches.
#include "test_support.hpp"

namespace softmax {

TEST_SUITE("step") {
  TEST_CASE("bad arguments are refused by name and nothing is written") {
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      CAPTURE(step.name);
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
        const Status status = step.launch(p, where, nullptr);
        CHECK(status.code == code);
        CHECK_MESSAGE(status.message.rfind(argument + ": ", 0) == 0, status.message);
        const Status done = tile::synchronize_status(nullptr);
        CHECK_MESSAGE(done.ok(), done.message);
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

      for (const Mode mode : kModes) {
        // Rows of 7, so far apart: 9 x 7 elements, from the first to the last 63.
        const Problem good = plain(type, 9, 7, mode);
        const bool forward = is_forward(good);
        const std::string in_name = forward ? "x" : "y", out_name = forward ? "y" : "dx";
        const auto in_ld = forward ? &Problem::ldx : &Problem::ldy;
        const auto out_ld = forward ? &Problem::ldy : &Problem::lddx;
        const std::string in_ld_name = forward ? "ldx" : "ldy",
                          out_ld_name = forward ? "ldy" : "lddx";
        auto buffers = [&](const void* from, void* to) {
          return forward ? Buffers{.x = from, .y = to}
                         : Buffers{.y = const_cast<void*>(from), .dy = dy.raw(), .dx = to};
        };
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

        // Leading dimensions: those of what is read and written, and no others.
        refuses(with(good, in_ld, 6), usual, in_ld_name);
        refuses(with(good, out_ld, 6), usual, out_ld_name);
        refuses(with(good, out_ld, -7), usual, out_ld_name);
        refuses(with(with(good, &Problem::rows, 0), out_ld, 6), usual, out_ld_name);
        accepts(with(good, in_ld, 8), usual);
        accepts(with(good, out_ld, 8), usual);
        if (forward) {
          accepts(with(with(good, &Problem::lddy, 0), &Problem::lddx, 0), usual);
        } else {
          refuses(with(good, &Problem::lddy, 6), usual, "lddy");
          accepts(with(good, &Problem::lddy, 8), usual);
          accepts(with(good, &Problem::ldx, 0), usual);
        }

        // Sizes: in elements between the rows, in bytes.
        const std::int64_t most_ld = (kMost / element - 7) / 8;
        for (const std::int64_t ld : {most_ld + 1, kMost / 8, kMost / 8 + 1, kMost}) {
          refuses(with(good, in_ld, ld), usual, in_name);
          refuses(with(good, out_ld, ld), usual, out_name);
          if (!forward) refuses(with(good, &Problem::lddy, ld), usual, "dy");
        }
        // Nine rows of 8 elements, of which all but the last fit.
        const Problem longer =
            with(with(padded(good, {1, 1, 1}), &Problem::cols, 8), in_ld, kMost / element / 8);
        refuses(longer, usual, in_name);
        // The greatest that fits is another argument's fault, or nobody's.
        CHECK(validate(with(good, in_ld, most_ld), buffers(first.raw(), nullptr))
                  .message.rfind(out_name + ": is null", 0) == 0);
        CHECK(validate(with(good, out_ld, most_ld), buffers(nullptr, out.raw()))
                  .message.rfind(in_name + ": is null", 0) == 0);
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
        refuses(good, buffers(nullptr, out.raw()), in_name);
        refuses(good, buffers(first.raw(), nullptr), out_name);
        refuses(good, buffers(bytes_after(first, 1), out.raw()), in_name);
        refuses(good, buffers(first.raw(), bytes_after(out, 1)), out_name);
        if (!forward) {
          Buffers bad = usual;
          bad.dy = nullptr;
          refuses(good, bad, "dy");
          bad.dy = bytes_after(dy, 1);
          refuses(good, bad, "dy");
        }

        // Overlaps. The output may be an input with the same rows; otherwise one element in common
        // is too much, even if it lies between two rows.
        const Problem wide_out = with(good, out_ld, 10);  // 87 elements
        const Problem wide_in = with(good, in_ld, 10);
        refuses(wide_out, buffers(out.raw(), out.raw()), out_name);
        refuses(wide_in, buffers(out.raw(), out.raw()), out_name);
        for (const std::int64_t apart : {1, 7, 62}) {
          refuses(good, buffers(out.raw(), after(out, apart)), out_name);
          refuses(good, buffers(after(out, apart), out.raw()), out_name);
        }
        refuses(wide_out, buffers(after(out, 86), out.raw()), out_name);
        refuses(wide_in, buffers(out.raw(), after(out, 86)), out_name);
        accepts(good, buffers(out.raw(), out.raw()));
        accepts(with(wide_out, in_ld, 10), buffers(out.raw(), out.raw()));
        accepts(good, buffers(out.raw(), after(out, 63)));
        accepts(good, buffers(after(out, 63), out.raw()));
        accepts(wide_out, buffers(after(out, 87), out.raw()));
        accepts(wide_in, buffers(out.raw(), after(out, 87)));
        if (!forward) {
          Buffers both{.y = first.raw(), .dy = after(out, 62), .dx = out.raw()};
          refuses(good, both, "dx");
          both.dy = after(out, 63);
          accepts(good, both);
          both.dy = out.raw();
          accepts(good, both);
          refuses(with(good, &Problem::lddy, 8), both, "dx");
          both.dy = first.raw();  // inputs may overlap
          accepts(good, both);
        }
      }
      for (const DeviceBuffer* buffer : {&first, &dy, &out}) {
        const Status intact = buffer->check();
        CHECK_MESSAGE(intact.ok(), intact.message);
      }
    });
  }
}

TEST_SUITE("launch") {
  TEST_CASE("the kernel runs in the stream it was given, and a launch that fails is reported") {
    // A stream that does not exist shows both.
    if (!tile::device().simulated) return tile::skip("a GPU's driver may crash on such a stream");
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      CAPTURE(step.name);
      tile::Selection selection(step.types, type);
      for (const Mode mode : kModes) {
        // By a part of a warp, a block, several blocks or in another way; with vectors and without.
        for (const std::int64_t cols : {10, 40, 1031, 1032, 36'864, 33'001}) {
          for (const bool with_mask : {false, true}) {
            if (!selection.takes_next()) continue;
            Problem p = plain(type, 2, cols, mode);
            if (with_mask) p = causal(p, 2);
            const std::string problem = describe(p);
            CAPTURE(problem);
            const Layout layout = layout_of(p, cols, 0);
            const Values values(static_cast<std::size_t>(2 * cols), 0.5);
            DeviceBuffer in = DeviceBuffer::input("in", layout, values);
            DeviceBuffer out = DeviceBuffer::output("out", layout, Poison::unwritten_nan);
            const Buffers buffers = is_forward(p)
                                        ? Buffers{.x = in.raw(), .y = out.raw()}
                                        : Buffers{.y = in.raw(), .dy = in.raw(), .dx = out.raw()};
            int no_stream = 0;
            const Status status = step.launch(p, buffers, &no_stream);
            CHECK(status.code == tile::Code::device_error);
            const bool named =
                status.message.find("cudaErrorInvalidResourceHandle") != std::string::npos;
            CHECK_MESSAGE(named, status.message);
            const Status untouched = out.check_unchanged();
            CHECK_MESSAGE(untouched.ok(), untouched.message);
          }
        }
      }
    });
  }
}

}  // namespace softmax
