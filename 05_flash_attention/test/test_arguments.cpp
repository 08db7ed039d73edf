// Chapter 05's tests: what is refused, by name, and valid arguments close to it.
#include <functional>

#include "test_support.hpp"

namespace flash_attention {
namespace {

/// A valid call: the memory of the tensors follows one another without gaps.
struct Call {
  ForwardProblem p = causal(full(DType::bf16, {2, 4, 2, 5, 7, 16})).p;
  ForwardBuffers b = {};
  Call() {
    // What is here is not read: validate() does not look, and nothing is launched.
    std::uintptr_t next = 4096;
    const auto place = [&next](std::int64_t bytes) {
      const std::uintptr_t here = next;
      next += static_cast<std::uintptr_t>(bytes);
      return reinterpret_cast<void*>(here);
    };
    b.q = place(2 * 5 * 4 * 16 * 2);
    b.k = place(2 * 7 * 2 * 16 * 2);
    b.v = place(2 * 7 * 2 * 16 * 2);
    b.o = place(2 * 5 * 4 * 16 * 2);
    b.lse = static_cast<float*>(place(2 * 4 * 5 * 4));
    b.query_lengths = static_cast<const int*>(place(8));
    b.key_lengths = static_cast<const int*>(place(8));
    b.workspace = place(1 << 20);
    b.workspace_bytes = 1 << 20;
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

constexpr std::int64_t kMost = INT64_MAX;

}  // namespace

TEST_SUITE("chapter") {
  TEST_CASE("extents and options") {
    accepts("as it is", [](Call&) {});
    for (const auto& [name, extent] : {std::pair{"batch", &ForwardProblem::batch},
                                       {"heads", &ForwardProblem::heads},
                                       {"kv_heads", &ForwardProblem::kv_heads},
                                       {"queries", &ForwardProblem::queries},
                                       {"keys", &ForwardProblem::keys},
                                       {"head_dim", &ForwardProblem::head_dim},
                                       {"left", &ForwardProblem::left},
                                       {"right", &ForwardProblem::right}}) {
      refuses(name, [extent = extent](Call& call) { call.p.*extent = -1; });
    }
    for (const auto& [name, extent] : {std::pair{"batch", &ForwardProblem::batch},
                                       {"queries", &ForwardProblem::queries},
                                       {"keys", &ForwardProblem::keys},
                                       {"head_dim", &ForwardProblem::head_dim}}) {
      refuses(
          name, [extent = extent](Call& call) { call.p.*extent = kMost; }, tile::Code::unsupported);
      refuses(
          name, [extent = extent](Call& call) { call.p.*extent = kMaxLength + 1; },
          tile::Code::unsupported);
    }
    refuses("head_dim", [](Call& call) { call.p.head_dim = 0; });
    refuses("kv_heads", [](Call& call) { call.p.kv_heads = 3; });
    refuses("kv_heads", [](Call& call) { call.p.kv_heads = 8; });
    refuses("kv_heads", [](Call& call) { call.p.kv_heads = 0; });
    accepts("one head of k and v", [](Call& call) { call.p.kv_heads = 1; });
    for (const double scale : {0.0, -1.0, kInfinity, kNaN}) {
      refuses("scale", [=](Call& call) { call.p.scale = static_cast<float>(scale); });
    }
    refuses(
        "type", [](Call& call) { call.p.type = DType::tf32; }, tile::Code::unsupported);
    accepts("any window", [](Call& call) { call.p.left = call.p.right = kMost; });
  }

  TEST_CASE("tensors") {
    for (const auto& [name, stride] : {std::pair{"q", &ForwardProblem::q},
                                       {"k", &ForwardProblem::k},
                                       {"v", &ForwardProblem::v},
                                       {"o", &ForwardProblem::o}}) {
      for (std::int64_t Strides::*each : {&Strides::batch, &Strides::head, &Strides::row}) {
        refuses(name, [=, stride = stride](Call& call) { call.p.*stride.*each = -8; });
        refuses(name, [=, stride = stride](Call& call) { call.p.*stride.*each = kMost; });
        refuses(name, [=, stride = stride](Call& call) { call.p.*stride.*each = kMost / 2 + 1; });
      }
    }
    accepts("one head of k for all", [](Call& call) { call.p.k.head = 0; });
    refuses("o", [](Call& call) { call.p.o.head = 0; });
    refuses("o", [](Call& call) { call.p.o.head = 15; });
    refuses("o", [](Call& call) { call.p.o.row = 63; });
    refuses("o", [](Call& call) { call.p.o.batch = 5 * 64 - 1; });

    refuses("q", [](Call& call) { call.b.q = nullptr; });
    refuses("k", [](Call& call) { call.b.k = nullptr; });
    refuses("v", [](Call& call) { call.b.v = nullptr; });
    refuses("o", [](Call& call) { call.b.o = nullptr; });
    accepts("what may be missing", [](Call& call) {
      call.b.lse = nullptr;
      call.b.query_lengths = call.b.key_lengths = nullptr;
      call.b.workspace = nullptr;
      call.b.workspace_bytes = 0;
    });
    accepts("no keys, no k", [](Call& call) {
      call.p.keys = 0;
      call.b.k = call.b.v = nullptr;
    });
    accepts("nothing to do", [](Call& call) {
      call.p.queries = 0;
      call.b = {};
    });
    refuses("workspace", [](Call& call) { call.b.workspace = nullptr; });
    refuses("workspace", [](Call& call) { call.b.workspace = moved(call.b.workspace, 8); });
    refuses("workspace_bytes", [](Call& call) { call.b.workspace_bytes = -1; });

    refuses("q", [](Call& call) { call.b.q = moved(call.b.q, 1); });
    refuses("k", [](Call& call) { call.b.k = moved(call.b.k, 1); });
    refuses("v", [](Call& call) { call.b.v = moved(call.b.v, 1); });
    refuses("o", [](Call& call) { call.b.o = moved(call.b.o, 1); });
    refuses("lse", [](Call& call) { call.b.lse = moved(call.b.lse, 2); });
    refuses("query_lengths",
            [](Call& call) { call.b.query_lengths = moved(call.b.query_lengths, 2); });
    refuses("key_lengths", [](Call& call) { call.b.key_lengths = moved(call.b.key_lengths, 2); });
    // Neighbours touch. One element more, and they overlap.
    refuses("o", [](Call& call) { call.b.o = moved(call.b.o, -2); });
    refuses("lse", [](Call& call) { call.b.lse = moved(call.b.lse, -4); });
    refuses("lse", [](Call& call) { call.b.lse = moved(call.b.lse, 4); });
    refuses("workspace", [](Call& call) { call.b.workspace = moved(call.b.workspace, -16); });
    accepts("inputs in one place", [](Call& call) { call.b.v = call.b.k; });
  }

  TEST_CASE("the workspace is that of all scores, and only the first step needs it") {
    const ForwardProblem p = full(DType::bf16, {1, 16, 16, 131'072, 131'072, 64}).p;
    CHECK(workspace_bytes(p, "scores") == std::int64_t{1} << 40);
    for (const auto& step : kForward) {
      if (step.name != "scores") CHECK(workspace_bytes(p, step.name) == 0);
    }
    ForwardProblem most = p;
    most.batch = most.heads = most.queries = most.keys = kMaxLength;
    CHECK(workspace_bytes(most, "scores") == INT64_MAX);
  }
}

TEST_SUITE("launch") {
  TEST_CASE("the kernel runs in the stream it was given, and a launch that fails is reported") {
    // A stream that does not exist shows both.
    if (!tile::device().simulated) return tile::skip("a GPU's driver may crash on such a stream");
    tile::for_each_step(
        kForwardLadder,
        [](const auto& step, DType type) {
          CAPTURE(step.name);
          const ForwardProblem p = full(type, {1, 1, 1, 4, 4, 64}).p;
          const tile::Layout layout = tile::vector_layout(type, 4 * 64);
          const DeviceBuffer in = DeviceBuffer::input("in", layout, Values(4 * 64, 0.5));
          const DeviceBuffer o = DeviceBuffer::output("o", layout, Poison::unwritten_nan);
          const DeviceBuffer workspace = DeviceBuffer::output(
              "workspace", tile::vector_layout(DType::fp32, 16), Poison::unwritten_nan);
          ForwardBuffers buffers{.q = in.raw(), .k = in.raw(), .v = in.raw(), .o = o.raw()};
          buffers.workspace = workspace.raw();
          buffers.workspace_bytes = 64;
          int no_stream = 0;
          const Status status = run(*step.ladder, step.number, p, buffers, &no_stream);
          CHECK(status.code == tile::Code::device_error);
          const bool named =
              status.message.find("cudaErrorInvalidResourceHandle") != std::string::npos;
          CHECK_MESSAGE(named, status.message);
          const Status untouched = o.check_unchanged();
          CHECK_MESSAGE(untouched.ok(), untouched.message);
        },
        tile::OwnKernel::need_not_run);
  }
}

}  // namespace flash_attention
