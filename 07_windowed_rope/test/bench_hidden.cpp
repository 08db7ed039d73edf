// Chapter 07's attention from hidden states for ./tour and the benchmark.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "harness/convert.hpp"
#include "harness/sample.hpp"
#include "harness/workload.hpp"
#include "hidden/hidden.hpp"
#include "hidden/reference.hpp"
#include "hidden/tables.hpp"
#include "ladders.hpp"

namespace windowed_rope {
namespace {

using Numbers = std::vector<std::int64_t>;
using Values = std::vector<double>;

Hidden sizes_of(const Numbers& size, tile::DType type) {
  Hidden p{.type = type,
           .batch = size.at(0),
           .length = size.at(1),
           .heads = size.at(2),
           .head_dim = size.at(3),
           .model_dim = size.at(4),
           .encoding = static_cast<Encoding>(size.at(5))};
  p.window = size.at(6);
  p.scale = 1 / std::sqrt(static_cast<float>(p.head_dim));
  return p;
}

template <class Ladder>
class HiddenWorkload : public tile::LadderWorkload<Ladder> {
 public:
  HiddenWorkload(const Ladder& ladder, const Hidden& p, double products)
      : tile::LadderWorkload<Ladder>(ladder, {p}), products_(products) {
    if (!validate_sizes(p).ok()) return;  // choose() says what is wrong
    const double usual = 1 / std::sqrt(static_cast<double>(p.model_dim));
    x_ = random(this->call_.x, "x", tokens(), p.model_dim, 1, 1);
    wq_ = random(this->call_.wq, "wq", p.model_dim, row(), 2, usual);
    wk_ = random(this->call_.wk, "wk", p.model_dim, row(), 3, usual);
    wv_ = random(this->call_.wv, "wv", p.model_dim, row(), 4, usual);
    const HiddenTables tables = hidden_tables(p);
    if (p.encoding == Encoding::learned) {
      table_ = random(this->call_.table, "table", p.length, p.model_dim, 5, 1);
    } else if (p.encoding == Encoding::sinusoidal) {
      table_ = tile::rounded(tables.sinusoids, p.type);
      this->place(this->call_.table,
                  this->tensors_.input("table", p.type, p.length, p.model_dim, table_));
    }
    const auto floats = [&](const float*& to, const char* name, const std::vector<float>& values) {
      if (values.empty()) return;
      this->place(
          to, this->tensors_.input(name, tile::DType::fp32, p.length, std::ssize(values) / p.length,
                                   Values(values.begin(), values.end())));
    };
    floats(this->call_.cos, "cos", tables.cos);
    floats(this->call_.sin, "sin", tables.sin);
    floats(this->call_.gain, "gain", tables.gain);
    this->call_.workspace_bytes = composed_bytes(this->call_);
    this->call_.workspace = this->tensors_.workspace(this->call_.workspace_bytes);
  }

  std::string name() const override {
    std::string text(tile::name(p().type));
    for (const auto& [what, n] : {std::pair{" B", p().batch},
                                  {" S", p().length},
                                  {" H", p().heads},
                                  {" d", p().head_dim},
                                  {" D", p().model_dim}}) {
      text.append(what).append(std::to_string(n));
    }
    text.append(" ").append(windowed_rope::name(p().encoding));
    if (p().encoding == Encoding::windowed) text.append(" W").append(std::to_string(p().window));
    return text;
  }
  /// The hidden states and o, the weights, and backward what is computed of them.
  double bytes() const override {
    const double elements = static_cast<double>(tokens() * (p().model_dim + row())) +
                            static_cast<double>(3 * p().model_dim * row());
    return elements * (products_ > 3 ? 2 : 1) * static_cast<double>(tile::size_bytes(p().type));
  }
  /// Products with weights, and two for each query and key in attention, backward five.
  double operations() const override {
    const double pairs = static_cast<double>(p().length * (p().length + 1)) / 2;
    const double of_attention = products_ > 3 ? 5 : 2;
    return 2 * static_cast<double>(row()) *
           (products_ * static_cast<double>(tokens() * p().model_dim) +
            of_attention * pairs * static_cast<double>(p().batch));
  }
  tile::DType multiplied_type() const override { return p().type; }
  std::string checked_part() const override {
    return tile::checked_text(tokens(), tokens(), "token");
  }

 protected:
  const Hidden& p() const { return this->call_; }
  std::int64_t tokens() const { return p().batch * p().length; }
  std::int64_t row() const { return p().heads * p().head_dim; }
  HiddenInputs inputs() const { return {x_, wq_, wk_, wv_, table_}; }
  Values random(const void*& to, const char* name, std::int64_t rows, std::int64_t cols,
                std::uint64_t seed, double deviation) {
    this->place(to, this->tensors_.random_input(name, p().type, rows, cols, seed, 0, deviation));
    return this->tensors_.rows_of_last(tile::all_rows(rows));
  }
  template <class T>
  void output(T*& to, const char* name, tile::DType type, std::int64_t rows, std::int64_t cols,
              tile::Expected expected) {
    this->place(to, this->tensors_.output(name, type, rows, cols, tile::all_rows(rows),
                                          std::move(expected)));
  }
  /// From [batch][length][heads] to [batch][heads][length].
  Values of_heads(const Values& of_rows) const {
    Values transposed(of_rows.size());
    for (std::int64_t at = 0; at < std::ssize(of_rows); ++at) {
      const std::int64_t head = at % p().heads, token = at / p().heads;
      const std::int64_t to =
          (token / p().length * p().heads + head) * p().length + token % p().length;
      transposed[static_cast<std::size_t>(to)] = of_rows[static_cast<std::size_t>(at)];
    }
    return transposed;
  }

  double products_;
  Values x_, wq_, wk_, wv_, table_;
};

class Forward : public HiddenWorkload<HiddenLadder> {
 public:
  explicit Forward(const Hidden& p) : HiddenWorkload(kHiddenLadder, p, 3) {
    if (!validate_sizes(p).ok()) return;
    tile::AttentionExpected expected = reference(p, inputs());
    output(call_.o, "o", p.type, tokens(), row(), std::move(expected.o));
    tile::Expected lse = std::move(expected.lse);
    lse.value = of_heads(lse.value), lse.bound = of_heads(lse.bound);
    output(call_.lse, "lse", tile::DType::fp32, p.batch * p.heads, p.length, std::move(lse));
  }
};

class Backward : public HiddenWorkload<HiddenBackwardLadder> {
 public:
  explicit Backward(const Hidden& p) : HiddenWorkload(kHiddenBackwardLadder, p, 9) {
    if (!validate_sizes(p).ok()) return;
    const Values dout = random(call_.dout, "dout", tokens(), row(), 6, 1);
    // o and lse are what a forward pass gives, and the gradients functions of that.
    const tile::AttentionExpected forward = reference(p, inputs());
    const Values o = tile::rounded(forward.o.value, p.type);
    const Values lse = tile::rounded(forward.lse.value, tile::DType::fp32);
    place(call_.o, tensors_.input("o", p.type, tokens(), row(), o));
    place(call_.lse,
          tensors_.input("lse", tile::DType::fp32, p.batch * p.heads, p.length, of_heads(lse)));
    HiddenGradients expected = backward_reference(p, inputs(), o, lse, dout);
    output(call_.dx, "dx", p.type, tokens(), p.model_dim, std::move(expected.dx));
    output(call_.dwq, "dwq", p.type, p.model_dim, row(), std::move(expected.dwq));
    output(call_.dwk, "dwk", p.type, p.model_dim, row(), std::move(expected.dwk));
    output(call_.dwv, "dwv", p.type, p.model_dim, row(), std::move(expected.dwv));
    if (p.encoding != Encoding::learned) return;
    output(call_.dtable, "dtable", p.type, p.length, p.model_dim, std::move(expected.dtable));
  }
  std::string_view direction() const override { return "backward"; }
};

template <class Workload>
std::unique_ptr<tile::Workload> make(const Numbers& size, tile::DType type) {
  tile::require_countable("length", size.at(1), "model_dim", size.at(4));
  if (size.at(5) >= std::ssize(kEncodings)) {
    throw std::invalid_argument("encoding: " + std::to_string(size.at(5)) + " is not 0 to 5");
  }
  return std::make_unique<Workload>(sizes_of(size, type));
}

template <class Ladder>
tile::LadderInfo info_of(const Ladder& ladder, tile::MakeWorkload make) {
  return {.name = ladder.name,
          .kernels = ladder.kernels,
          .steps = tile::infos_of(ladder),
          .extents = {"batch", "length", "heads", "head_dim", "model_dim", "encoding", "window"},
          .size_hint =
              "batch, length, heads, head dimension, model dimension, the encoding (0 learned, 1 "
              "sinusoidal, 2 rotary, 3 ExpoSB, 4 ExpoSB with w = 1, 5 windowed), and its window",
          .make = make,
          .benchmark_sizes = {{1, 2048, 8, 64, 512, 0, 512},
                              {1, 2048, 8, 64, 512, 1, 512},
                              {1, 2048, 8, 64, 512, 2, 512},
                              {1, 2048, 8, 64, 512, 3, 512},
                              {1, 2048, 8, 64, 512, 4, 512},
                              {1, 2048, 8, 64, 512, 5, 512}},
          .benchmark_types = {tile::DType::bf16},
          .whole_tiles = {{{1, 64, 2, 16, 32, 5, 32}, {0, 32, 0, 16, 16, 0, 32}}}};
}

}  // namespace

tile::LadderInfo hidden_info() { return info_of(kHiddenLadder, make<Forward>); }
tile::LadderInfo hidden_backward_info() { return info_of(kHiddenBackwardLadder, make<Backward>); }

}  // namespace windowed_rope
