// Chapter 05 for ./tour and the benchmark.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "harness/sample.hpp"
#include "harness/workload.hpp"
#include "reference.hpp"
#include "tile/host/cuda_check.hpp"

namespace flash_attention {
namespace {

using Numbers = std::vector<std::int64_t>;
using Values = std::vector<double>;

template <class Call>
Call call_of(const Numbers& size, tile::DType type) {
  Call p{{.type = type,
          .batch = size.at(0),
          .heads = size.at(1),
          .queries = size.at(3),
          .keys = size.at(4),
          .head_dim = size.at(5),
          .kv_heads = size.at(2)}};
  if (size.at(6) != 0) p.right = 0;
  p.scale = 1 / std::sqrt(static_cast<float>(p.head_dim));
  return p;
}

template <class Call>
class Attention : public tile::LadderWorkload<tile::Ladder<Call>> {
 public:
  Attention(const tile::Ladder<Call>& ladder, const Call& p)
      : tile::LadderWorkload<tile::Ladder<Call>>(ladder, p),
        rows_(checked_rows(p.batch * p.queries)) {}

  std::string name() const override {
    const auto number = [](const char* what, std::int64_t n) {
      return std::string(" ").append(what).append(std::to_string(n));
    };
    std::string text(tile::name(p().type));
    text += number("B", p().batch) + number("H", p().heads) + number("Hkv", p().kv_heads);
    if (p().queries != p().keys) text += number("Sq", p().queries);
    return text + number("S", p().keys) + number("d", p().head_dim) +
           (p().right == 0 ? " causal" : " full");
  }
  double bytes() const override {
    const double q = static_cast<double>(p().batch * p().queries * p().heads);
    const double k = static_cast<double>(p().batch * p().keys * p().kv_heads);
    return tensors_of_q_ * (q + k) * static_cast<double>(p().head_dim) *
           static_cast<double>(tile::size_bytes(p().type));
  }
  /// Products of head_dim multiply-adds for each pair of a query and a key that it sees.
  double operations() const override {
    const Mask mask{static_cast<int>(p().queries), static_cast<int>(p().keys),
                    static_cast<int>(p().left), static_cast<int>(p().right)};
    double pairs = 0;
    for (int query = 0; query < mask.queries; ++query) {
      pairs += std::max(0, mask.end_key(query) - mask.first_key(query));
    }
    return 2 * products_ * pairs * static_cast<double>(p().batch * p().heads * p().head_dim);
  }
  tile::DType multiplied_type() const override { return p().type; }
  std::string checked_part() const override {
    return tile::checked_text(std::ssize(rows_), p().batch * p().queries, "query row");
  }

 protected:
  const Call& p() const { return this->call_; }
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
  Values all_of_last(std::int64_t length) const {
    return this->tensors_.rows_of_last(tile::all_rows(p().batch * length));
  }
  void* output(const char* name, std::int64_t length, std::int64_t heads, const Numbers& rows,
               tile::Expected expected) {
    return this->tensors_.output(name, p().type, p().batch * length, heads * p().head_dim, rows,
                                 std::move(expected));
  }
  /// For the step that needs the most, unless that is too much: the first one's is for all scores.
  void make_workspace() {
    constexpr std::int64_t kMost = std::int64_t{40} << 30;
    std::int64_t bytes = 0;
    for (const auto& step : this->ladder_.steps) {
      bytes = std::max(bytes, workspace_bytes_of(step, p()));
    }
    if (bytes == 0 || bytes > kMost) return;
    this->call_.workspace = this->tensors_.workspace(bytes);
    this->call_.workspace_bytes = bytes;
  }

  double products_ = 2, tensors_of_q_ = 2;  // tensors as large as q, and as many as k
  Numbers rows_;                            // of queries that are checked
};

class Forward : public Attention<AttentionForward> {
 public:
  explicit Forward(const AttentionForward& p) : Attention(kForwardLadder, p) {
    place(call_.q.data, random("q", p.queries, p.heads, 1));
    const Values q = tensors_.rows_of_last(rows_);
    place(call_.k.data, random("k", p.keys, p.kv_heads, 2));
    const Values k = all_of_last(p.keys);
    place(call_.v.data, random("v", p.keys, p.kv_heads, 3));
    const Values v = all_of_last(p.keys);
    ForwardExpected expected = reference(p, {q, k, v, {}, {}}, rows_);
    place(call_.o.data, output("o", p.queries, p.heads, rows_, std::move(expected.o)));
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
    place(call_.lse, tensors_.output("lse", tile::DType::fp32, p.batch * p.heads * p.queries, 1,
                                     std::move(elements), std::move(lse)));
  }
};

class Backward : public Attention<AttentionBackward> {
 public:
  explicit Backward(const AttentionBackward& p)
      : Attention(kBackwardLadder, p), key_rows_(checked_rows(p.batch * p.keys)) {
    products_ = 5, tensors_of_q_ = 4;
    place(call_.q.data, random("q", p.queries, p.heads, 1));
    const Values q = all_of_last(p.queries);
    place(call_.k.data, random("k", p.keys, p.kv_heads, 2));
    const Values k = all_of_last(p.keys);
    place(call_.v.data, random("v", p.keys, p.kv_heads, 3));
    const Values v = all_of_last(p.keys);
    place(call_.dout.data, random("dout", p.queries, p.heads, 4));
    const Values dout = all_of_last(p.queries);
    // o and lse are a forward pass's. The gradients are checked as functions of what it gave.
    place(call_.o.data, random("o", p.queries, p.heads, 5));
    const std::size_t o_number = tensors_.count() - 1;
    void* lse =
        tensors_.random_input("lse", tile::DType::fp32, 1, p.batch * p.heads * p.queries, 6, 0, 1);
    place(call_.lse, lse);
    AttentionForward forward{p};
    forward.q = call_.q, forward.k = call_.k, forward.v = call_.v, forward.o = call_.o;
    forward.lse = static_cast<float*>(lse);
    tile::Status status = run(kForwardLadder, kForwardLadder.steps.size() - 1, forward, nullptr);
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
    BackwardExpected expected =
        reference(p, {q, k, v, all_o, of_rows, dout, {}, {}}, rows_, key_rows_);
    place(call_.dq.data, output("dq", p.queries, p.heads, rows_, std::move(expected.dq)));
    place(call_.dk.data, output("dk", p.keys, p.kv_heads, key_rows_, std::move(expected.dk)));
    place(call_.dv.data, output("dv", p.keys, p.kv_heads, key_rows_, std::move(expected.dv)));
    make_workspace();
  }
  std::string_view direction() const override { return "backward"; }
  std::string checked_part() const override {
    return Attention::checked_part() + ", " +
           tile::checked_text(std::ssize(key_rows_), p().batch * p().keys, "key row");
  }

 private:
  Numbers key_rows_;  // that are checked
};

template <class Workload, class Call>
std::unique_ptr<tile::Workload> make(const Numbers& size, tile::DType type) {
  tile::require_countable("batch", size.at(0), "heads", size.at(1));
  tile::require_countable("queries", size.at(3), "keys", size.at(4));
  return std::make_unique<Workload>(call_of<Call>(size, type));
}

template <class Ladder>
tile::LadderInfo info_of(const Ladder& ladder, tile::MakeWorkload make) {
  return {.name = ladder.name,
          .kernels = ladder.kernels,
          .steps = tile::infos_of(ladder),
          .extents = {"batch", "heads", "kv_heads", "queries", "keys", "head_dim", "causal"},
          .size_hint =
              "batch, heads of q, heads of k and v, queries, keys, head dimension, and 1 for "
              "causal or 0",
          .make = make,
          .benchmark_sizes = {{8, 32, 32, 2048, 2048, 64, 1},
                              {8, 32, 32, 2048, 2048, 64, 0},
                              {2, 32, 32, 8192, 8192, 64, 1},
                              {2, 32, 32, 8192, 8192, 64, 0},
                              {1, 32, 32, 16384, 16384, 64, 1},
                              {1, 32, 32, 16384, 16384, 64, 0},
                              {8, 16, 16, 2048, 2048, 128, 1},
                              {8, 16, 16, 2048, 2048, 128, 0},
                              {2, 16, 16, 8192, 8192, 128, 1},
                              {2, 16, 16, 8192, 8192, 128, 0},
                              {1, 16, 16, 16384, 16384, 128, 1},
                              {1, 16, 16, 16384, 16384, 128, 0},
                              {2, 32, 8, 8192, 8192, 128, 1}},
          .benchmark_types = {tile::DType::bf16, tile::DType::fp16},
          .whole_tiles = {{{1, 1, 1, 128, 128, 64, 0}, {0, 0, 0, 128, 128, 0, 0}},
                          {{1, 4, 1, 16, 256, 64, 0}, {0, 0, 0, 0, 128, 0, 0}}}};
}

const tile::Chapter kChapter{
    .name = kName,
    .title = kTitle,
    .ladders = {info_of(kForwardLadder, make<Forward, AttentionForward>),
                info_of(kBackwardLadder, make<Backward, AttentionBackward>)}};
const tile::RegisterChapter kRegistered{kChapter};

}  // namespace
}  // namespace flash_attention
