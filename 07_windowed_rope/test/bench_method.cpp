// Chapter 07's methods for ./tour and the benchmark.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "harness/sample.hpp"
#include "harness/workload.hpp"
#include "ladders.hpp"
#include "method/method.hpp"
#include "rotary/frequencies.hpp"
#include "tile/host/cuda_check.hpp"

namespace windowed_rope {
namespace {

using Numbers = std::vector<std::int64_t>;
using Values = std::vector<double>;

struct Rule {
  Method method;
  double factor;
};
constexpr Rule kRules[] = {
    {Method::rerope, 1}, {Method::leaky_rerope, 16}, {Method::self_extend, 8}};

template <class Problem>
Problem problem_of(const Numbers& size, tile::DType type) {
  Problem p{.type = type,
            .batch = size.at(0),
            .heads = size.at(1),
            .queries = size.at(3),
            .keys = size.at(4),
            .head_dim = size.at(5),
            .kv_heads = size.at(2)};
  p.window = size.at(6);
  const Rule& rule = kRules[static_cast<std::size_t>(size.at(7))];
  p.method = rule.method, p.factor = rule.factor;
  p.scale = 1 / std::sqrt(static_cast<float>(p.head_dim));
  p.table_positions = p.keys;
  return p;
}

template <class Ladder>
class MethodWorkload : public tile::LadderWorkload<Ladder> {
 public:
  using Problem = typename Ladder::Problem;

  MethodWorkload(const Ladder& ladder, const Problem& p, double products, double tensors_of_q)
      : tile::LadderWorkload<Ladder>(ladder, p),
        rows_(checked_rows(p.batch * p.queries)),
        products_(products),
        tensors_of_q_(tensors_of_q) {
    if (!validate_sizes(p).ok()) return;  // choose() says what is wrong
    frequencies_ = rope::frequencies({.rotary_dim = p.rotary_dim});
    const MethodTables tables =
        method_tables({p.method, p.window, p.factor}, frequencies_, p.table_positions);
    const auto table = [&](const char* name, const std::vector<float>& values) {
      return static_cast<const float*>(this->tensors_.input(name, tile::DType::fp32,
                                                            3 * p.table_positions, p.rotary_dim / 2,
                                                            Values(values.begin(), values.end())));
    };
    this->buffers_.cos = table("cos", tables.cos);
    this->buffers_.sin = table("sin", tables.sin);
  }

  std::string name() const override {
    const auto number = [](const char* what, std::int64_t n) {
      return std::string(" ").append(what).append(std::to_string(n));
    };
    std::string text(tile::name(p().type));
    text += number("B", p().batch) + number("H", p().heads) + number("Hkv", p().kv_heads);
    if (p().queries != p().keys) text += number("Sq", p().queries);
    text += number("S", p().keys) + number("d", p().head_dim) + number("W", p().window);
    return text.append(" ").append(windowed_rope::name(p().method));
  }
  double bytes() const override {
    const auto q = static_cast<double>(p().batch * p().queries * p().heads);
    const auto k = static_cast<double>(p().batch * p().keys * p().kv_heads);
    return tensors_of_q_ * (q + k) * static_cast<double>(p().head_dim) *
           static_cast<double>(tile::size_bytes(p().type));
  }
  /// Products of head_dim multiply-adds for each pair of a query and a key that it sees.
  double operations() const override {
    const std::int64_t apart = p().keys - p().queries;
    double pairs = 0;
    for (std::int64_t query = 0; query < p().queries; ++query) {
      pairs += static_cast<double>(std::max<std::int64_t>(0, query + apart + 1));
    }
    return 2 * products_ * pairs * static_cast<double>(p().batch * p().heads * p().head_dim);
  }
  tile::DType multiplied_type() const override { return p().type; }
  std::string checked_part() const override {
    return tile::checked_text(std::ssize(rows_), p().batch * p().queries, "query row");
  }

 protected:
  const Problem& p() const { return this->problem_; }
  /// With this number of multiply-adds the reference takes a fraction of a second. Of larger
  /// problems only some rows are checked.
  Numbers checked_rows(std::int64_t rows) const {
    constexpr std::int64_t kToCheckAll = 1 << 26;
    const std::int64_t of_all = p().batch * p().queries * p().heads * p().keys * p().head_dim;
    return of_all > kToCheckAll ? tile::sample_rows(rows) : tile::all_rows(rows);
  }
  void* random(const char* name, std::int64_t length, std::int64_t heads, std::uint64_t seed) {
    return this->tensors_.random_input(name, p().type, p().batch * length, heads * p().head_dim,
                                       seed, 0, 1);
  }
  /// The tensor that was made last, as far as the reference needs it.
  Values rows_of_last(const Numbers& rows) const { return this->tensors_.rows_of_last(rows); }
  Values all_of_last(std::int64_t length) const {
    return rows_of_last(tile::all_rows(p().batch * length));
  }
  void* output(const char* name, std::int64_t length, std::int64_t heads, const Numbers& rows,
               tile::Expected expected) {
    return this->tensors_.output(name, p().type, p().batch * length, heads * p().head_dim, rows,
                                 std::move(expected));
  }
  /// As much as the step that needs most.
  void make_workspace() {
    std::int64_t bytes = 0;
    for (const auto& step : this->ladder_.steps) {
      bytes = std::max(bytes, workspace_bytes(p(), step.name));
    }
    constexpr std::int64_t kMost = std::int64_t{40} << 30;
    if (bytes == 0 || bytes > kMost) return;
    this->buffers_.workspace = this->tensors_.workspace(bytes);
    this->buffers_.workspace_bytes = bytes;
  }

  Values frequencies_;
  Numbers rows_;                    // of queries that are checked
  double products_, tensors_of_q_;  // tensors as large as q, and as many as k
};

class Forward : public MethodWorkload<MethodLadder> {
 public:
  explicit Forward(const MethodProblem& p) : MethodWorkload(kMethodLadder, p, 2, 2) {
    if (!validate_sizes(p).ok()) return;
    buffers_.q = random("q", p.queries, p.heads, 1);
    const Values q = rows_of_last(rows_);
    buffers_.k = random("k", p.keys, p.kv_heads, 2);
    const Values k = all_of_last(p.keys);
    buffers_.v = random("v", p.keys, p.kv_heads, 3);
    const Values v = all_of_last(p.keys);
    tile::AttentionExpected expected = reference(p, {q, k, v, frequencies_}, rows_);
    buffers_.o = output("o", p.queries, p.heads, rows_, std::move(expected.o));
    make_workspace();
    // lse is [batch][heads][queries]; the reference has the heads of a row together.
    Numbers elements;
    tile::Expected lse;
    for (std::int64_t head = 0; head < p.batch * p.heads; ++head) {
      for (std::size_t i = 0; i < rows_.size(); ++i) {
        if (rows_[i] / p.queries != head / p.heads) continue;
        elements.push_back(head * p.queries + rows_[i] % p.queries);
        const std::size_t at =
            i * static_cast<std::size_t>(p.heads) + static_cast<std::size_t>(head % p.heads);
        lse.value.push_back(expected.lse.value[at]);
        lse.bound.push_back(expected.lse.bound[at]);
      }
    }
    buffers_.lse =
        static_cast<float*>(tensors_.output("lse", tile::DType::fp32, p.batch * p.heads * p.queries,
                                            1, std::move(elements), std::move(lse)));
  }
};

class Backward : public MethodWorkload<MethodBackwardLadder> {
 public:
  explicit Backward(const MethodBackwardProblem& p)
      : MethodWorkload(kMethodBackwardLadder, p, 5, 4), key_rows_(checked_rows(p.batch * p.keys)) {
    if (!validate_sizes(p).ok()) return;
    buffers_.q = random("q", p.queries, p.heads, 1);
    const Values q = all_of_last(p.queries);
    buffers_.k = random("k", p.keys, p.kv_heads, 2);
    const Values k = all_of_last(p.keys);
    buffers_.v = random("v", p.keys, p.kv_heads, 3);
    const Values v = all_of_last(p.keys);
    buffers_.dout = random("dout", p.queries, p.heads, 4);
    const Values dout = all_of_last(p.queries);
    make_workspace();
    void* o = random("o", p.queries, p.heads, 5);
    const std::size_t o_number = tensors_.count() - 1;
    auto* lse = static_cast<float*>(
        tensors_.random_input("lse", tile::DType::fp32, 1, p.batch * p.heads * p.queries, 6, 0, 1));
    run_forward(o, lse);
    buffers_.o = o;
    buffers_.lse = lse;
    const Numbers first_row{0};
    Values of_heads = rows_of_last(first_row), of_rows(of_heads.size());
    for (std::int64_t i = 0; i < std::ssize(of_heads); ++i) {
      const std::int64_t head = i / p.queries % p.heads, entry = i / p.queries / p.heads;
      const std::int64_t row = (entry * p.queries + i % p.queries) * p.heads + head;
      of_rows[static_cast<std::size_t>(row)] = of_heads[static_cast<std::size_t>(i)];
    }
    const Values all_o = tensors_.rows(o_number, tile::all_rows(p.batch * p.queries));
    tile::AttentionGradients expected =
        reference(p, {q, k, v, all_o, of_rows, dout, frequencies_}, rows_, key_rows_);
    buffers_.dq = output("dq", p.queries, p.heads, rows_, std::move(expected.dq));
    buffers_.dk = output("dk", p.keys, p.kv_heads, key_rows_, std::move(expected.dk));
    buffers_.dv = output("dv", p.keys, p.kv_heads, key_rows_, std::move(expected.dv));
  }
  std::string_view direction() const override { return "backward"; }
  std::string checked_part() const override {
    return MethodWorkload::checked_part() + ", " +
           tile::checked_text(std::ssize(key_rows_), p().batch * p().keys, "key row");
  }

 private:
  /// o and lse are a forward pass's, in the same workspace. The gradients are checked as functions
  /// of what it gave.
  void run_forward(void* o, float* lse) const {
    MethodProblem forward{.type = p().type,
                          .batch = p().batch,
                          .heads = p().heads,
                          .queries = p().queries,
                          .keys = p().keys,
                          .head_dim = p().head_dim,
                          .kv_heads = p().kv_heads};
    forward.window = p().window, forward.method = p().method, forward.factor = p().factor;
    forward.scale = p().scale, forward.table_positions = p().table_positions;
    MethodBuffers of_forward{buffers_.q, buffers_.k,   buffers_.v,  o,
                             lse,        buffers_.cos, buffers_.sin};
    of_forward.workspace = buffers_.workspace;
    of_forward.workspace_bytes = buffers_.workspace_bytes;
    tile::Status status =
        run(kMethodLadder, kMethodLadder.steps.size() - 1, forward, of_forward, nullptr);
    if (status.ok()) status = tile::synchronize_status(nullptr);
    if (!status.ok()) throw std::runtime_error(status.message);
  }

  Numbers key_rows_;  // that are checked
};

template <class Workload, class Problem>
std::unique_ptr<tile::Workload> make(const Numbers& size, tile::DType type) {
  tile::require_countable("batch", size.at(0), "heads", size.at(1));
  tile::require_countable("queries", size.at(3), "keys", size.at(4));
  if (size.at(7) < 0 || size.at(7) >= std::ssize(kRules)) {
    throw std::invalid_argument("method: " + std::to_string(size.at(7)) + " is not 0, 1 or 2");
  }
  return std::make_unique<Workload>(problem_of<Problem>(size, type));
}

template <class Ladder>
tile::LadderInfo info_of(const Ladder& ladder, tile::MakeWorkload make) {
  return {
      .name = ladder.name,
      .kernels = ladder.kernels,
      .steps = tile::infos_of(ladder),
      .extents = {"batch", "heads", "kv_heads", "queries", "keys", "head_dim", "window", "method"},
      .size_hint =
          "batch, heads of q, heads of k and v, queries, keys, head dimension, window, and 0 for "
          "ReRoPE, 1 for Leaky ReRoPE with factor 16 or 2 for Self-Extend with groups of 8",
      .make = make,
      .benchmark_sizes = {{1, 32, 32, 8192, 8192, 64, 2048, 0},
                          {1, 32, 32, 8192, 8192, 64, 2048, 1},
                          {1, 32, 32, 8192, 8192, 64, 2048, 2},
                          {1, 16, 16, 8192, 8192, 128, 2048, 0},
                          {1, 32, 32, 16384, 16384, 64, 2048, 0}},
      .benchmark_types = {tile::DType::bf16, tile::DType::fp16},
      .whole_tiles = {{{1, 1, 1, 128, 128, 64, 64, 1}, {0, 0, 0, 128, 128, 0, 64, 0}}}};
}

}  // namespace

tile::LadderInfo method_info() { return info_of(kMethodLadder, make<Forward, MethodProblem>); }
tile::LadderInfo method_backward_info() {
  return info_of(kMethodBackwardLadder, make<Backward, MethodBackwardProblem>);
}

}  // namespace windowed_rope
