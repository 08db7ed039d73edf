// Chapter 06 for ./tour and the benchmark.
#include <algorithm>

#include "harness/sample.hpp"
#include "harness/workload.hpp"
#include "ladders.hpp"
#include "rotary/reference.hpp"
#include "rotation.hpp"

namespace rope {
namespace {

using Numbers = std::vector<std::int64_t>;
using Values = std::vector<double>;

RotaryProblem problem_of(const Numbers& size, tile::DType type, Pass pass) {
  RotaryProblem p{.type = type,
                  .batch = size.at(0),
                  .length = size.at(1),
                  .heads = size.at(2),
                  .kv_heads = size.at(3),
                  .head_dim = size.at(4),
                  .rotary_dim = size.at(5)};
  p.layout = size.at(6) ? Layout::interleaved : Layout::half_split;
  p.pass = pass;
  p.table_positions = p.length;
  return p;
}

class Rotary : public tile::LadderWorkload<RotaryLadder> {
 public:
  explicit Rotary(const RotaryProblem& p) : LadderWorkload(kRotaryLadder, p), rows_(to_check(p)) {
    const Values frequencies = paper_frequencies(p.rotary_dim);
    place(buffers_.q, input("q", p.heads, 1));
    tile::Expected q = expected_of_last(p.heads, frequencies);
    if (p.kv_heads > 0) {
      place(buffers_.k, input("k", p.kv_heads, 2));
      tile::Expected k = expected_of_last(p.kv_heads, frequencies);
      place(buffers_.k_out, output("k_out", p.kv_heads, std::move(k)));
    }
    place(buffers_.q_out, output("q_out", p.heads, std::move(q)));
    const TestTables tables = tables_of(frequencies, p.table_positions);
    const std::int64_t pairs = p.rotary_dim / 2;
    place(buffers_.cos,
          tensors_.input("cos", tile::DType::fp32, p.table_positions, pairs, tables.cos));
    place(buffers_.sin,
          tensors_.input("sin", tile::DType::fp32, p.table_positions, pairs, tables.sin));
    place(buffers_.frequencies,
          tensors_.input("frequencies", tile::DType::fp64, 1, pairs, frequencies));
  }

  std::string name() const override {
    const RotaryProblem& p = problem_;
    const auto number = [](const char* what, std::int64_t n) {
      return std::string(" ").append(what).append(std::to_string(n));
    };
    std::string text(tile::name(p.type));
    text += number("B", p.batch) + number("S", p.length) + number("H", p.heads);
    text += number("Hkv", p.kv_heads) + number("d", p.head_dim);
    if (p.rotary_dim != p.head_dim) text += number("rot", p.rotary_dim);
    return text + (p.layout == Layout::half_split ? " half" : " interleaved");
  }
  std::string_view direction() const override {
    return problem_.pass == Pass::forward ? "forward" : "backward";
  }
  /// q and k, read and written. The tables are small.
  double bytes() const override {
    const RotaryProblem& p = problem_;
    return 2 * static_cast<double>(p.batch * p.length * (p.heads + p.kv_heads)) *
           static_cast<double>(p.head_dim) * static_cast<double>(tile::size_bytes(p.type));
  }
  std::string checked_part() const override {
    return tile::checked_text(std::ssize(rows_), problem_.batch * problem_.length, "token");
  }

 private:
  static Numbers to_check(const RotaryProblem& p) {
    const std::int64_t tokens = p.batch * p.length;
    constexpr std::int64_t kElementsToCheckAll = 1 << 20;
    return tokens * (p.heads + p.kv_heads) * p.head_dim > kElementsToCheckAll
               ? tile::sample_rows(tokens)
               : tile::all_rows(tokens);
  }
  void* input(const char* name, std::int64_t heads, std::uint64_t seed) {
    return tensors_.random_input(name, problem_.type, problem_.batch * problem_.length,
                                 heads * problem_.head_dim, seed, 0, 1);
  }
  void* output(const char* name, std::int64_t heads, tile::Expected expected) {
    return tensors_.output(name, problem_.type, problem_.batch * problem_.length,
                           heads * problem_.head_dim, rows_, std::move(expected));
  }
  /// Of the rows that are checked, as if they were one batch entry.
  tile::Expected expected_of_last(std::int64_t heads, const Values& frequencies) const {
    RotaryProblem some = problem_;
    some.batch = 1;
    some.length = std::ssize(rows_);
    // A size that is refused comes as far as this: choose() validates it later.
    some.rotary_dim = std::min(some.rotary_dim, some.head_dim);
    std::vector<int> positions;
    for (const std::int64_t row : rows_) {
      positions.push_back(static_cast<int>(row % problem_.length));
    }
    return reference(some, tensors_.rows_of_last(rows_), heads, frequencies, positions,
                     Angles::computed);
  }

  Numbers rows_;  // tokens that are checked
};

template <Pass kPass>
std::unique_ptr<tile::Workload> make(const Numbers& size, tile::DType type) {
  tile::require_countable("batch", size.at(0), "length", size.at(1));
  return std::make_unique<Rotary>(problem_of(size, type, kPass));
}

const tile::LadderInfo kRotaryInfo{
    .name = kRotaryLadder.name,
    .kernels = kRotaryLadder.kernels,
    .steps = tile::infos_of(kRotaryLadder),
    .extents = {"batch", "length", "heads", "kv_heads", "head_dim", "rotary_dim", "interleaved"},
    .size_hint =
        "batch, tokens, heads of q, heads of k, head dimension, how much of it turns, and 1 for "
        "interleaved pairs or 0",
    .make = make<Pass::forward>,
    .benchmark_sizes = {{4, 4096, 32, 8, 64, 64, 0},
                        {4, 4096, 32, 8, 64, 64, 1},
                        {4, 4096, 32, 8, 128, 128, 0},
                        {4, 4096, 32, 8, 128, 128, 1}},
    .benchmark_types = {tile::DType::bf16, tile::DType::fp32, tile::DType::fp16},
    .make_for_benchmark = {make<Pass::backward>},
    .whole_tiles = {{{2, 16, 4, 4, 64, 64, 0}, {0, 16, 4, 4, 0, 0, 0}},
                    {{2, 16, 4, 4, 64, 64, 1}, {0, 16, 4, 4, 0, 0, 0}}}};

const tile::Chapter kChapter{.name = kName,
                             .title = kTitle,
                             .ladders = {kRotaryInfo, attention_info(), attention_backward_info(),
                                         embedding_info(), embedding_backward_info()}};
const tile::RegisterChapter kRegistered{kChapter};

}  // namespace
}  // namespace rope
