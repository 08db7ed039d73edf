// Chapter 02's tests: what every step refuses, and how it launches.
#include "test_support.hpp"

namespace matmul {

namespace {

// Of e4m3 there is one layout, no other step, and two arguments more.
void check_arguments_of_8_bits(const Step& step) {
  const DType type = DType::e4m3;
  Problem good = padded(plain(type, {9, 5, 32}), {0, 0, 0});
  DeviceBuffer a = DeviceBuffer::input("a", layout_a(good), Values(9 * 32, 1.0));
  DeviceBuffer b = DeviceBuffer::input("b", layout_b(good), Values(5 * 32, 1.0));
  DeviceBuffer c =
      DeviceBuffer::in_out("c", tile::vector_layout(DType::bf16, 300), Values(300, 1.0));
  DeviceBuffer scale =
      DeviceBuffer::input("scale", tile::vector_layout(DType::fp32, 2), Values{2, 3});
  const auto after = [](const DeviceBuffer& buffer, std::int64_t bytes) {
    return static_cast<void*>(static_cast<char*>(buffer.raw()) + bytes);
  };
  const auto number = [&](const DeviceBuffer& buffer, std::int64_t bytes) {
    return static_cast<const float*>(after(buffer, bytes));
  };
  const Buffers buffers{a.raw(), b.raw(), c.raw()};
  const auto refuses = [&](const Problem& p, const Buffers& where, const std::string& argument,
                           tile::Code code = tile::Code::unsupported) {
    CAPTURE(argument);
    const Status status = tile::run_step(step, p, where);
    CHECK(status.code == code);
    CHECK_MESSAGE(status.message.rfind(argument + ": ", 0) == 0, status.message);
    const Status untouched = c.check_unchanged();
    CHECK_MESSAGE(untouched.ok(), untouched.message);
  };
  const auto with = [&](auto member, auto value) {
    Problem p = good;
    p.*member = value;
    return p;
  };
  Problem transposed = with(&Problem::transpose_a, true);
  transposed.m = 16;
  refuses(transposed, buffers, "transpose_a");
  refuses(with(&Problem::transpose_b, false), buffers, "transpose_b");
  refuses(with(&Problem::lda, 40), buffers, "a");
  refuses(with(&Problem::ldb, 40), buffers, "b");
  refuses(with(&Problem::ldc, 12), buffers, "c");
  refuses(good, {after(a, 8), b.raw(), c.raw()}, "a");
  refuses(good, {a.raw(), after(b, 8), c.raw()}, "b");
  refuses(good, {a.raw(), b.raw(), after(c, 8)}, "c");

  const auto invalid = tile::Code::invalid_argument;
  refuses(with(&Problem::lda, 31), buffers, "lda", invalid);
  refuses(good, {nullptr, b.raw(), c.raw()}, "a", invalid);
  refuses(good, {a.raw(), b.raw(), after(c, 1)}, "c", invalid);
  refuses(good, {a.raw(), b.raw(), c.raw(), after(c, 0)}, "c", invalid);
  refuses(good, {a.raw(), b.raw(), c.raw(), nullptr, number(scale, 2)}, "a_scale", invalid);
  refuses(good, {a.raw(), b.raw(), c.raw(), nullptr, nullptr, number(scale, 1)}, "b_scale",
          invalid);
  // C has 9 rows of 10 bytes, 32 bytes apart: 266 bytes.
  refuses(good, {a.raw(), b.raw(), c.raw(), nullptr, number(c, 264)}, "c", invalid);
  refuses(good, {a.raw(), b.raw(), after(c, 16), nullptr, nullptr, number(c, 16)}, "c", invalid);
  for (const Buffers& scaled :
       {Buffers{a.raw(), b.raw(), c.raw(), nullptr, number(scale, 0)},
        Buffers{a.raw(), b.raw(), c.raw(), nullptr, nullptr, number(scale, 0)}}) {
    CHECK(validate(plain(DType::bf16, {2, 2, 2}), scaled).code == invalid);
  }

  for (const Problem& p : {with(&Problem::k, 0), with(&Problem::alpha, 0.f)}) {
    CHECK(tile::run_step(step, p, {nullptr, nullptr, after(c, 2)}).ok());
  }
  CHECK(tile::run_step(step, good, buffers).ok());
  CHECK(tile::run_step(step, good,
                       {a.raw(), b.raw(), c.raw(), nullptr, number(scale, 4), number(scale, 4)})
            .ok());
  CHECK(tile::run_step(step, good, {a.raw(), b.raw(), c.raw(), nullptr, number(c, 268)}).ok());
  for (const DeviceBuffer* buffer : {&a, &b, &c, &scale}) {
    const Status intact = buffer->check();
    CHECK_MESSAGE(intact.ok(), intact.message);
  }
}

}  // namespace

TEST_SUITE("step") {
  TEST_CASE("bad arguments are refused by name and nothing is written") {
    tile::for_each_step(kTested, [](const Step& step, DType type) {
      CAPTURE(step.name);
      if (type == DType::e4m3) return check_arguments_of_8_bits(step);
      const Problem good = plain(type, {9, 7, 5});
      const auto element = static_cast<std::int64_t>(tile::size_bytes(type));
      DeviceBuffer a = DeviceBuffer::input("a", tile::vector_layout(type, 45), Values(45, 1.0));
      DeviceBuffer b = DeviceBuffer::input("b", tile::vector_layout(type, 35), Values(35, 1.0));
      // Its end serves as A and as B, so it has values.
      DeviceBuffer c = DeviceBuffer::in_out("c", tile::vector_layout(type, 300), Values(300, 1.0));
      DeviceBuffer bias = DeviceBuffer::input("bias", tile::vector_layout(type, 9), Values(9, 1.0));
      const Buffers buffers{a.raw(), b.raw(), c.raw()};
      auto bytes_after = [](void* pointer, std::int64_t bytes) {
        return static_cast<void*>(static_cast<char*>(pointer) + bytes);
      };
      auto after = [&](DeviceBuffer& buffer, std::int64_t elements) {
        return bytes_after(buffer.raw(), elements * element);
      };

      auto refuses = [&](const Problem& p, const Buffers& where, const std::string& argument,
                         tile::Code code = tile::Code::invalid_argument) {
        const std::string problem = describe(p, {});
        CAPTURE(problem);
        CAPTURE(argument);
        const Status status = tile::run_step(step, p, where);
        CHECK(status.code == code);
        CHECK_MESSAGE(status.message.rfind(argument + ": ", 0) == 0, status.message);
        const Status untouched = c.check_unchanged();
        CHECK_MESSAGE(untouched.ok(), untouched.message);
      };
      auto accepts = [&](const Problem& p, const Buffers& where) {
        const std::string problem = describe(p, {});
        CAPTURE(problem);
        const Status done = tile::run_step(step, p, where);
        CHECK_MESSAGE(done.ok(), done.message);
      };
      auto with = [](Problem p, auto member, auto value) {
        p.*member = value;
        return p;
      };

      const auto with_workspace = [&](void* at, std::int64_t bytes) {
        Buffers all{a.raw(), b.raw(), c.raw(), bias.raw()};
        all.workspace = at, all.workspace_bytes = bytes;
        return all;
      };
      refuses(good, with_workspace(nullptr, -1), "workspace_bytes");
      refuses(good, with_workspace(nullptr, 16), "workspace");
      refuses(good, with_workspace(bytes_after(c.raw(), 1024 + 8), 16), "workspace");
      for (DeviceBuffer* other : {&a, &b, &c, &bias}) {
        refuses(good, with_workspace(other->raw(), 1), "workspace");
      }

      // Extents, types, leading dimensions.
      refuses(with(good, &Problem::m, -1), buffers, "m");
      refuses(with(good, &Problem::n, -1), buffers, "n");
      refuses(with(good, &Problem::k, -1), buffers, "k");
      const Problem transposed = plain(type, {9, 7, 5}, {true, true});
      refuses(with(good, &Problem::lda, 4), buffers, "lda");
      refuses(with(good, &Problem::ldb, 6), buffers, "ldb");
      refuses(with(good, &Problem::ldc, 6), buffers, "ldc");
      refuses(with(good, &Problem::lda, -5), buffers, "lda");
      refuses(with(transposed, &Problem::lda, 8), buffers, "lda");
      refuses(with(transposed, &Problem::ldb, 4), buffers, "ldb");
      refuses(with(transposed, &Problem::ldc, 6), buffers, "ldc");
      for (const int unknown : {-1, 31, 32}) {
        refuses(with(good, &Problem::type, static_cast<DType>(unknown)), buffers, "type",
                tile::Code::unsupported);
      }
      for (const DType other : tile::kDTypes) {
        if (step.types.contains(other)) continue;
        refuses(with(good, &Problem::type, other), buffers, "type", tile::Code::unsupported);
      }

      // Sizes: in bytes, in elements, in elements between the first of each row. With alpha 0 the
      // greatest that are right can be tried, without such a matrix.
      const Problem unread = with(good, &Problem::alpha, 0.f);
      constexpr std::int64_t kMost = INT64_MAX;
      const std::int64_t elements = kMost / element;
      const std::int64_t most_lda = (elements - 5) / 8, most_ldb = (elements - 7) / 4,
                         most_ldc = (elements - 7) / 8;
      refuses(with(unread, &Problem::lda, most_lda + 1), buffers, "a");
      refuses(with(unread, &Problem::ldb, most_ldb + 1), buffers, "b");
      refuses(with(unread, &Problem::ldc, most_ldc + 1), buffers, "c");
      for (const std::int64_t ld : {kMost / 8, kMost / 8 + 1, kMost}) {
        refuses(with(unread, &Problem::lda, ld), buffers, "a");
        refuses(with(unread, &Problem::ldb, ld), buffers, "b");
        refuses(with(unread, &Problem::ldc, ld), buffers, "c");
      }
      CHECK(validate(with(unread, &Problem::ldc, most_ldc), buffers).ok());
      // More blocks than a grid has, for tiles of up to 2^12 x 2^12.
      constexpr std::int64_t kWide = std::int64_t{1} << 28;
      refuses(scaled(plain(type, {kWide, kWide, 1}), 0, 0), buffers, "m and n",
              tile::Code::unsupported);

      // Pointers.
      refuses(good, {nullptr, b.raw(), c.raw()}, "a");
      refuses(good, {a.raw(), nullptr, c.raw()}, "b");
      refuses(good, {a.raw(), b.raw(), nullptr}, "c");
      refuses(unread, {a.raw(), b.raw(), nullptr}, "c");
      refuses(good, {bytes_after(a.raw(), 1), b.raw(), c.raw()}, "a");
      refuses(good, {a.raw(), bytes_after(b.raw(), 1), c.raw()}, "b");
      refuses(good, {a.raw(), b.raw(), bytes_after(c.raw(), 1)}, "c");

      // C has 9 x 7 elements, A 9 x 5, B 5 x 7: one element in common is too much. Neither may
      // lie between the rows of the other.
      const Problem wide_c = with(good, &Problem::ldc, 20);
      refuses(good, {c.raw(), b.raw(), c.raw()}, "c");
      refuses(good, {after(c, 62), b.raw(), c.raw()}, "c");
      refuses(good, {c.raw(), b.raw(), after(c, 44)}, "c");
      refuses(wide_c, {after(c, 166), b.raw(), c.raw()}, "c");
      refuses(with(good, &Problem::lda, 10), {c.raw(), b.raw(), after(c, 84)}, "c");
      refuses(good, {a.raw(), c.raw(), c.raw()}, "c");
      refuses(good, {a.raw(), after(c, 62), c.raw()}, "c");
      refuses(good, {a.raw(), c.raw(), after(c, 34)}, "c");
      refuses(wide_c, {a.raw(), after(c, 166), c.raw()}, "c");
      refuses(with(good, &Problem::ldb, 10), {a.raw(), c.raw(), after(c, 46)}, "c");

      // Bias and activation. The bias has 7 elements.
      for (const int unknown : {-1, 3}) {
        refuses(with(good, &Problem::activation, static_cast<Activation>(unknown)), buffers,
                "activation");
      }
      refuses(with(plain(type, {0, 7, 5}), &Problem::activation, static_cast<Activation>(3)),
              buffers, "activation");
      refuses(good, {a.raw(), b.raw(), c.raw(), bytes_after(bias.raw(), 1)}, "bias");
      refuses(good, {a.raw(), b.raw(), c.raw(), c.raw()}, "c");
      refuses(good, {a.raw(), b.raw(), c.raw(), after(c, 62)}, "c");
      refuses(good, {a.raw(), b.raw(), after(c, 6), c.raw()}, "c");
      refuses(unread, {nullptr, nullptr, c.raw(), after(c, 62)}, "c");

      // The nearest calls that are right.
      accepts(plain(type, {0, 7, 5}), {nullptr, nullptr, nullptr});
      accepts(plain(type, {9, 0, 5}), {nullptr, nullptr, nullptr});
      accepts(with(plain(type, {0, 7, 5}), &Problem::lda, kMost), buffers);
      Status untouched = c.check_unchanged();
      CHECK_MESSAGE(untouched.ok(), untouched.message);
      accepts(plain(type, {9, 7, 0}), {nullptr, nullptr, c.raw()});
      accepts(unread, {nullptr, nullptr, c.raw()});
      accepts(unread, {c.raw(), c.raw(), c.raw()});
      accepts(with(unread, &Problem::lda, most_lda), buffers);
      accepts(with(unread, &Problem::ldb, most_ldb), buffers);
      accepts(good, {a.raw(), a.raw(), c.raw()});  // B may be A
      accepts(good, {after(c, 63), b.raw(), c.raw()});
      accepts(good, {c.raw(), b.raw(), after(c, 45)});
      accepts(wide_c, {after(c, 167), b.raw(), c.raw()});
      accepts(with(good, &Problem::lda, 10), {c.raw(), b.raw(), after(c, 85)});
      accepts(good, {a.raw(), after(c, 63), c.raw()});
      accepts(good, {a.raw(), c.raw(), after(c, 35)});
      accepts(wide_c, {a.raw(), after(c, 167), c.raw()});
      accepts(with(good, &Problem::ldb, 10), {a.raw(), c.raw(), after(c, 47)});
      accepts(good, {a.raw(), b.raw(), c.raw(), after(bias, 1)});
      accepts(good, {a.raw(), b.raw(), c.raw(), after(c, 63)});
      accepts(good, {a.raw(), b.raw(), after(c, 7), c.raw()});
      accepts(good, {a.raw(), b.raw(), c.raw(), a.raw()});  // the bias may be what is multiplied
      accepts(plain(type, {0, 7, 5}), {nullptr, nullptr, nullptr, bytes_after(bias.raw(), 1)});
      for (const Activation activation : {Activation::relu, Activation::gelu}) {
        accepts(with(good, &Problem::activation, activation), buffers);
      }
      for (const DeviceBuffer* buffer : {&a, &b, &c, &bias}) {
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
    tile::for_each_step(
        kTested,
        [](const Step& step, DType type) {
          CAPTURE(step.name);
          for (const Transposes transposes : transposes_of(type)) {
            const Problem p = with_rows_for(step, plain(type, {10, 10, 10}, transposes));
            DeviceBuffer a = DeviceBuffer::input("a", layout_a(p), integers(p).a);
            DeviceBuffer c = DeviceBuffer::output("c", layout_c(p), Poison::unwritten_nan);
            int no_stream = 0;
            const Status status =
                run(kTested, step.number, p, {a.raw(), a.raw(), c.raw()}, &no_stream);
            CHECK(status.code == tile::Code::device_error);
            const bool named =
                status.message.find("cudaErrorInvalidResourceHandle") != std::string::npos;
            CHECK_MESSAGE(named, status.message);
            const Status untouched = c.check_unchanged();
            CHECK_MESSAGE(untouched.ok(), untouched.message);
          }
        },
        tile::OwnKernel::need_not_run);
  }

  TEST_CASE("so does the kernel of bias and activation, and so is its failure") {
    if (!tile::device().simulated) return tile::skip("a GPU's driver may crash on such a stream");
    Problem p = plain(DType::fp32, {10, 10, 10});
    p.activation = Activation::relu;
    const DeviceBuffer c = DeviceBuffer::output("c", layout_c(p), Poison::unwritten_nan);
    int no_stream = 0;
    const Status status = add_bias_and_activate(p, {nullptr, nullptr, c.raw()}, &no_stream);
    CHECK(status.code == tile::Code::device_error);
    const bool named = status.message.find("cudaErrorInvalidResourceHandle") != std::string::npos;
    CHECK_MESSAGE(named, status.message);
    const Status untouched = c.check_unchanged();
    CHECK_MESSAGE(untouched.ok(), untouched.message);
  }
}

}  // namespace matmul
