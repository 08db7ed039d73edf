// Chapter 07's tests: what is refused, by name, and valid arguments close to it.
#include <functional>

#include "test_support.hpp"

namespace windowed_rope {
namespace {

/// Valid calls, forward and backward: the memory of the tensors follows one another without gaps.
struct Call {
  ForwardProblem p = causal(full(DType::bf16, {2, 4, 2, 5, 7, 16}, 3)).p;
  ForwardBuffers b = {};
  BackwardProblem of_backward = Case{p}.backward();
  BackwardBuffers backward = {};
  Call() {
    // What is here is not read: validate() does not look, and nothing is launched.
    std::uintptr_t next = 4096;
    const auto place = [&next](std::int64_t bytes) {
      const std::uintptr_t here = next;
      next += static_cast<std::uintptr_t>(bytes);
      return reinterpret_cast<void*>(here);
    };
    const std::int64_t of_q = 2 * 5 * 4 * 16 * 2, of_k = 2 * 7 * 2 * 16 * 2;
    const auto place_all = [&](auto* buffers) {
      buffers->q1 = place(of_q), buffers->k1 = place(of_k);
      buffers->q2 = place(of_q), buffers->k2 = place(of_k);
      buffers->v = place(of_k), buffers->o = place(of_q);
      buffers->lse = static_cast<float*>(place(2 * 4 * 5 * 4));
      buffers->query_lengths = static_cast<const int*>(place(8));
      buffers->key_lengths = static_cast<const int*>(place(8));
      buffers->workspace = place(1 << 20);
      buffers->workspace_bytes = 1 << 20;
    };
    place_all(&b);
    place_all(&backward);
    backward.dout = place(of_q);
    backward.dq1 = place(of_q), backward.dk1 = place(of_k);
    backward.dq2 = place(of_q), backward.dk2 = place(of_k), backward.dv = place(of_k);
  }
};

using Change = std::function<void(Call&)>;

Status validated(const Change& change, bool is_backward) {
  Call call;
  change(call);
  return is_backward ? validate(call.of_backward, call.backward) : validate(call.p, call.b);
}

void accepts(const std::string& what, const Change& change, bool is_backward = false) {
  const Status status = validated(change, is_backward);
  CAPTURE(what);
  CHECK_MESSAGE(status.ok(), status.message);
}

/// The message begins with the argument's name.
void refuses(const std::string& name, const Change& change,
             tile::Code code = tile::Code::invalid_argument, bool is_backward = false) {
  const Status status = validated(change, is_backward);
  CAPTURE(name);
  CHECK(status.code == code);
  CHECK_MESSAGE(status.message.rfind(name + ": ", 0) == 0, status.message);
}
void refuses_backward(const std::string& name, const Change& change) {
  refuses(name, change, tile::Code::invalid_argument, true);
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
                                       {"head_dim", &ForwardProblem::head_dim}}) {
      refuses(name, [extent = extent](Call& call) { call.p.*extent = -1; });
    }
    refuses(
        "queries", [](Call& call) { call.p.queries = kMaxLength + 1; }, tile::Code::unsupported);
    refuses("kv_heads", [](Call& call) { call.p.kv_heads = 3; });
    refuses("scale", [](Call& call) { call.p.scale = 0; });
    refuses("scale", [](Call& call) { call.p.scale = static_cast<float>(kNaN); });
    for (const tile::DistanceFactor factor : {tile::DistanceFactor{-0.1f, 1},
                                              {1.1f, 1},
                                              {static_cast<float>(kNaN), 1},
                                              {0.5f, -1},
                                              {0.5f, static_cast<float>(kInfinity)}}) {
      refuses("distance_factor", [=](Call& call) { call.p.distance_factor = factor; });
    }
    refuses(
        "type", [](Call& call) { call.p.type = DType::tf32; }, tile::Code::unsupported);
    for (const std::int64_t window : {std::int64_t{-kMost}, std::int64_t{0}, kMost}) {
      accepts("any window", [=](Call& call) { call.p.window = window; });
    }
  }

  TEST_CASE("tensors") {
    for (const auto& [name, stride] : {std::pair{"q1", &ForwardProblem::q1},
                                       {"k1", &ForwardProblem::k1},
                                       {"q2", &ForwardProblem::q2},
                                       {"k2", &ForwardProblem::k2},
                                       {"v", &ForwardProblem::v},
                                       {"o", &ForwardProblem::o}}) {
      for (std::int64_t Strides::*each : {&Strides::batch, &Strides::head, &Strides::row}) {
        refuses(name, [=, stride = stride](Call& call) { call.p.*stride.*each = -8; });
        refuses(name, [=, stride = stride](Call& call) { call.p.*stride.*each = kMost; });
      }
    }
    accepts("one head of k1 for all", [](Call& call) { call.p.k1.head = 0; });
    refuses("o", [](Call& call) { call.p.o.head = 15; });

    for (const auto& [name, pointer] : {std::pair{"q1", &ForwardBuffers::q1},
                                        {"k1", &ForwardBuffers::k1},
                                        {"q2", &ForwardBuffers::q2},
                                        {"k2", &ForwardBuffers::k2},
                                        {"v", &ForwardBuffers::v}}) {
      refuses(name, [pointer = pointer](Call& call) { call.b.*pointer = nullptr; });
      refuses(name,
              [pointer = pointer](Call& call) { call.b.*pointer = moved(call.b.*pointer, 1); });
    }
    refuses("o", [](Call& call) { call.b.o = nullptr; });
    refuses("o", [](Call& call) { call.b.o = moved(call.b.o, 1); });
    accepts("what may be missing", [](Call& call) {
      call.b.lse = nullptr;
      call.b.query_lengths = call.b.key_lengths = nullptr;
      call.b.workspace = nullptr;
      call.b.workspace_bytes = 0;
    });
    accepts("no keys, no k", [](Call& call) {
      call.p.keys = 0;
      call.b.k1 = call.b.k2 = call.b.v = nullptr;
    });
    accepts("nothing to do", [](Call& call) {
      call.p.queries = 0;
      call.b = {};
    });
    refuses("workspace", [](Call& call) { call.b.workspace = nullptr; });
    // Neighbours touch. One element more, and they overlap.
    refuses("o", [](Call& call) { call.b.o = moved(call.b.o, -2); });
    refuses("lse", [](Call& call) { call.b.lse = moved(call.b.lse, 4); });
    accepts("inputs in one place", [](Call& call) { call.b.k2 = call.b.k1; });
  }

  TEST_CASE("tensors of the backward pass") {
    const auto accepted = [](const char* what, const Change& change) {
      accepts(what, change, true);
    };
    accepted("as it is", [](Call&) {});
    const auto refused = [](const char* name, auto pointer) {
      refuses_backward(name, [=](Call& call) { call.backward.*pointer = nullptr; });
      refuses_backward(
          name, [=](Call& call) { call.backward.*pointer = moved(call.backward.*pointer, 1); });
    };
    using B = BackwardBuffers;
    for (const auto& [name, pointer] : {std::pair{"q1", &B::q1},
                                        {"k1", &B::k1},
                                        {"q2", &B::q2},
                                        {"k2", &B::k2},
                                        {"v", &B::v},
                                        {"o", &B::o},
                                        {"dout", &B::dout}}) {
      refused(name, pointer);
    }
    refused("lse", &B::lse);
    for (const auto& [name, pointer] : {std::pair{"dq1", &B::dq1},
                                        {"dk1", &B::dk1},
                                        {"dq2", &B::dq2},
                                        {"dk2", &B::dk2},
                                        {"dv", &B::dv}}) {
      refused(name, pointer);
    }
    for (const auto& [name, stride] : {std::pair{"dout", &BackwardProblem::dout},
                                       {"dq1", &BackwardProblem::dq1},
                                       {"dk1", &BackwardProblem::dk1},
                                       {"dq2", &BackwardProblem::dq2},
                                       {"dk2", &BackwardProblem::dk2},
                                       {"dv", &BackwardProblem::dv}}) {
      refuses_backward(name,
                       [stride = stride](Call& call) { (call.of_backward.*stride).row = -8; });
    }
    refuses_backward("dk2", [](Call& call) { call.backward.dk2 = call.backward.dk1; });
    accepted("gradients between one another", [](Call& call) {
      call.of_backward.dk1 = call.of_backward.dk2 = {7 * 64, 16, 64};
      call.backward.dk1 = moved(call.backward.dv, 1 << 20);
      call.backward.dk2 = moved(call.backward.dk1, 64);
    });
  }

  TEST_CASE("the workspace is that of all scores in the first step, and of sums in the last") {
    const ForwardProblem p = full(DType::bf16, {1, 16, 16, 131'072, 131'072, 64}, 2048).p;
    CHECK(workspace_bytes(p, "scores") == std::int64_t{1} << 40);
    for (const auto& step : kForward) {
      if (step.name != "scores") CHECK(workspace_bytes(p, step.name) == 0);
    }
    const BackwardProblem b = Case{p}.backward();
    CHECK(workspace_bytes(b, "scores") == std::int64_t{1} << 41);
    CHECK(workspace_bytes(b, "tiles") == std::int64_t{1} << 24);
    CHECK(workspace_bytes(b, "mma") == std::int64_t{1} << 24);
    CHECK(workspace_bytes(b, "one_pass") == (1 + 64) * (std::int64_t{1} << 24));
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
          const ForwardProblem p = full(type, {1, 1, 1, 4, 4, 64}, 2).p;
          const tile::Layout layout = tile::vector_layout(type, 4 * 64);
          const DeviceBuffer in = DeviceBuffer::input("in", layout, Values(4 * 64, 0.5));
          const DeviceBuffer o = DeviceBuffer::output("o", layout, Poison::unwritten_nan);
          const DeviceBuffer workspace = DeviceBuffer::output(
              "workspace", tile::vector_layout(DType::fp32, 16), Poison::unwritten_nan);
          ForwardBuffers buffers{.q1 = in.raw(),
                                 .k1 = in.raw(),
                                 .q2 = in.raw(),
                                 .k2 = in.raw(),
                                 .v = in.raw(),
                                 .o = o.raw()};
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

}  // namespace windowed_rope
