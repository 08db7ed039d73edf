// What callers of C do that nothing in a call forbids: sizes of zero, lengths that are no lengths,
// gradients in one tensor, and several threads.
#include <atomic>
#include <climits>
#include <cmath>
#include <functional>
#include <thread>

#include "harness/c/test_support.hpp"

namespace hostile_test {
namespace {

// Device memory of zeros, which all tensors of a call that are not written can share.
class Zeros {
 public:
  explicit Zeros(std::int64_t bytes) {
    REQUIRE(tile_alloc(&data_, bytes) == TILE_OK);
    const std::vector<char> zeros(static_cast<std::size_t>(bytes));
    REQUIRE(tile_copy_to_device(data_, zeros.data(), bytes) == TILE_OK);
  }
  ~Zeros() { CHECK(tile_free(data_) == TILE_OK); }
  Zeros(const Zeros&) = delete;
  Zeros& operator=(const Zeros&) = delete;
  // Of part `number`; parts are 1 MiB.
  void* part(std::int64_t number) const { return static_cast<char*>(data_) + (number << 20); }

 private:
  void* data_ = nullptr;
};
// From part 8 on there is a workspace: of LayerNorm backward 32 MiB and the sums of its rows.
constexpr std::int64_t kParts = 42;

template <class Args>
Args attention(const Zeros& memory, tile_type type, std::int64_t head_dim) {
  Args a{};
  a.struct_size = sizeof a;
  a.type = type;
  a.batch = 2, a.heads = 2, a.queries = 5, a.keys = 5, a.head_dim = head_dim;
  a.q.data = a.k.data = a.v.data = memory.part(0);
  if constexpr (requires { a.dq; }) {
    a.o.data = a.dout.data = memory.part(0), a.lse = memory.part(0);
    a.dq.data = memory.part(1), a.dk.data = memory.part(2), a.dv.data = memory.part(3);
  } else {
    a.o.data = memory.part(1), a.lse = memory.part(2);
  }
  a.workspace = memory.part(6), a.workspace_bytes = std::int64_t{10} << 20;
  return a;
}
template <class Args>
Args windowed(const Zeros& memory, tile_type type, std::int64_t head_dim) {
  Args a = attention<Args>(memory, type, head_dim);
  a.q_far = a.q, a.k_far = a.k, a.window = 2;
  if constexpr (requires { a.dq; }) a.dq_far.data = memory.part(4), a.dk_far.data = memory.part(5);
  return a;
}
// Of a rotation, which the tensors of a call of `attention` get.
template <class Args>
Args rotated(const Zeros& memory, bool is_far, tile_type type = TILE_FP16,
             std::int64_t head_dim = 64) {
  Args a = attention<Args>(memory, type, head_dim);
  a.causal = 1;
  a.rotation.cos = a.rotation.sin = memory.part(0);
  a.rotation.rotary_dim = head_dim, a.rotation.table_positions = 8;
  if (is_far) a.rotation.far = TILE_FAR_REROPE, a.window = 2;
  return a;
}

tile_softmax_args softmax(const Zeros& memory, std::int64_t cols) {
  tile_softmax_args a{};
  a.struct_size = sizeof a;
  a.type = TILE_FP32, a.rows = 2, a.cols = cols, a.x = memory.part(0), a.y = memory.part(8);
  return a;
}
tile_softmax_backward_args softmax_backward(const Zeros& memory, std::int64_t cols) {
  tile_softmax_backward_args a{};
  a.struct_size = sizeof a;
  a.type = TILE_FP32, a.rows = 2, a.cols = cols;
  a.y = a.dy = memory.part(0), a.dx = memory.part(8);
  return a;
}
tile_layernorm_args layernorm(const Zeros& memory, std::int64_t cols) {
  tile_layernorm_args a{};
  a.struct_size = sizeof a;
  a.type = TILE_FP32, a.rows = 2, a.cols = cols, a.x = memory.part(0), a.y = memory.part(8);
  return a;
}
tile_layernorm_backward_args layernorm_backward(const Zeros& memory, std::int64_t cols) {
  tile_layernorm_backward_args a{};
  a.struct_size = sizeof a;
  a.type = TILE_FP32, a.rows = 2, a.cols = cols;
  a.x = a.dy = a.mean = a.rstd = memory.part(0);
  a.dx = memory.part(4);
  a.workspace = memory.part(8);
  return a;
}

tile_activate_args activate(const Zeros& memory, std::int64_t cols) {
  tile_activate_args a{};
  a.struct_size = sizeof a;
  a.type = TILE_FP32, a.rows = 40, a.cols = cols, a.activation = TILE_GELU;
  a.x = memory.part(0), a.y = memory.part(4);
  return a;
}
tile_activate_backward_args activate_backward(const Zeros& memory, std::int64_t cols) {
  tile_activate_backward_args a{};
  a.struct_size = sizeof a;
  a.type = TILE_FP32, a.rows = 40, a.cols = cols, a.activation = TILE_GELU;
  a.x = a.dy = memory.part(0), a.dx = memory.part(4), a.dbias = memory.part(7);
  a.workspace = memory.part(8), a.workspace_bytes = std::int64_t{4} << 20;
  return a;
}

tile_vector_add_args vector_add(const Zeros& memory, std::int64_t n) {
  tile_vector_add_args a{};
  a.struct_size = sizeof a;
  a.type = TILE_FP32, a.n = n, a.a = a.b = memory.part(0), a.c = memory.part(1);
  return a;
}
tile_matmul_args matmul(const Zeros& memory, std::int64_t size) {
  tile_matmul_args a{};
  a.struct_size = sizeof a;
  a.type = TILE_FP16, a.m = a.n = a.k = size, a.a = a.b = memory.part(0), a.c = memory.part(4);
  a.workspace = memory.part(8), a.workspace_bytes = std::int64_t{4} << 20;
  return a;
}
tile_rotary_args rotary(const Zeros& memory, std::int64_t head_dim) {
  tile_rotary_args a{};
  a.struct_size = sizeof a;
  a.type = TILE_FP32, a.batch = 2, a.length = 5, a.heads = a.kv_heads = 2, a.head_dim = head_dim;
  a.table_positions = 8, a.cos = a.sin = a.q = a.k = memory.part(0);
  a.q_out = memory.part(1), a.k_out = memory.part(2);
  return a;
}
template <class Args>
Args embedding(const Zeros& memory, std::int64_t dim) {
  Args a{};
  a.struct_size = sizeof a;
  a.type = TILE_FP32, a.batch = 2, a.length = 5, a.dim = dim, a.table_positions = dim / 8;
  if constexpr (requires { a.dtable; }) {
    a.dy = memory.part(0), a.dtable = memory.part(1), a.workspace = memory.part(8);
  } else {
    a.table = a.x = memory.part(0), a.y = memory.part(1);
  }
  return a;
}

// Every operation of attention, with a call that it takes, in a form that does not name the struct.
// `visit(name, args, run, tell)`.
template <class Visit>
void for_each_attention(const Zeros& memory, Visit visit) {
  using Forward = tile_attention_args;
  using Backward = tile_attention_backward_args;
  visit("attention", attention<Forward>(memory, TILE_FP16, 64), tile_attention,
        tile_attention_workspace_bytes);
  visit("attention backward", attention<Backward>(memory, TILE_FP16, 64), tile_attention_backward,
        tile_attention_backward_workspace_bytes);
  visit("rotary attention", rotated<Forward>(memory, false), tile_rotary_attention,
        tile_rotary_attention_workspace_bytes);
  visit("rotary attention backward", rotated<Backward>(memory, false),
        tile_rotary_attention_backward, tile_rotary_attention_backward_workspace_bytes);
  visit("windowed attention", windowed<Forward>(memory, TILE_FP16, 64), tile_windowed_attention,
        tile_windowed_attention_workspace_bytes);
  visit("windowed attention backward", windowed<Backward>(memory, TILE_FP16, 64),
        tile_windowed_attention_backward, tile_windowed_attention_backward_workspace_bytes);
  visit("windowed rotary attention", rotated<Forward>(memory, true), tile_windowed_rotary_attention,
        tile_windowed_rotary_attention_workspace_bytes);
  visit("windowed rotary attention backward", rotated<Backward>(memory, true),
        tile_windowed_rotary_attention_backward,
        tile_windowed_rotary_attention_backward_workspace_bytes);
}

}  // namespace

TEST_CASE("hostile: two threads call each operation with a size each") {
  // What most kernels need of shared memory differs by the size, and is more than they have without
  // asking. Other operations choose another kernel or another grid.
  const Zeros first(kParts << 20), second(kParts << 20);
  using Forward = tile_attention_args;
  using Backward = tile_attention_backward_args;
  const auto of = [](auto* run, auto make, auto... options) {
    return [=](const Zeros& memory, std::int64_t size) {
      const auto a = make(memory, options..., size);
      return run(&a);
    };
  };
  struct Operation {
    const char* name;
    std::int64_t large, small;
    std::function<tile_status(const Zeros& memory, std::int64_t size)> call;
  };
  const Operation operations[] = {
      {"vector_add", 100'000, 1'001, of(tile_vector_add, vector_add)},
      {"matmul", 256, 72, of(tile_matmul, matmul)},
      {"activate", 2'000, 1'401, of(tile_activate, activate)},
      {"activate backward", 2'000, 1'400, of(tile_activate_backward, activate_backward)},
      {"softmax", 40'000, 35'000, of(tile_softmax, softmax)},
      {"softmax backward", 20'000, 17'500, of(tile_softmax_backward, softmax_backward)},
      {"layernorm", 40'000, 35'000, of(tile_layernorm, layernorm)},
      {"layernorm backward", 20'000, 14'000, of(tile_layernorm_backward, layernorm_backward)},
      {"attention", 256, 200, of(tile_attention, attention<Forward>, TILE_FP32)},
      {"attention backward", 256, 200, of(tile_attention_backward, attention<Backward>, TILE_FP32)},
      {"rotary", 128, 66, of(tile_rotary, rotary)},
      {"rotary attention", 128, 64, of(tile_rotary_attention, rotated<Forward>, false, TILE_FP16)},
      {"rotary attention backward", 128, 64,
       of(tile_rotary_attention_backward, rotated<Backward>, false, TILE_FP16)},
      {"embedding", 512, 65, of(tile_embedding, embedding<tile_embedding_args>)},
      {"embedding backward", 512, 65,
       of(tile_embedding_backward, embedding<tile_embedding_backward_args>)},
      {"windowed attention", 256, 200, of(tile_windowed_attention, windowed<Forward>, TILE_FP32)},
      {"windowed attention backward", 256, 200,
       of(tile_windowed_attention_backward, windowed<Backward>, TILE_FP32)},
      {"windowed rotary attention", 256, 200,
       of(tile_windowed_rotary_attention, rotated<Forward>, true, TILE_FP32)},
      {"windowed rotary attention backward", 256, 200,
       of(tile_windowed_rotary_attention_backward, rotated<Backward>, true, TILE_FP32)},
  };
  for (const Operation& operation : operations) {
    const std::string name(operation.name);
    CAPTURE(name);
    std::atomic<int> failed = 0;
    std::string why;  // of the last one
    const auto repeat = [&](const Zeros* memory, std::int64_t size, std::string* message) {
      for (int i = 0; i < 20; ++i) {
        if (operation.call(*memory, size) == TILE_OK) continue;
        ++failed;
        *message = tile_last_error();
      }
    };
    std::string other;
    std::thread thread(repeat, &first, operation.large, &other);
    repeat(&second, operation.small, &why);
    thread.join();
    CHECK(tile_synchronize(nullptr) == TILE_OK);
    CHECK_MESSAGE(failed == 0, why, " ", other);
  }
}

TEST_CASE("hostile: no size of zero ends the process, and nothing to compute needs nothing") {
  const Zeros memory(kParts << 20);
  for_each_attention(memory, [&](const char* name, const auto& given, auto* run, auto* tell) {
    const std::string operation(name);
    CAPTURE(operation);
    using Args = std::decay_t<decltype(given)>;
    CHECK_MESSAGE(run(&given) == TILE_OK, std::string(tile_last_error()));
    for (const auto extent : {&Args::batch, &Args::heads, &Args::queries, &Args::keys}) {
      CAPTURE(extent == &Args::keys);
      Args a = given;
      a.*extent = 0;
      const bool is_length = extent == &Args::queries || extent == &Args::keys;
      const bool has_one_length = begins_with(operation, "rotary") && is_length;
      if (has_one_length) a.queries = a.keys = 0;
      std::int64_t bytes = -1;
      // Without keys there are outputs, and without queries gradients of keys.
      const bool is_backward = !std::is_same_v<Args, tile_attention_args>;
      const bool has_outputs = !has_one_length && (is_backward ? is_length : extent == &Args::keys);
      CHECK_MESSAGE(tell(&a, &bytes) == TILE_OK, std::string(tile_last_error()));
      CHECK_MESSAGE(run(&a) == TILE_OK, std::string(tile_last_error()));
      if (has_outputs) continue;
      CHECK(bytes == 0);
      Args nothing{};  // but the sizes
      nothing.struct_size = sizeof nothing, nothing.type = a.type, nothing.causal = a.causal;
      nothing.batch = a.batch, nothing.heads = a.heads, nothing.queries = a.queries;
      nothing.keys = a.keys, nothing.head_dim = a.head_dim;
      nothing.kv_heads = extent == &Args::heads ? 1 : 0;  // of which there still are keys
      nothing.rotation = a.rotation, nothing.window = a.q_far.data ? 0 : a.window;
      nothing.rotation.cos = nothing.rotation.sin = nullptr;
      CHECK_MESSAGE(run(&nothing) == TILE_OK, std::string(tile_last_error()));
      nothing.workspace_bytes = -256;
      check_refused(run(&nothing), TILE_INVALID_ARGUMENT, "workspace_bytes");
    }
  });
}

TEST_CASE("hostile: of attention without a step's name the best that takes it says what blocks") {
  const Zeros memory(kParts << 20);
  auto a = attention<tile_attention_args>(memory, TILE_FP32, 257);  // only `scores` takes it
  std::int64_t bytes = 0;
  check_ok(tile_attention_workspace_bytes(&a, &bytes));
  CHECK(bytes == 2 * 2 * 5 * 5 * 4);
  a.workspace_bytes = bytes;
  check_ok(tile_attention(&a));
  CHECK(std::string(tile_last_step()) == "scores");
  --a.workspace_bytes;
  check_refused(tile_attention(&a), TILE_UNSUPPORTED, "workspace_bytes");
  // The best of several that need more is the one to speak.
  auto b = attention<tile_attention_backward_args>(memory, TILE_FP16, 64);
  check_ok(tile_attention_backward_workspace_bytes(&b, &bytes));
  b.workspace_bytes = bytes;
  check_ok(tile_attention_backward(&b));
  const std::string best = tile_last_step();
  b.workspace_bytes = 0;
  check_refused(tile_attention_backward(&b), TILE_UNSUPPORTED, "workspace_bytes");
  b.step = best.c_str();
  const std::string without_name = tile_last_error();
  check_refused(tile_attention_backward(&b), TILE_UNSUPPORTED, "workspace_bytes");
  CHECK(without_name == tile_last_error());
  // So is the step that runs instead of the one that is named.
  b.type = TILE_FP32, b.step = "mma";
  check_ok(tile_attention_backward_workspace_bytes(&b, &bytes));
  b.workspace_bytes = bytes;
  check_ok(tile_attention_backward(&b));
  CHECK(std::string(tile_last_step()) == "tiles");
  --b.workspace_bytes;
  check_refused(tile_attention_backward(&b), TILE_UNSUPPORTED, "workspace_bytes");
}

TEST_CASE("hostile: gradients in one tensor, whatever the order of its dimensions") {
  const Zeros memory(kParts << 20);
  auto a = attention<tile_attention_backward_args>(memory, TILE_FP16, 64);
  const std::int64_t heads = a.heads * a.head_dim;
  struct Order {
    const char* name;
    std::int64_t batch, row, three;  // in heads
  };
  for (const Order& order : {Order{"[S][B][3][D]", 3, 3 * a.batch, 1},
                             Order{"[B][3][S][D]", 3 * a.queries, 1, a.queries},
                             Order{"[B][S][3][D]", 3 * a.queries, 3, 1}}) {
    CAPTURE(order.name);
    auto* begin = static_cast<std::uint16_t*>(memory.part(1));
    tile_tensor* gradients[] = {&a.dq, &a.dk, &a.dv};
    for (std::int64_t i = 0; i < 3; ++i) {
      gradients[i]->data = begin + i * order.three * heads;
      gradients[i]->strides[0] = order.batch * heads;
      gradients[i]->strides[1] = a.head_dim;
      gradients[i]->strides[2] = order.row * heads;
    }
    check_ok(tile_attention_backward(&a));
    a.dv.data = begin + (2 * order.three - 1) * heads + a.head_dim;  // into dk's last head
    check_refused(tile_attention_backward(&a), TILE_INVALID_ARGUMENT, "dv");
  }
  // A lone batch entry may have any stride.
  a = attention<tile_attention_backward_args>(memory, TILE_FP16, 64);
  a.batch = 1;
  for (std::int64_t stride : {std::int64_t{1}, INT64_MAX}) {
    for (tile_tensor* each : {&a.dq, &a.dk, &a.dv}) {
      each->strides[0] = stride - stride % 8, each->strides[1] = a.head_dim;
      each->strides[2] = 3 * heads;
    }
    auto* begin = static_cast<std::uint16_t*>(memory.part(1));
    a.dq.data = begin, a.dk.data = begin + heads, a.dv.data = begin + 2 * heads;
    check_ok(tile_attention_backward(&a));
  }
}

TEST_CASE(
    "hostile: lengths that are no lengths count as the tensor's and as 0, in references too") {
  constexpr std::int64_t kBatch = 3, kLength = 4, kDim = 8, kAll = kBatch * kLength * kDim;
  const Values x = tile::normal(kAll, DType::fp64, 1);
  const std::vector<std::pair<std::vector<int>, std::vector<int>>> pairs{
      {{9, 4, INT_MAX}, {4, 4, 4}}, {{INT_MIN, -1, 3}, {0, 0, 3}}};
  const auto forward = [&](const std::vector<int>& queries, const std::vector<int>& keys) {
    Values in = x, o(kAll), lse(kBatch * kLength);
    tile_attention_args a{};
    a.struct_size = sizeof a, a.type = TILE_FP64;
    a.batch = kBatch, a.heads = 1, a.queries = a.keys = kLength, a.head_dim = kDim;
    a.q.data = a.k.data = a.v.data = in.data(), a.o.data = o.data(), a.lse = lse.data();
    a.query_lengths = queries.data(), a.key_lengths = keys.data();
    check_ok(tile_attention_reference(&a));
    o.insert(o.end(), lse.begin(), lse.end());
    return o;
  };
  const auto backward = [&](const std::vector<int>& queries, const std::vector<int>& keys) {
    Values in = x, lse(kBatch * kLength, 3.0), dq(kAll), dk(kAll), dv(kAll);
    tile_attention_backward_args a{};
    a.struct_size = sizeof a, a.type = TILE_FP64;
    a.batch = kBatch, a.heads = 1, a.queries = a.keys = kLength, a.head_dim = kDim;
    a.q.data = a.k.data = a.v.data = a.o.data = a.dout.data = in.data(), a.lse = lse.data();
    a.dq.data = dq.data(), a.dk.data = dk.data(), a.dv.data = dv.data();
    a.query_lengths = queries.data(), a.key_lengths = keys.data();
    check_ok(tile_attention_backward_reference(&a));
    for (const Values* more : {&dk, &dv}) dq.insert(dq.end(), more->begin(), more->end());
    return dq;
  };
  const std::vector<int> whole(kBatch, kLength);
  for (const auto& [odd, cut] : pairs) {
    CHECK(forward(odd, whole) == forward(cut, whole));
    CHECK(forward(whole, odd) == forward(whole, cut));
    CHECK(backward(odd, whole) == backward(cut, whole));
    CHECK(backward(whole, odd) == backward(whole, cut));
  }
}

}  // namespace hostile_test
