// Chapter 07's tests: what is refused, by name, and valid arguments close to it.
#include <functional>

#include "test_support.hpp"

namespace windowed_rope {
namespace {

/// Valid calls, forward and backward: the memory of the tensors follows one another without gaps.
struct Call {
  AttentionForward p = causal(full(DType::bf16, {2, 4, 2, 5, 7, 16}, 3)).p;
  AttentionBackward backward = Case{p}.backward();
  Call() {
    // What is here is not read: validate() does not look, and nothing is launched.
    std::uintptr_t next = 4096;
    const auto place = [&next](std::int64_t bytes) {
      const std::uintptr_t here = next;
      next += static_cast<std::uintptr_t>(bytes);
      return reinterpret_cast<void*>(here);
    };
    const std::int64_t of_q = 2 * 5 * 4 * 16 * 2, of_k = 2 * 7 * 2 * 16 * 2;
    const auto place_all = [&](auto& call) {
      call.q.data = place(of_q), call.k.data = place(of_k);
      call.q_far.data = place(of_q), call.k_far.data = place(of_k);
      call.v.data = place(of_k), call.o.data = place(of_q);
      call.lse = static_cast<float*>(place(2 * 4 * 5 * 4));
      call.query_lengths = static_cast<const int*>(place(8));
      call.key_lengths = static_cast<const int*>(place(8));
      call.workspace = place(1 << 20);
      call.workspace_bytes = 1 << 20;
    };
    place_all(p);
    place_all(backward);
    backward.dout.data = place(of_q);
    backward.dq.data = place(of_q), backward.dk.data = place(of_k);
    backward.dq_far.data = place(of_q), backward.dk_far.data = place(of_k);
    backward.dv.data = place(of_k);
  }
};

using Change = std::function<void(Call&)>;

Status validated(const Change& change, bool is_backward) {
  Call call;
  change(call);
  return is_backward ? validate(call.backward) : validate(call.p);
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
    for (const auto& [name, extent] : {std::pair{"batch", &AttentionForward::batch},
                                       {"heads", &AttentionForward::heads},
                                       {"kv_heads", &AttentionForward::kv_heads},
                                       {"queries", &AttentionForward::queries},
                                       {"keys", &AttentionForward::keys},
                                       {"head_dim", &AttentionForward::head_dim}}) {
      refuses(name, [extent = extent](Call& call) { call.p.*extent = -1; });
    }
    refuses(
        "queries", [](Call& call) { call.p.queries = kMaxLength + 1; }, tile::Code::unsupported);
    refuses("kv_heads", [](Call& call) { call.p.kv_heads = 3; });
    refuses("scale", [](Call& call) { call.p.scale = 0; });
    refuses("scale", [](Call& call) { call.p.scale = static_cast<float>(kNaN); });
    for (const double part : {-0.1, 1.1, kNaN}) {
      refuses("distance_part",
              [=](Call& call) { call.p.distance_part = static_cast<float>(part); });
    }
    for (const double rate : {-1.0, kInfinity}) {
      refuses("distance_rate",
              [=](Call& call) { call.p.distance_rate = static_cast<float>(rate); });
    }
    refuses(
        "type", [](Call& call) { call.p.type = DType::tf32; }, tile::Code::unsupported);
    for (const std::int64_t window : {std::int64_t{-kMost}, std::int64_t{0}, kMost}) {
      accepts("any window", [=](Call& call) { call.p.window = window; });
    }
    accepts("full attention", [](Call& call) { call.p.right = kUnlimited; });
  }

  TEST_CASE("what only other attentions compute is refused, and not ignored") {
    const auto lacks = [](const char* name, const Change& change) {
      refuses(name, change, tile::Code::unsupported);
    };
    static constexpr float kTable[] = {1};
    lacks("left", [](Call& call) { call.p.left = 3; });
    lacks("right", [](Call& call) { call.p.right = 3; });
    lacks("rotary", [](Call& call) { call.p.rotary.cos = kTable; });
    lacks("rotary", [](Call& call) { call.p.rotary.rotary_dim = 16; });
    lacks("rotary", [](Call& call) { call.p.rotary.far = tile::FarRotation::rerope; });
  }

  TEST_CASE("tensors") {
    using tile::TensorView;
    for (const auto& [name, tensor] : {std::pair{"q", &AttentionForward::q},
                                       {"k", &AttentionForward::k},
                                       {"q_far", &AttentionForward::q_far},
                                       {"k_far", &AttentionForward::k_far},
                                       {"v", &AttentionForward::v},
                                       {"o", &AttentionForward::o}}) {
      const auto with = [tensor = tensor](const std::function<void(TensorView&)>& change) {
        return [=](Call& call) { change(call.p.*tensor); };
      };
      for (std::int64_t Strides::*each : {&Strides::batch, &Strides::head, &Strides::row}) {
        refuses(name, with([=](TensorView& x) { x.stride.*each = -8; }));
        refuses(name, with([=](TensorView& x) { x.stride.*each = kMost; }));
      }
      refuses(name, with([](TensorView& x) { x.data = nullptr; }));
      refuses(name, with([](TensorView& x) { x.data = moved(x.data, 1); }));
    }
    accepts("one head of k for all", [](Call& call) { call.p.k.stride.head = 0; });
    refuses("o", [](Call& call) { call.p.o.stride.head = 15; });
    accepts("what may be missing", [](Call& call) {
      call.p.lse = nullptr;
      call.p.query_lengths = call.p.key_lengths = nullptr;
      call.p.workspace = nullptr;
      call.p.workspace_bytes = 0;
    });
    accepts("no keys, no k", [](Call& call) {
      call.p.keys = 0;
      call.p.k.data = call.p.k_far.data = call.p.v.data = nullptr;
    });
    accepts("nothing to do", [](Call& call) {
      call.p = AttentionForward{static_cast<const tile::Attention&>(call.p)};
      call.p.queries = 0;
      call.p.workspace = nullptr, call.p.workspace_bytes = 0;
    });
    refuses("workspace", [](Call& call) { call.p.workspace = nullptr; });
    // Neighbours touch. One element more, and they overlap.
    refuses("o", [](Call& call) { call.p.o.data = moved(call.p.o.data, -2); });
    refuses("lse", [](Call& call) { call.p.lse = moved(call.p.lse, 4); });
    accepts("inputs in one place", [](Call& call) { call.p.k_far.data = call.p.k.data; });
  }

  TEST_CASE("tensors of the backward pass") {
    const auto accepted = [](const char* what, const Change& change) {
      accepts(what, change, true);
    };
    accepted("as it is", [](Call&) {});
    using tile::TensorView;
    using B = AttentionBackward;
    for (const auto& [name, tensor] : {std::pair{"q", &B::q},
                                       {"k", &B::k},
                                       {"q_far", &B::q_far},
                                       {"k_far", &B::k_far},
                                       {"v", &B::v},
                                       {"o", &B::o},
                                       {"dout", &B::dout},
                                       {"dq", &B::dq},
                                       {"dk", &B::dk},
                                       {"dq_far", &B::dq_far},
                                       {"dk_far", &B::dk_far},
                                       {"dv", &B::dv}}) {
      const auto refused = [name = name,
                            tensor = tensor](const std::function<void(TensorView&)>& change) {
        refuses_backward(name, [=](Call& call) { change(call.backward.*tensor); });
      };
      refused([](TensorView& x) { x.data = nullptr; });
      refused([](TensorView& x) { x.data = moved(x.data, 1); });
      refused([](TensorView& x) { x.stride.row = -8; });
    }
    refuses_backward("lse", [](Call& call) { call.backward.lse = nullptr; });
    refuses_backward("lse", [](Call& call) { call.backward.lse = moved(call.backward.lse, 1); });
    refuses_backward("dk_far",
                     [](Call& call) { call.backward.dk_far.data = call.backward.dk.data; });
    accepted("gradients between one another", [](Call& call) {
      AttentionBackward& p = call.backward;
      p.dk.stride = p.dk_far.stride = {7 * 64, 16, 64};
      p.dk.data = moved(p.dv.data, 1 << 20);
      p.dk_far.data = moved(p.dk.data, 64);
    });
  }

  TEST_CASE("the workspace is that of all scores in the first step, and of sums in the last") {
    const Case c = full(DType::bf16, {1, 16, 16, 131'072, 131'072, 64}, 2048);
    const auto bytes = [](const auto& ladder, const auto& p, std::string_view step) {
      return workspace_bytes_of(ladder.steps[find_step(ladder, step)], p);
    };
    for (const auto& step : kForward) {
      const bool has_scores = step.name == "scores";
      CHECK(workspace_bytes_of(step, c.p) == (has_scores ? std::int64_t{1} << 40 : 0));
    }
    const AttentionBackward b = c.backward();
    CHECK(bytes(kBackwardLadder, b, "scores") == std::int64_t{1} << 41);
    CHECK(bytes(kBackwardLadder, b, "tiles") == std::int64_t{1} << 24);
    CHECK(bytes(kBackwardLadder, b, "mma") == std::int64_t{1} << 24);
    CHECK(bytes(kBackwardLadder, b, "one_pass") == (2 + 64) * (std::int64_t{1} << 24));
    AttentionForward most = c.p;
    most.batch = most.heads = most.queries = most.keys = kMaxLength;
    CHECK(bytes(kForwardLadder, most, "scores") == INT64_MAX);
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
          AttentionForward p = full(type, {1, 1, 1, 4, 4, 64}, 2).p;
          const tile::Layout layout = tile::vector_layout(type, 4 * 64);
          const DeviceBuffer in = DeviceBuffer::input("in", layout, Values(4 * 64, 0.5));
          const DeviceBuffer o = DeviceBuffer::output("o", layout, Poison::unwritten_nan);
          const DeviceBuffer workspace = DeviceBuffer::output(
              "workspace", tile::vector_layout(DType::fp32, 16), Poison::unwritten_nan);
          for (tile::TensorView* x : {&p.q, &p.k, &p.q_far, &p.k_far, &p.v}) x->data = in.raw();
          p.o.data = o.raw();
          p.workspace = workspace.raw();
          p.workspace_bytes = 64;
          int no_stream = 0;
          const Status status = run(*step.ladder, step.number, p, &no_stream);
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
