// Chapter 06's tests: what is refused, by name, and valid arguments close to it.
#include <cmath>
#include <functional>

#include "test_support.hpp"

namespace rope {
namespace {

/// A valid call: the memory of the tensors follows one another without gaps.
struct Call {
  RotaryProblem p = simple(DType::bf16, {2, 5, 4, 2, 16, 8}).p;
  RotaryBuffers b = {};
  Call() {
    // What is here is not read: validate() does not look, and nothing is launched.
    std::uintptr_t next = 4096;
    const auto place = [&next](std::int64_t bytes) {
      const std::uintptr_t here = next;
      next += static_cast<std::uintptr_t>(bytes);
      return reinterpret_cast<void*>(here);
    };
    b.frequencies = static_cast<const double*>(place(4 * 8));
    b.q = place(2 * 5 * 4 * 16 * 2);
    b.k = place(2 * 5 * 2 * 16 * 2);
    b.q_out = place(2 * 5 * 4 * 16 * 2);
    b.k_out = place(2 * 5 * 2 * 16 * 2);
    b.cos = static_cast<const float*>(place(5 * 4 * 4));
    b.sin = static_cast<const float*>(place(5 * 4 * 4));
    b.positions = static_cast<const int*>(place(2 * 5 * 4));
  }
};

using Change = std::function<void(Call&)>;

void accepts(const std::string& what, const Change& change) {
  Call call;
  change(call);
  const Status status = validate(call.p, call.b);
  CAPTURE(what);
  CHECK_MESSAGE(status.ok(), status.message);
}

/// The message begins with the argument's name.
void refuses(const std::string& name, const Change& change,
             tile::Code code = tile::Code::invalid_argument) {
  Call call;
  change(call);
  const Status status = validate(call.p, call.b);
  CAPTURE(name);
  CHECK(status.code == code);
  CHECK_MESSAGE(status.message.rfind(name + ": ", 0) == 0, status.message);
}

template <class T>
T* moved(T* pointer, std::int64_t bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<std::intptr_t>(pointer) + bytes);
}

}  // namespace

TEST_SUITE("chapter") {
  TEST_CASE("rotary: extents and options") {
    accepts("as it is", [](Call&) {});
    for (const auto& [name, extent] : {std::pair{"batch", &RotaryProblem::batch},
                                       {"length", &RotaryProblem::length},
                                       {"heads", &RotaryProblem::heads},
                                       {"kv_heads", &RotaryProblem::kv_heads},
                                       {"head_dim", &RotaryProblem::head_dim},
                                       {"rotary_dim", &RotaryProblem::rotary_dim},
                                       {"first_position", &RotaryProblem::first_position},
                                       {"table_positions", &RotaryProblem::table_positions}}) {
      refuses(name, [extent = extent](Call& call) { call.p.*extent = -1; });
      for (const std::int64_t large : {INT64_MAX, (std::int64_t{1} << 29) + 1}) {
        refuses(
            name, [=, extent = extent](Call& call) { call.p.*extent = large; },
            tile::Code::unsupported);
      }
    }
    refuses("head_dim", [](Call& call) { call.p.head_dim = call.p.rotary_dim = 0; });
    refuses("rotary_dim", [](Call& call) { call.p.rotary_dim = 7; });
    refuses("rotary_dim", [](Call& call) { call.p.rotary_dim = 18; });
    accepts("all of it turns", [](Call& call) {
      call.p.rotary_dim = 16;
      call.b.frequencies = nullptr;  // of which there would be more now
      call.b.positions = nullptr;
      call.p.table_positions = 5;
      call.b.cos = reinterpret_cast<const float*>(std::uintptr_t{1} << 20);
      call.b.sin = reinterpret_cast<const float*>(std::uintptr_t{2} << 20);
    });
    refuses("layout", [](Call& call) { call.p.layout = static_cast<Layout>(2); });
    refuses("pass", [](Call& call) { call.p.pass = static_cast<Pass>(2); });
    for (const double factor : {0.0, -1.0, 3.5e38, HUGE_VAL, kNaN}) {
      refuses("attention_factor", [=](Call& call) { call.p.attention_factor = factor; });
    }
    refuses(
        "type", [](Call& call) { call.p.type = DType::tf32; }, tile::Code::unsupported);
  }

  TEST_CASE("rotary: positions that the tables have") {
    accepts("the last one", [](Call& call) { call.b.positions = nullptr; });
    refuses("table_positions", [](Call& call) {
      call.b.positions = nullptr;
      call.p.first_position = 1;
    });
    accepts("given, so first_position does not matter",
            [](Call& call) { call.p.first_position = 1 << 20; });
    refuses("sin", [](Call& call) { call.b.sin = nullptr; });
    refuses("cos", [](Call& call) { call.b.cos = nullptr; });
    accepts("frequencies alone", [](Call& call) { call.b.cos = call.b.sin = nullptr; });
    refuses("cos", [](Call& call) {
      call.b.cos = call.b.sin = nullptr;
      call.b.frequencies = nullptr;
    });
    accepts("nothing turns", [](Call& call) {
      call.p.rotary_dim = 0;
      call.b.cos = call.b.sin = nullptr;
      call.b.frequencies = nullptr;
    });
  }

  TEST_CASE("rotary: tensors") {
    for (const auto& [name, stride] : {std::pair{"q", &RotaryProblem::q},
                                       {"k", &RotaryProblem::k},
                                       {"q_out", &RotaryProblem::q_out},
                                       {"k_out", &RotaryProblem::k_out}}) {
      for (std::int64_t Strides::*each : {&Strides::batch, &Strides::head, &Strides::row}) {
        refuses(name, [=, stride = stride](Call& call) { call.p.*stride.*each = -8; });
        refuses(name, [=, stride = stride](Call& call) { call.p.*stride.*each = INT64_MAX; });
      }
    }
    refuses("q_out", [](Call& call) { call.p.q_out.head = 15; });
    refuses("k_out", [](Call& call) { call.p.k_out.row = 31; });
    refuses("q", [](Call& call) { call.b.q = nullptr; });
    refuses("k", [](Call& call) { call.b.k = nullptr; });
    refuses("q_out", [](Call& call) { call.b.q_out = nullptr; });
    refuses("k_out", [](Call& call) { call.b.k_out = nullptr; });
    accepts("no heads of k, no k", [](Call& call) {
      call.p.kv_heads = 0;
      call.b.k = nullptr;
      call.b.k_out = nullptr;
    });
    accepts("nothing to do", [](Call& call) {
      call.p.length = 0;
      call.b = {};
    });
    refuses("q", [](Call& call) { call.b.q = moved(call.b.q, 1); });
    refuses("cos", [](Call& call) { call.b.cos = moved(call.b.cos, 2); });
    refuses("frequencies", [](Call& call) { call.b.frequencies = moved(call.b.frequencies, 4); });
    refuses("positions", [](Call& call) { call.b.positions = moved(call.b.positions, 2); });
    // Neighbours touch. One element more, and they overlap.
    refuses("q_out", [](Call& call) { call.b.q_out = moved(call.b.q_out, -2); });
    refuses("k_out", [](Call& call) { call.b.k_out = moved(call.b.k_out, 2); });
    // As a model has them that makes q and k with one product: 2 x 5 tokens of 4 + 2 heads of 16.
    accepts("in place, in one tensor", [](Call& call) {
      call.b.k_out = static_cast<char*>(const_cast<void*>(call.b.q)) + 4 * 16 * 2;
      call.b.k = call.b.k_out;
      call.b.q_out = const_cast<void*>(call.b.q);
      call.b.cos = call.b.sin = nullptr;
      for (Strides* each : {&call.p.q, &call.p.k, &call.p.q_out, &call.p.k_out}) {
        *each = {5 * 6 * 16, 16, 6 * 16};
      }
    });
    accepts("in place", [](Call& call) {
      call.b.q_out = const_cast<void*>(call.b.q);
      call.b.k_out = const_cast<void*>(call.b.k);
    });
    refuses("q_out", [](Call& call) {
      call.b.q_out = const_cast<void*>(call.b.q);
      call.p.q_out.row += 8;
    });
    refuses("q_out", [](Call& call) { call.b.q_out = const_cast<void*>(call.b.k); });
  }
}

TEST_SUITE("launch") {
  TEST_CASE("the kernel runs in the stream it was given, and a launch that fails is reported") {
    // A stream that does not exist shows both.
    if (!tile::device().simulated) return tile::skip("a GPU's driver may crash on such a stream");
    tile::for_each_step(
        kRotaryLadder,
        [](const auto& step, DType type) {
          CAPTURE(step.name);
          const Case c = simple(type, {1, 2, 1, 1, 32, 32});
          const tile::Layout layout = tile::vector_layout(type, 64);
          const DeviceBuffer in = DeviceBuffer::input("in", layout, Values(64, 0.5));
          const DeviceBuffer q_out = DeviceBuffer::output("q_out", layout, Poison::unwritten_nan);
          const DeviceBuffer k_out = DeviceBuffer::output("k_out", layout, Poison::unwritten_nan);
          const DeviceBuffer table =
              DeviceBuffer::input("table", tile::vector_layout(DType::fp64, 32), Values(32, 0.5));
          const RotaryBuffers buffers{.q = in.raw(),
                                      .k = in.raw(),
                                      .q_out = q_out.raw(),
                                      .k_out = k_out.raw(),
                                      .cos = static_cast<const float*>(table.raw()),
                                      .sin = static_cast<const float*>(table.raw()),
                                      .frequencies = static_cast<const double*>(table.raw())};
          int no_stream = 0;
          const Status status = run(*step.ladder, step.number, c.p, buffers, &no_stream);
          CHECK(status.code == tile::Code::device_error);
          const bool named =
              status.message.find("cudaErrorInvalidResourceHandle") != std::string::npos;
          CHECK_MESSAGE(named, status.message);
          for (const DeviceBuffer* out : {&q_out, &k_out}) {
            const Status untouched = out->check_unchanged();
            CHECK_MESSAGE(untouched.ok(), untouched.message);
          }
        },
        tile::OwnKernel::need_not_run);
  }
}

}  // namespace rope
