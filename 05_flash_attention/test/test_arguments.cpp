// Chapter 05's tests: what is refused, by name, and valid arguments close to it.
#include <functional>

#include "test_support.hpp"

namespace flash_attention {
namespace {

/// A valid call: the memory of the tensors follows one another without gaps.
struct Call {
  AttentionForward p = causal(full(DType::bf16, {2, 4, 2, 5, 7, 16})).p;
  Call() {
    // What is here is not read: validate() does not look, and nothing is launched.
    std::uintptr_t next = 4096;
    const auto place = [&next](std::int64_t bytes) {
      const std::uintptr_t here = next;
      next += static_cast<std::uintptr_t>(bytes);
      return reinterpret_cast<void*>(here);
    };
    p.q.data = place(2 * 5 * 4 * 16 * 2);
    p.k.data = place(2 * 7 * 2 * 16 * 2);
    p.v.data = place(2 * 7 * 2 * 16 * 2);
    p.o.data = place(2 * 5 * 4 * 16 * 2);
    p.lse = static_cast<float*>(place(2 * 4 * 5 * 4));
    p.query_lengths = static_cast<const int*>(place(8));
    p.key_lengths = static_cast<const int*>(place(8));
    p.workspace = place(1 << 20);
    p.workspace_bytes = 1 << 20;
  }
};

using Change = std::function<void(Call&)>;

void accepts(const std::string& what, const Change& change) {
  Call call;
  change(call);
  const Status status = validate(call.p);
  CAPTURE(what);
  CHECK_MESSAGE(status.ok(), status.message);
}

/// The message begins with the argument's name.
void refuses(const std::string& name, const Change& change,
             tile::Code code = tile::Code::invalid_argument) {
  Call call;
  change(call);
  const Status status = validate(call.p);
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
    for (const auto& [name, extent] : {std::pair{"batch", &AttentionForward::batch},
                                       {"heads", &AttentionForward::heads},
                                       {"kv_heads", &AttentionForward::kv_heads},
                                       {"queries", &AttentionForward::queries},
                                       {"keys", &AttentionForward::keys},
                                       {"head_dim", &AttentionForward::head_dim},
                                       {"left", &AttentionForward::left},
                                       {"right", &AttentionForward::right}}) {
      refuses(name, [extent = extent](Call& call) { call.p.*extent = -1; });
    }
    for (const auto& [name, extent] : {std::pair{"batch", &AttentionForward::batch},
                                       {"queries", &AttentionForward::queries},
                                       {"keys", &AttentionForward::keys},
                                       {"head_dim", &AttentionForward::head_dim}}) {
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
    static constexpr float kScales[8] = {};
    for (const auto& [name, scale] : {std::pair{"q_scale", &AttentionForward::q_scale},
                                      {"k_scale", &AttentionForward::k_scale},
                                      {"v_scale", &AttentionForward::v_scale}}) {
      const auto with = [scale = scale](const float* data) {
        return [=](Call& call) { call.p.type = DType::e4m3, call.p.*scale = data; };
      };
      refuses(name, [scale = scale](Call& call) { call.p.*scale = kScales; });
      accepts("a scale for each head of k", with(kScales));
      refuses(name, with(moved(kScales, 2)));
    }
    refuses("free_multiprocessors", [](Call& call) { call.p.free_multiprocessors = -1; });
    accepts("any window", [](Call& call) { call.p.left = call.p.right = kMost; });
  }

  TEST_CASE("what only chapters 06 and 07 compute is refused, and not ignored") {
    const auto lacks = [](const char* name, const Change& change) {
      refuses(name, change, tile::Code::unsupported);
    };
    static constexpr float kTable[] = {1};
    static constexpr int kPositions[] = {0};
    lacks("rotary", [](Call& call) { call.p.rotary.cos = kTable; });
    lacks("rotary", [](Call& call) { call.p.rotary.sin = kTable; });
    lacks("rotary", [](Call& call) { call.p.rotary.positions = kPositions; });
    lacks("rotary", [](Call& call) { call.p.rotary.rotary_dim = 16; });
    lacks("q_far", [](Call& call) { call.p.q_far.data = call.p.q.data; });
    lacks("k_far", [](Call& call) { call.p.k_far.data = call.p.k.data; });
    lacks("window", [](Call& call) { call.p.window = 3; });
    lacks("window", [](Call& call) { call.p.window = 0; });
    lacks("distance_part", [](Call& call) { call.p.distance_part = 0.5f; });
    // Backward, these are looked at before any tensor.
    const auto backward_lacks = [](const std::string& name, auto change) {
      AttentionBackward p{full(DType::bf16, {2, 4, 2, 5, 7, 16}).p};
      change(p);
      const Status status = validate(p);
      CHECK(status.code == tile::Code::unsupported);
      CHECK_MESSAGE(status.message.rfind(name + ": ", 0) == 0, status.message);
    };
    static char gradient[16];
    backward_lacks("rotary", [](AttentionBackward& p) { p.rotary.cos = kTable; });
    backward_lacks("q_far", [](AttentionBackward& p) { p.q_far.data = gradient; });
    backward_lacks("k_far", [](AttentionBackward& p) { p.k_far.data = gradient; });
    backward_lacks("dq_far", [](AttentionBackward& p) { p.dq_far.data = gradient; });
    backward_lacks("dk_far", [](AttentionBackward& p) { p.dk_far.data = gradient; });
    backward_lacks("window", [](AttentionBackward& p) { p.window = 3; });
  }

  TEST_CASE("tensors") {
    for (const auto& [name, stride] : {std::pair{"q", &AttentionForward::q},
                                       {"k", &AttentionForward::k},
                                       {"v", &AttentionForward::v},
                                       {"o", &AttentionForward::o}}) {
      for (std::int64_t Strides::*each : {&Strides::batch, &Strides::head, &Strides::row}) {
        refuses(name, [=, stride = stride](Call& call) { (call.p.*stride).stride.*each = -8; });
        refuses(name, [=, stride = stride](Call& call) { (call.p.*stride).stride.*each = kMost; });
        refuses(name, [=, stride = stride](Call& call) {
          (call.p.*stride).stride.*each = kMost / 2 + 1;
        });
      }
    }
    accepts("one head of k for all", [](Call& call) { call.p.k.stride.head = 0; });
    refuses("o", [](Call& call) { call.p.o.stride.head = 0; });
    refuses("o", [](Call& call) { call.p.o.stride.head = 15; });
    refuses("o", [](Call& call) { call.p.o.stride.row = 63; });
    refuses("o", [](Call& call) { call.p.o.stride.batch = 5 * 64 - 1; });

    refuses("q", [](Call& call) { call.p.q.data = nullptr; });
    refuses("k", [](Call& call) { call.p.k.data = nullptr; });
    refuses("v", [](Call& call) { call.p.v.data = nullptr; });
    refuses("o", [](Call& call) { call.p.o.data = nullptr; });
    accepts("what may be missing", [](Call& call) {
      call.p.lse = nullptr;
      call.p.query_lengths = call.p.key_lengths = nullptr;
      call.p.workspace = nullptr;
      call.p.workspace_bytes = 0;
    });
    accepts("no keys, no k", [](Call& call) {
      call.p.keys = 0;
      call.p.k.data = call.p.v.data = nullptr;
    });
    accepts("nothing to do", [](Call& call) {
      call.p = causal(full(DType::bf16, {2, 4, 2, 0, 7, 16})).p;
    });
    refuses("workspace", [](Call& call) { call.p.workspace = nullptr; });
    refuses("workspace", [](Call& call) { call.p.workspace = moved(call.p.workspace, 8); });
    refuses("workspace_bytes", [](Call& call) { call.p.workspace_bytes = -1; });

    refuses("q", [](Call& call) { call.p.q.data = moved(call.p.q.data, 1); });
    refuses("k", [](Call& call) { call.p.k.data = moved(call.p.k.data, 1); });
    refuses("v", [](Call& call) { call.p.v.data = moved(call.p.v.data, 1); });
    refuses("o", [](Call& call) { call.p.o.data = moved(call.p.o.data, 1); });
    refuses("lse", [](Call& call) { call.p.lse = moved(call.p.lse, 2); });
    refuses("query_lengths",
            [](Call& call) { call.p.query_lengths = moved(call.p.query_lengths, 2); });
    refuses("key_lengths", [](Call& call) { call.p.key_lengths = moved(call.p.key_lengths, 2); });
    // Neighbours touch. One element more, and they overlap.
    refuses("o", [](Call& call) { call.p.o.data = moved(call.p.o.data, -2); });
    refuses("lse", [](Call& call) { call.p.lse = moved(call.p.lse, -4); });
    refuses("lse", [](Call& call) { call.p.lse = moved(call.p.lse, 4); });
    refuses("workspace", [](Call& call) { call.p.workspace = moved(call.p.workspace, -16); });
    accepts("inputs in one place", [](Call& call) { call.p.v.data = call.p.k.data; });
  }

  TEST_CASE("the workspace is that of all scores, and only the first step needs it") {
    const AttentionForward p = full(DType::bf16, {1, 16, 16, 131'072, 131'072, 64}).p;
    for (const auto& step : kForward) {
      if (step.is_best && !step.is_best(p)) continue;  // it runs such a call by its name only
      CHECK(workspace_bytes_of(step, p) == (step.name == "scores" ? std::int64_t{1} << 40 : 0));
    }
    AttentionForward most = p;
    most.batch = most.heads = most.queries = most.keys = kMaxLength;
    CHECK(workspace_bytes_of(kForward[0], most) == INT64_MAX);
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
          AttentionForward p = full(type, {1, 1, 1, 4, 4, 64}).p;
          const tile::Layout layout = tile::vector_layout(type, 4 * 64);
          const DeviceBuffer in = DeviceBuffer::input("in", layout, Values(4 * 64, 0.5));
          const DeviceBuffer o = DeviceBuffer::output("o", layout, Poison::unwritten_nan);
          const DeviceBuffer workspace = DeviceBuffer::output(
              "workspace", tile::vector_layout(DType::fp32, 16), Poison::unwritten_nan);
          p.q.data = p.k.data = p.v.data = in.raw();
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

}  // namespace flash_attention
