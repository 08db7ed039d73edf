// The workloads of attention, chapters 05 to 07: random tensors, what a step gives of them, and
// what it costs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "harness/attention_reference.hpp"
#include "harness/sample.hpp"
#include "harness/workload.hpp"
#include "tile/host/attention.hpp"
#include "tile/host/cuda_check.hpp"

namespace tile {

/// Of either pass. Derived classes make the tensors.
template <class Call>
class AttentionWorkload : public LadderWorkload<Ladder<Call>> {
 public:
  /// `what` ends the name: the mask, that and the layout of a rotation's pairs, or the method.
  AttentionWorkload(const Ladder<Call>& ladder, const Call& p, bool has_far_pair, std::string what)
      : LadderWorkload<Ladder<Call>>(ladder, p),
        has_far_pair_(has_far_pair),
        what_(std::move(what)),
        rows_(checked_rows(p.batch * p.queries)) {}

  /// The tables of a rotation.
  void place_tables(std::span<const float> cos, std::span<const float> sin) {
    const auto table = [this](const char* name, std::span<const float> values) {
      return this->tensors_.input(name, DType::fp32, 1, std::ssize(values),
                                  std::vector<double>(values.begin(), values.end()));
    };
    this->place(this->call_.rotary.cos, table("cos", cos));
    this->place(this->call_.rotary.sin, table("sin", sin));
  }

  std::string name() const override {
    std::string text(tile::name(p().type));
    const auto add = [&text](const char* what, std::int64_t n) {
      text.append(" ").append(what).append(std::to_string(n));
    };
    add("B", p().batch), add("H", p().heads), add("Hkv", p().kv_heads);
    if (p().queries != p().keys) add("Sq", p().queries);
    add("S", p().keys), add("d", p().head_dim);
    if (p().window < kUnlimited) add("W", p().window);
    return text.append(" ").append(what_);
  }
  double bytes() const override {
    const auto q = static_cast<double>(p().batch * p().queries * p().heads);
    const auto k = static_cast<double>(p().batch * p().keys * p().kv_heads);
    const auto bytes = static_cast<double>(size_bytes(p().type));
    const double more_of_o = static_cast<double>(size_bytes(output_type(p()))) - bytes;
    return (tensors_of_q() * (q + k) * bytes + q * more_of_o) * static_cast<double>(p().head_dim);
  }
  /// Products of head_dim multiply-adds for each pair of a query and a key that it sees.
  double operations() const override {
    const Mask mask{static_cast<int>(p().queries), static_cast<int>(p().keys),
                    static_cast<int>(p().left), static_cast<int>(p().right)};
    double pairs = 0;
    for (int query = 0; query < mask.queries; ++query) {
      pairs += std::max(0, mask.end_key(query) - mask.first_key(query));
    }
    const int products = kIsForward ? 2 : 5;
    return 2 * products * pairs * static_cast<double>(p().batch * p().heads * p().head_dim);
  }
  DType multiplied_type() const override { return p().type; }
  std::string checked_part() const override {
    return checked_text(std::ssize(rows_), p().batch * p().queries, "query row");
  }

 protected:
  using Numbers = std::vector<std::int64_t>;
  static constexpr bool kIsForward = std::is_same_v<Call, AttentionForward>;

  const Call& p() const { return this->call_; }
  /// Tensors as large as q, and as many as k.
  int tensors_of_q() const {
    if (kIsForward) return has_far_pair_ ? 3 : 2;
    return has_far_pair_ ? 6 : 4;
  }
  /// With this number of multiply-adds the reference takes a fraction of a second. Of larger
  /// problems only some rows are checked.
  Numbers checked_rows(std::int64_t rows) const {
    constexpr std::int64_t kToCheckAll = 1 << 26;
    const std::int64_t of_all = p().batch * p().queries * p().heads * p().keys * p().head_dim;
    return of_all > kToCheckAll ? sample_rows(rows) : all_rows(rows);
  }
  /// Gives the values of these rows, or of all.
  std::vector<double> random(const char* name, TensorView& x, std::int64_t length,
                             std::int64_t heads, const Numbers* of = nullptr) {
    this->place(x.data, this->tensors_.random_input(name, p().type, p().batch * length,
                                                    heads * p().head_dim, ++seed_, 0, 1));
    return this->tensors_.rows_of_last(of ? *of : all_rows(p().batch * length));
  }
  void output(const char* name, TensorView& x, std::int64_t length, std::int64_t heads,
              const Numbers& rows, Expected expected) {
    const DType type = output_type(p());
    this->place(x.data, this->tensors_.output(name, type, p().batch * length, heads * p().head_dim,
                                              rows, std::move(expected)));
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

  bool has_far_pair_;
  std::string what_;
  Numbers rows_;  // of queries that are checked
  std::uint64_t seed_ = 0;
};

class AttentionForwardWorkload : public AttentionWorkload<AttentionForward> {
 public:
  using AttentionWorkload::AttentionWorkload;

  /// What a step should give of these rows of queries.
  using Reference = std::function<AttentionExpected(const AttentionForward&, const AttentionRows&,
                                                    std::span<const std::int64_t> rows)>;
  void make_tensors(const Reference& reference) {
    const std::int64_t heads = p().heads, kv_heads = p().kv_heads;
    AttentionRows in;
    in.q = random("q", call_.q, p().queries, heads, &rows_);
    in.k = random("k", call_.k, p().keys, kv_heads);
    if (has_far_pair_) {
      in.q_far = random("q_far", call_.q_far, p().queries, heads, &rows_);
      in.k_far = random("k_far", call_.k_far, p().keys, kv_heads);
    }
    in.v = random("v", call_.v, p().keys, kv_heads);
    AttentionExpected expected = reference(p(), in, rows_);
    output("o", call_.o, p().queries, heads, rows_, std::move(expected.o));
    make_workspace();
    // lse is [batch][heads][queries]; the reference has the heads of a row together.
    Numbers elements;
    Expected lse;
    for (std::int64_t head = 0; head < p().batch * heads; ++head) {
      for (std::size_t i = 0; i < rows_.size(); ++i) {
        if (rows_[i] / p().queries != head / heads) continue;
        elements.push_back(head * p().queries + rows_[i] % p().queries);
        const std::size_t at =
            i * static_cast<std::size_t>(heads) + static_cast<std::size_t>(head % heads);
        lse.value.push_back(expected.lse.value[at]);
        lse.bound.push_back(expected.lse.bound[at]);
      }
    }
    place(call_.lse, tensors_.output("lse", DType::fp32, p().batch * heads * p().queries, 1,
                                     std::move(elements), std::move(lse)));
  }
};

class AttentionBackwardWorkload : public AttentionWorkload<AttentionBackward> {
 public:
  AttentionBackwardWorkload(const Ladder<AttentionBackward>& ladder, const AttentionBackward& p,
                            bool has_far_pair, std::string what)
      : AttentionWorkload(ladder, p, has_far_pair, std::move(what)),
        key_rows_(checked_rows(p.batch * p.keys)) {}

  using Reference = std::function<AttentionGradients(const AttentionBackward&, const AttentionRows&,
                                                     std::span<const std::int64_t> query_rows,
                                                     std::span<const std::int64_t> key_rows)>;
  /// o and lse are those of the best forward step. The gradients are checked as functions of what
  /// it gave.
  void make_tensors(const Ladder<AttentionForward>& forward, const Reference& reference) {
    const std::int64_t heads = p().heads, kv_heads = p().kv_heads;
    AttentionRows in;
    in.q = random("q", call_.q, p().queries, heads);
    in.k = random("k", call_.k, p().keys, kv_heads);
    if (has_far_pair_) {
      in.q_far = random("q_far", call_.q_far, p().queries, heads);
      in.k_far = random("k_far", call_.k_far, p().keys, kv_heads);
    }
    in.v = random("v", call_.v, p().keys, kv_heads);
    in.dout = random("dout", call_.dout, p().queries, heads);
    make_workspace();
    random("o", call_.o, p().queries, heads);
    const std::size_t o_number = tensors_.count() - 1;
    void* lse = tensors_.random_input("lse", DType::fp32, 1, p().batch * heads * p().queries,
                                      ++seed_, 0, 1);
    place(call_.lse, lse);
    run_forward(forward, static_cast<float*>(lse));
    const Numbers first_row{0};
    const std::vector<double> of_heads = tensors_.rows_of_last(first_row);
    in.lse.resize(of_heads.size());
    for (std::int64_t i = 0; i < std::ssize(of_heads); ++i) {
      const std::int64_t head = i / p().queries % heads, entry = i / p().queries / heads;
      const std::int64_t row = (entry * p().queries + i % p().queries) * heads + head;
      in.lse[static_cast<std::size_t>(row)] = of_heads[static_cast<std::size_t>(i)];
    }
    in.o = tensors_.rows(o_number, all_rows(p().batch * p().queries));
    AttentionGradients expected = reference(p(), in, rows_, key_rows_);
    output("dq", call_.dq, p().queries, heads, rows_, std::move(expected.dq));
    output("dk", call_.dk, p().keys, kv_heads, key_rows_, std::move(expected.dk));
    if (has_far_pair_) {
      output("dq_far", call_.dq_far, p().queries, heads, rows_, std::move(expected.far_dq));
      output("dk_far", call_.dk_far, p().keys, kv_heads, key_rows_, std::move(expected.far_dk));
    }
    output("dv", call_.dv, p().keys, kv_heads, key_rows_, std::move(expected.dv));
  }
  std::string_view direction() const override { return "backward"; }
  std::string checked_part() const override {
    return AttentionWorkload::checked_part() + ", " +
           checked_text(std::ssize(key_rows_), p().batch * p().keys, "key row");
  }

 private:
  /// In the same workspace.
  void run_forward(const Ladder<AttentionForward>& ladder, float* lse) const {
    AttentionForward forward{static_cast<const Attention&>(p())};
    forward.q = p().q, forward.k = p().k, forward.v = p().v, forward.o = p().o;
    forward.q_far = p().q_far, forward.k_far = p().k_far;
    forward.lse = lse;
    Status status = run_last(ladder, forward, nullptr);
    if (status.ok()) status = synchronize_status(nullptr);
    if (!status.ok()) throw std::runtime_error(status.message);
  }

  Numbers key_rows_;  // that are checked
};

}  // namespace tile
