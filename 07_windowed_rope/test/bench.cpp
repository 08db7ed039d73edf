// Chapter 07 for ./tour and the benchmark.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "harness/sample.hpp"
#include "harness/workload.hpp"
#include "ladders.hpp"
#include "tile/host/cuda_check.hpp"
#include "windowed/windowed_rope.hpp"

namespace windowed_rope {
namespace {

using Numbers = std::vector<std::int64_t>;
using Values = std::vector<double>;

template <class Ladder>
typename Ladder::Problem problem_of(const Numbers& size, tile::DType type) {
  typename Ladder::Problem p{.type = type,
                             .batch = size.at(0),
                             .heads = size.at(1),
                             .queries = size.at(3),
                             .keys = size.at(4),
                             .head_dim = size.at(5),
                             .kv_heads = size.at(2)};
  p.window = size.at(6);
  p.causal = size.at(7) != 0;
  p.scale = 1 / std::sqrt(static_cast<float>(p.head_dim));
  return p;
}

template <class Ladder>
class Attention : public tile::LadderWorkload<Ladder> {
 public:
  using Problem = typename Ladder::Problem;

  Attention(const Ladder& ladder, const Problem& p)
      : tile::LadderWorkload<Ladder>(ladder, p), rows_(checked_rows(p.batch * p.queries)) {}

  std::string name() const override {
    const auto number = [](const char* what, std::int64_t n) {
      return std::string(" ").append(what).append(std::to_string(n));
    };
    std::string text(tile::name(p().type));
    text += number("B", p().batch) + number("H", p().heads) + number("Hkv", p().kv_heads);
    if (p().queries != p().keys) text += number("Sq", p().queries);
    return text + number("S", p().keys) + number("d", p().head_dim) + number("W", p().window) +
           (p().causal ? " causal" : " full");
  }
  double bytes() const override {
    const double q = static_cast<double>(p().batch * p().queries * p().heads);
    const double k = static_cast<double>(p().batch * p().keys * p().kv_heads);
    return tensors_of_q_ * (q + k) * static_cast<double>(p().head_dim) *
           static_cast<double>(tile::size_bytes(p().type));
  }
  /// Products of head_dim multiply-adds for each pair of a query and a key that it sees, near or
  /// far.
  double operations() const override {
    const Mask mask{static_cast<int>(p().queries), static_cast<int>(p().keys), tile::kMaxLength,
                    p().causal ? 0 : tile::kMaxLength};
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
  /// As much as the step that needs most; the first one needs it for scores.
  template <class Steps>
  void make_workspace(const Steps& steps) {
    std::int64_t bytes = 0;
    for (const auto& step : steps) bytes = std::max(bytes, workspace_bytes(p(), step.name));
    constexpr std::int64_t kMost = std::int64_t{40} << 30;
    if (bytes == 0 || bytes > kMost) return;
    this->buffers_.workspace = this->tensors_.workspace(bytes);
    this->buffers_.workspace_bytes = bytes;
  }

  double products_ = 2, tensors_of_q_ = 3;  // tensors as large as q1, and as many as k1
  Numbers rows_;                            // of queries that are checked
};

class Forward : public Attention<ForwardLadder> {
 public:
  explicit Forward(const ForwardProblem& p) : Attention(kForwardLadder, p) {
    buffers_.q1 = random("q1", p.queries, p.heads, 1);
    const Values q1 = rows_of_last(rows_);
    buffers_.k1 = random("k1", p.keys, p.kv_heads, 2);
    const Values k1 = all_of_last(p.keys);
    buffers_.q2 = random("q2", p.queries, p.heads, 3);
    const Values q2 = rows_of_last(rows_);
    buffers_.k2 = random("k2", p.keys, p.kv_heads, 4);
    const Values k2 = all_of_last(p.keys);
    buffers_.v = random("v", p.keys, p.kv_heads, 5);
    const Values v = all_of_last(p.keys);
    tile::AttentionExpected expected =
        reference(p, {.q = q1, .k = k1, .v = v, .far = {q2, k2}}, rows_);
    buffers_.o = output("o", p.queries, p.heads, rows_, std::move(expected.o));
    make_workspace(kForward);
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

class Backward : public Attention<BackwardLadder> {
 public:
  explicit Backward(const BackwardProblem& p)
      : Attention(kBackwardLadder, p), key_rows_(checked_rows(p.batch * p.keys)) {
    products_ = 5, tensors_of_q_ = 6;
    buffers_.q1 = random("q1", p.queries, p.heads, 1);
    const Values q1 = all_of_last(p.queries);
    buffers_.k1 = random("k1", p.keys, p.kv_heads, 2);
    const Values k1 = all_of_last(p.keys);
    buffers_.q2 = random("q2", p.queries, p.heads, 3);
    const Values q2 = all_of_last(p.queries);
    buffers_.k2 = random("k2", p.keys, p.kv_heads, 4);
    const Values k2 = all_of_last(p.keys);
    buffers_.v = random("v", p.keys, p.kv_heads, 5);
    const Values v = all_of_last(p.keys);
    buffers_.dout = random("dout", p.queries, p.heads, 6);
    const Values dout = all_of_last(p.queries);
    // o and lse are a forward pass's. The gradients are checked as functions of what it gave.
    const ForwardProblem forward = problem_of<ForwardLadder>(
        {p.batch, p.heads, p.kv_heads, p.queries, p.keys, p.head_dim, p.window, p.causal}, p.type);
    void* o = random("o", p.queries, p.heads, 7);
    const std::size_t o_number = tensors_.count() - 1;
    auto* lse = static_cast<float*>(
        tensors_.random_input("lse", tile::DType::fp32, 1, p.batch * p.heads * p.queries, 8, 0, 1));
    const ForwardBuffers of_forward{buffers_.q1, buffers_.k1, buffers_.q2, buffers_.k2,
                                    buffers_.v,  o,           lse};
    tile::Status status =
        run(kForwardLadder, kForwardLadder.steps.size() - 1, forward, of_forward, nullptr);
    if (status.ok()) status = tile::synchronize_status(nullptr);
    if (!status.ok()) throw std::runtime_error(status.message);
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
    tile::AttentionGradients expected = reference(
        p, {.q = q1, .k = k1, .v = v, .o = all_o, .lse = of_rows, .dout = dout, .far = {q2, k2}},
        rows_, key_rows_);
    buffers_.dq1 = output("dq1", p.queries, p.heads, rows_, std::move(expected.dq));
    buffers_.dk1 = output("dk1", p.keys, p.kv_heads, key_rows_, std::move(expected.dk));
    buffers_.dq2 = output("dq2", p.queries, p.heads, rows_, std::move(expected.far_dq));
    buffers_.dk2 = output("dk2", p.keys, p.kv_heads, key_rows_, std::move(expected.far_dk));
    buffers_.dv = output("dv", p.keys, p.kv_heads, key_rows_, std::move(expected.dv));
    make_workspace(kBackward);
  }
  std::string_view direction() const override { return "backward"; }
  std::string checked_part() const override {
    return Attention::checked_part() + ", " +
           tile::checked_text(std::ssize(key_rows_), p().batch * p().keys, "key row");
  }

 private:
  Numbers key_rows_;  // that are checked
};

template <class Workload, class Ladder>
std::unique_ptr<tile::Workload> make(const Numbers& size, tile::DType type) {
  tile::require_countable("batch", size.at(0), "heads", size.at(1));
  tile::require_countable("queries", size.at(3), "keys", size.at(4));
  return std::make_unique<Workload>(problem_of<Ladder>(size, type));
}

template <class Ladder>
tile::LadderInfo info_of(const Ladder& ladder, tile::MakeWorkload make) {
  return {
      .name = ladder.name,
      .kernels = ladder.kernels,
      .steps = tile::infos_of(ladder),
      .extents = {"batch", "heads", "kv_heads", "queries", "keys", "head_dim", "window", "causal"},
      .size_hint =
          "batch, heads of q, heads of k and v, queries, keys, head dimension, window, and 1 for "
          "causal or 0",
      .make = make,
      .benchmark_sizes = {{1, 32, 32, 8192, 8192, 64, 2048, 1},
                          {1, 32, 32, 8192, 8192, 64, 2048, 0},
                          {1, 16, 16, 8192, 8192, 128, 2048, 1},
                          {1, 32, 32, 16384, 16384, 64, 2048, 1}},
      .benchmark_types = {tile::DType::bf16, tile::DType::fp16},
      .whole_tiles = {{{1, 1, 1, 128, 128, 64, 64, 0}, {0, 0, 0, 128, 128, 0, 64, 0}}}};
}

const tile::Chapter kChapter{
    .name = kName,
    .title = kTitle,
    .ladders = {info_of(kForwardLadder, make<Forward, ForwardLadder>),
                info_of(kBackwardLadder, make<Backward, BackwardLadder>), method_info(),
                method_backward_info(), hidden_info(), hidden_backward_info()},
    .side_by_side = side_by_side()};
const tile::RegisterChapter kRegistered{kChapter};

}  // namespace
}  // namespace windowed_rope
