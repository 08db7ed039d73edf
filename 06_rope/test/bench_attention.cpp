// Chapter 06's attention for ./tour and the benchmark.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "attention.hpp"
#include "harness/sample.hpp"
#include "harness/workload.hpp"
#include "ladders.hpp"
#include "rotation.hpp"
#include "tile/host/cuda_check.hpp"

namespace rope {
namespace {

using Numbers = std::vector<std::int64_t>;
using Values = std::vector<double>;

template <class Problem>
Problem problem_of(const Numbers& size, tile::DType type) {
  Problem p{.type = type,
            .batch = size.at(0),
            .length = size.at(1),
            .heads = size.at(2),
            .kv_heads = size.at(3),
            .head_dim = size.at(4)};
  p.causal = size.at(5) != 0;
  p.layout = size.at(6) != 0 ? Layout::interleaved : Layout::half_split;
  p.scale = 1 / std::sqrt(static_cast<float>(p.head_dim));
  p.table_positions = p.length;
  return p;
}

template <class Ladder>
class AttentionWorkload : public tile::LadderWorkload<Ladder> {
 public:
  using Problem = typename Ladder::Problem;

  AttentionWorkload(const Ladder& ladder, const Problem& p, double products, double tensors_of_q)
      : tile::LadderWorkload<Ladder>(ladder, p),
        frequencies_(paper_frequencies(p.head_dim)),
        rows_(checked_rows()),
        products_(products),
        tensors_of_q_(tensors_of_q) {
    const TestTables tables = tables_of(frequencies_, p.table_positions);
    const auto table = [&](const char* name, const Values& values) {
      return static_cast<const float*>(
          this->tensors_.input(name, tile::DType::fp32, p.table_positions, p.head_dim / 2, values));
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
    text += number("S", p().length) + number("d", p().head_dim);
    text += p().causal ? " causal" : " full";
    return text + (p().layout == Layout::half_split ? " half" : " interleaved");
  }
  double bytes() const override {
    return tensors_of_q_ *
           static_cast<double>(p().batch * p().length * (p().heads + p().kv_heads)) *
           static_cast<double>(p().head_dim) * static_cast<double>(tile::size_bytes(p().type));
  }
  /// Products of head_dim multiply-adds for each pair of a query and a key that it sees.
  double operations() const override {
    const auto n = static_cast<double>(p().length);
    const double pairs = p().causal ? n * (n + 1) / 2 : n * n;
    return 2 * products_ * pairs * static_cast<double>(p().batch * p().heads * p().head_dim);
  }
  tile::DType multiplied_type() const override { return p().type; }
  std::string checked_part() const override {
    return tile::checked_text(std::ssize(rows_), p().batch * p().length, "token");
  }

 protected:
  const Problem& p() const { return this->problem_; }
  /// With this number of multiply-adds the reference takes a fraction of a second. Of larger
  /// problems only some rows are checked.
  Numbers checked_rows() const {
    constexpr std::int64_t kToCheckAll = 1 << 26;
    const std::int64_t tokens = p().batch * p().length;
    const std::int64_t of_all = tokens * p().heads * p().length * p().head_dim;
    return of_all > kToCheckAll ? tile::sample_rows(tokens) : tile::all_rows(tokens);
  }
  void* random(const char* name, std::int64_t heads, std::uint64_t seed) {
    return this->tensors_.random_input(name, p().type, p().batch * p().length, heads * p().head_dim,
                                       seed, 0, 1);
  }
  Values all_of_last() const {
    return this->tensors_.rows_of_last(tile::all_rows(p().batch * p().length));
  }
  void* output(const char* name, std::int64_t heads, tile::Expected expected) {
    return this->tensors_.output(name, p().type, p().batch * p().length, heads * p().head_dim,
                                 rows_, std::move(expected));
  }
  void make_workspace() {
    const std::int64_t bytes = workspace_bytes(p(), "composed");  // which needs the most
    if (bytes == 0) return;
    this->buffers_.workspace = this->tensors_.workspace(bytes);
    this->buffers_.workspace_bytes = bytes;
  }

  Values frequencies_;
  Numbers rows_;                    // tokens that are checked
  double products_, tensors_of_q_;  // tensors as large as q, and as many as k
};

class Forward : public AttentionWorkload<AttentionLadder> {
 public:
  explicit Forward(const AttentionProblem& p) : AttentionWorkload(kAttentionLadder, p, 2, 2) {
    if (!validate_sizes(p).ok()) return;  // choose_step() says what is wrong
    buffers_.q = random("q", p.heads, 1);
    const Values q = tensors_.rows_of_last(rows_);
    buffers_.k = random("k", p.kv_heads, 2);
    const Values k = all_of_last();
    buffers_.v = random("v", p.kv_heads, 3);
    const Values v = all_of_last();
    tile::AttentionExpected expected = reference(p, {q, k, v, frequencies_}, rows_);
    buffers_.o = output("o", p.heads, std::move(expected.o));
    make_workspace();
    // lse is [batch][heads][length]; the reference has the heads of a row together.
    Numbers elements;
    tile::Expected lse;
    for (std::int64_t head = 0; head < p.batch * p.heads; ++head) {
      for (std::size_t i = 0; i < rows_.size(); ++i) {
        if (rows_[i] / p.length != head / p.heads) continue;
        elements.push_back(head * p.length + rows_[i] % p.length);
        const std::size_t at =
            i * static_cast<std::size_t>(p.heads) + static_cast<std::size_t>(head % p.heads);
        lse.value.push_back(expected.lse.value[at]);
        lse.bound.push_back(expected.lse.bound[at]);
      }
    }
    buffers_.lse =
        static_cast<float*>(tensors_.output("lse", tile::DType::fp32, p.batch * p.heads * p.length,
                                            1, std::move(elements), std::move(lse)));
  }
};

class Backward : public AttentionWorkload<AttentionBackwardLadder> {
 public:
  explicit Backward(const AttentionBackwardProblem& p)
      : AttentionWorkload(kAttentionBackwardLadder, p, 5, 4) {
    if (!validate_sizes(p).ok()) return;
    buffers_.q = random("q", p.heads, 1);
    const Values q = all_of_last();
    buffers_.k = random("k", p.kv_heads, 2);
    const Values k = all_of_last();
    buffers_.v = random("v", p.kv_heads, 3);
    const Values v = all_of_last();
    buffers_.dout = random("dout", p.heads, 4);
    const Values dout = all_of_last();
    make_workspace();
    // o and lse are a forward pass's. The gradients are checked as functions of what it gave.
    const auto forward =
        problem_of<AttentionProblem>({p.batch, p.length, p.heads, p.kv_heads, p.head_dim, p.causal,
                                      p.layout == Layout::interleaved},
                                     p.type);
    void* o = random("o", p.heads, 5);
    const std::size_t o_number = tensors_.count() - 1;
    auto* lse = static_cast<float*>(
        tensors_.random_input("lse", tile::DType::fp32, 1, p.batch * p.heads * p.length, 6, 0, 1));
    const AttentionBuffers of_forward{buffers_.q, buffers_.k,   buffers_.v,   o,
                                      lse,        buffers_.cos, buffers_.sin, nullptr};
    tile::Status status =
        run(kAttentionLadder, kAttentionLadder.steps.size() - 1, forward, of_forward, nullptr);
    if (status.ok()) status = tile::synchronize_status(nullptr);
    if (!status.ok()) throw std::runtime_error(status.message);
    buffers_.o = o;
    buffers_.lse = lse;
    const Numbers first_row{0};
    Values of_heads = tensors_.rows_of_last(first_row), of_rows(of_heads.size());
    for (std::int64_t i = 0; i < std::ssize(of_heads); ++i) {
      const std::int64_t head = i / p.length % p.heads, entry = i / p.length / p.heads;
      const std::int64_t row = (entry * p.length + i % p.length) * p.heads + head;
      of_rows[static_cast<std::size_t>(row)] = of_heads[static_cast<std::size_t>(i)];
    }
    const Values all_o = tensors_.rows(o_number, tile::all_rows(p.batch * p.length));
    tile::AttentionGradients expected =
        reference(p, {q, k, v, all_o, of_rows, dout, frequencies_}, rows_, rows_);
    buffers_.dq = output("dq", p.heads, std::move(expected.dq));
    buffers_.dk = output("dk", p.kv_heads, std::move(expected.dk));
    buffers_.dv = output("dv", p.kv_heads, std::move(expected.dv));
  }
  std::string_view direction() const override { return "backward"; }
};

template <class Workload, class Problem>
std::unique_ptr<tile::Workload> make(const Numbers& size, tile::DType type) {
  tile::require_countable("batch", size.at(0), "heads", size.at(2));
  tile::require_countable("length", size.at(1), "head_dim", size.at(4));
  return std::make_unique<Workload>(problem_of<Problem>(size, type));
}

template <class Ladder>
tile::LadderInfo info_of(const Ladder& ladder, tile::MakeWorkload make) {
  return {.name = ladder.name,
          .kernels = ladder.kernels,
          .steps = tile::infos_of(ladder),
          .extents = {"batch", "length", "heads", "kv_heads", "head_dim", "causal", "interleaved"},
          .size_hint =
              "batch, tokens, heads of q, heads of k and v, head dimension, 1 for causal or 0, and "
              "1 for interleaved pairs or 0",
          .make = make,
          .benchmark_sizes = {{2, 8192, 32, 32, 64, 1, 0},
                              {2, 8192, 32, 32, 64, 1, 1},
                              {2, 8192, 32, 8, 128, 1, 0},
                              {2, 8192, 32, 8, 128, 1, 1},
                              {8, 2048, 32, 8, 128, 1, 0}},
          .benchmark_types = {tile::DType::bf16, tile::DType::fp16},
          .whole_tiles = {{{1, 128, 2, 1, 64, 0, 0}, {0, 128, 0, 0, 0, 0, 0}},
                          {{1, 128, 2, 1, 128, 1, 1}, {0, 64, 0, 0, 0, 0, 0}}}};
}

}  // namespace

tile::LadderInfo attention_info() {
  return info_of(kAttentionLadder, make<Forward, AttentionProblem>);
}
tile::LadderInfo attention_backward_info() {
  return info_of(kAttentionBackwardLadder, make<Backward, AttentionBackwardProblem>);
}

}  // namespace rope
