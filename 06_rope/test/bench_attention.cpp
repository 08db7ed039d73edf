// Chapter 06's attention for ./tour and the benchmark.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "attention/reference.hpp"
#include "harness/sample.hpp"
#include "harness/workload.hpp"
#include "ladders.hpp"
#include "rotation.hpp"
#include "tile/host/cuda_check.hpp"

namespace rope {
namespace {

using Numbers = std::vector<std::int64_t>;
using Values = std::vector<double>;

template <class Call>
Call call_of(const Numbers& size, tile::DType type) {
  Call p{{.type = type,
          .batch = size.at(0),
          .heads = size.at(2),
          .queries = size.at(1),
          .keys = size.at(1),
          .head_dim = size.at(4),
          .kv_heads = size.at(3)}};
  p.right = size.at(5) != 0 ? 0 : tile::kUnlimited;
  p.scale = 1 / std::sqrt(static_cast<float>(p.head_dim));
  p.rotary.layout = size.at(6) != 0 ? Layout::interleaved : Layout::half_split;
  p.rotary.rotary_dim = p.head_dim;
  p.rotary.table_positions = p.queries;
  return p;
}

template <class Ladder>
class AttentionWorkload : public tile::LadderWorkload<Ladder> {
 public:
  using Call = typename Ladder::Problem;

  AttentionWorkload(const Ladder& ladder, const Call& p, double products, double tensors_of_q)
      : tile::LadderWorkload<Ladder>(ladder, p),
        frequencies_(paper_frequencies(p.head_dim)),
        rows_(checked_rows()),
        products_(products),
        tensors_of_q_(tensors_of_q) {
    const std::int64_t positions = p.rotary.table_positions;
    const TestTables tables = tables_of(frequencies_, positions);
    const auto table = [&](const char* name, const Values& values) {
      return this->tensors_.input(name, tile::DType::fp32, positions, p.head_dim / 2, values);
    };
    this->place(this->call_.rotary.cos, table("cos", tables.cos));
    this->place(this->call_.rotary.sin, table("sin", tables.sin));
  }

  std::string name() const override {
    const auto number = [](const char* what, std::int64_t n) {
      return std::string(" ").append(what).append(std::to_string(n));
    };
    std::string text(tile::name(p().type));
    text += number("B", p().batch) + number("H", p().heads) + number("Hkv", p().kv_heads);
    text += number("S", p().queries) + number("d", p().head_dim);
    text += p().right == 0 ? " causal" : " full";
    return text + (p().rotary.layout == Layout::half_split ? " half" : " interleaved");
  }
  double bytes() const override {
    return tensors_of_q_ *
           static_cast<double>(p().batch * p().queries * (p().heads + p().kv_heads)) *
           static_cast<double>(p().head_dim) * static_cast<double>(tile::size_bytes(p().type));
  }
  /// Products of head_dim multiply-adds for each pair of a query and a key that it sees.
  double operations() const override {
    const auto n = static_cast<double>(p().queries);
    const double pairs = p().right == 0 ? n * (n + 1) / 2 : n * n;
    return 2 * products_ * pairs * static_cast<double>(p().batch * p().heads * p().head_dim);
  }
  tile::DType multiplied_type() const override { return p().type; }
  std::string checked_part() const override {
    return tile::checked_text(std::ssize(rows_), p().batch * p().queries, "token");
  }

 protected:
  const Call& p() const { return this->call_; }
  /// With this number of multiply-adds the reference takes a fraction of a second. Of larger
  /// problems only some rows are checked.
  Numbers checked_rows() const {
    constexpr std::int64_t kToCheckAll = 1 << 26;
    const std::int64_t tokens = p().batch * p().queries;
    const std::int64_t of_all = tokens * p().heads * p().queries * p().head_dim;
    return of_all > kToCheckAll ? tile::sample_rows(tokens) : tile::all_rows(tokens);
  }
  void place_random(tile::TensorView* x, const char* name, std::int64_t heads, std::uint64_t seed) {
    this->place(x->data, this->tensors_.random_input(name, p().type, p().batch * p().queries,
                                                     heads * p().head_dim, seed, 0, 1));
  }
  Values all_of_last() const {
    return this->tensors_.rows_of_last(tile::all_rows(p().batch * p().queries));
  }
  void place_output(tile::TensorView* x, const char* name, std::int64_t heads,
                    tile::Expected expected) {
    this->place(x->data, this->tensors_.output(name, p().type, p().batch * p().queries,
                                               heads * p().head_dim, rows_, std::move(expected)));
  }
  void make_workspace() {
    // Of step `composed`, which needs the most.
    const std::int64_t bytes = workspace_bytes_of(this->ladder_.steps.front(), p());
    if (bytes == 0) return;
    this->call_.workspace = this->tensors_.workspace(bytes);
    this->call_.workspace_bytes = bytes;
  }

  Values frequencies_;
  Numbers rows_;                    // tokens that are checked
  double products_, tensors_of_q_;  // tensors as large as q, and as many as k
};

class Forward : public AttentionWorkload<AttentionLadder> {
 public:
  explicit Forward(const AttentionForward& p) : AttentionWorkload(kAttentionLadder, p, 2, 2) {
    if (!validate_sizes(p).ok()) return;  // choose() says what is wrong
    place_random(&call_.q, "q", p.heads, 1);
    const Values q = tensors_.rows_of_last(rows_);
    place_random(&call_.k, "k", p.kv_heads, 2);
    const Values k = all_of_last();
    place_random(&call_.v, "v", p.kv_heads, 3);
    const Values v = all_of_last();
    tile::AttentionExpected expected = reference(p, {q, k, v, frequencies_}, rows_);
    place_output(&call_.o, "o", p.heads, std::move(expected.o));
    make_workspace();
    // lse is [batch][heads][length]; the reference has the heads of a row together.
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
    place(call_.lse, tensors_.output("lse", tile::DType::fp32, p.batch * p.heads * p.queries, 1,
                                     std::move(elements), std::move(lse)));
  }
};

class Backward : public AttentionWorkload<AttentionBackwardLadder> {
 public:
  explicit Backward(const AttentionBackward& p)
      : AttentionWorkload(kAttentionBackwardLadder, p, 5, 4) {
    if (!validate_sizes(p).ok()) return;
    place_random(&call_.q, "q", p.heads, 1);
    const Values q = all_of_last();
    place_random(&call_.k, "k", p.kv_heads, 2);
    const Values k = all_of_last();
    place_random(&call_.v, "v", p.kv_heads, 3);
    const Values v = all_of_last();
    place_random(&call_.dout, "dout", p.heads, 4);
    const Values dout = all_of_last();
    make_workspace();
    // o and lse are a forward pass's. The gradients are checked as functions of what it gave.
    place_random(&call_.o, "o", p.heads, 5);
    const std::size_t o_number = tensors_.count() - 1;
    place(call_.lse, tensors_.random_input("lse", tile::DType::fp32, 1,
                                           p.batch * p.heads * p.queries, 6, 0, 1));
    AttentionForward forward{static_cast<const tile::Attention&>(call_)};
    forward.q = call_.q, forward.k = call_.k, forward.v = call_.v, forward.o = call_.o;
    forward.lse = const_cast<float*>(call_.lse);
    forward.workspace = nullptr, forward.workspace_bytes = 0;
    tile::Status status = run_last(kAttentionLadder, forward, nullptr);
    if (status.ok()) status = tile::synchronize_status(nullptr);
    if (!status.ok()) throw std::runtime_error(status.message);
    const Numbers first_row{0};
    Values of_heads = tensors_.rows_of_last(first_row), of_rows(of_heads.size());
    for (std::int64_t i = 0; i < std::ssize(of_heads); ++i) {
      const std::int64_t head = i / p.queries % p.heads, entry = i / p.queries / p.heads;
      const std::int64_t row = (entry * p.queries + i % p.queries) * p.heads + head;
      of_rows[static_cast<std::size_t>(row)] = of_heads[static_cast<std::size_t>(i)];
    }
    const Values all_o = tensors_.rows(o_number, tile::all_rows(p.batch * p.queries));
    tile::AttentionGradients expected =
        reference(p, {q, k, v, all_o, of_rows, dout, frequencies_}, rows_, rows_);
    place_output(&call_.dq, "dq", p.heads, std::move(expected.dq));
    place_output(&call_.dk, "dk", p.kv_heads, std::move(expected.dk));
    place_output(&call_.dv, "dv", p.kv_heads, std::move(expected.dv));
  }
  std::string_view direction() const override { return "backward"; }
};

template <class Workload, class Call>
std::unique_ptr<tile::Workload> make(const Numbers& size, tile::DType type) {
  tile::require_countable("batch", size.at(0), "heads", size.at(2));
  tile::require_countable("length", size.at(1), "head_dim", size.at(4));
  return std::make_unique<Workload>(call_of<Call>(size, type));
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
  return info_of(kAttentionLadder, make<Forward, AttentionForward>);
}
tile::LadderInfo attention_backward_info() {
  return info_of(kAttentionBackwardLadder, make<Backward, AttentionBackward>);
}

}  // namespace rope
