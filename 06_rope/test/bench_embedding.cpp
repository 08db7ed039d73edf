// The position embeddings of chapter 06 for ./tour and the benchmark.
#include "ladders.hpp"

#include <bit>

#include "embedding/reference.hpp"
#include "harness/sample.hpp"
#include "harness/workload.hpp"

namespace rope {
namespace {

using Numbers = std::vector<std::int64_t>;
using Values = std::vector<double>;

// This number of elements is checked in a fraction of a second. Of larger problems only some rows
// are.
constexpr std::int64_t kElementsToCheckAll = 1 << 20;

/// With ids, each batch entry has two texts, which begin at 0.
class Texts {
 public:
  Texts(const EmbeddingProblem& p, bool two) : p_(p), first_length_((p.length + two) / (1 + two)) {}

  std::int64_t position_of(std::int64_t token) const { return token % p_.length % first_length_; }
  Numbers tokens_at(std::int64_t position) const {
    Numbers tokens;
    for (std::int64_t token = position; token < p_.batch * p_.length; ++token) {
      if (position_of(token) == position) tokens.push_back(token);
    }
    return tokens;
  }
  /// int32 as floats of the same bits: the harness has no buffers of integers.
  Values ids() const {
    Values floats;
    for (std::int64_t token = 0; token < p_.batch * p_.length; ++token) {
      floats.push_back(std::bit_cast<float>(static_cast<int>(position_of(token))));
    }
    return floats;
  }

 private:
  EmbeddingProblem p_;
  std::int64_t first_length_;
};

/// What both passes have.
template <class Ladder>
class OfEmbedding : public tile::LadderWorkload<Ladder> {
 public:
  OfEmbedding(const Ladder& ladder, const EmbeddingProblem& p, bool with_ids, std::int64_t rows)
      : tile::LadderWorkload<Ladder>(ladder, p), with_ids_(with_ids), texts_(p, with_ids) {
    const bool many = p.batch * p.length * p.dim > kElementsToCheckAll;
    rows_ = many ? tile::sample_rows(rows) : tile::all_rows(rows);
  }
  std::string name() const override {
    const EmbeddingProblem& p = this->problem_;
    std::string text(tile::name(p.type));
    text.append(" B").append(std::to_string(p.batch)).append(" S");
    text.append(std::to_string(p.length)).append(" D").append(std::to_string(p.dim));
    return text.append(with_ids_ ? " ids" : "");
  }
  /// The hidden state, as often as it is moved, and the table's rows. The ids are not counted.
  double bytes_of(double hidden_states) const {
    const EmbeddingProblem& p = this->problem_;
    const auto rows = static_cast<double>(p.table_positions) +
                      hidden_states * static_cast<double>(p.batch * p.length);
    return rows * static_cast<double>(p.dim) * static_cast<double>(tile::size_bytes(p.type));
  }

 protected:
  /// After all other tensors.
  void add_ids() {
    if (!with_ids_) return;
    const Values ids = texts_.ids();
    this->place(this->buffers_.positions,
                this->tensors_.input("positions", tile::DType::fp32, 1, std::ssize(ids), ids));
  }

  bool with_ids_;
  Texts texts_;
  Numbers rows_;  // that are checked
};

class Embedding : public OfEmbedding<EmbeddingLadder> {
 public:
  Embedding(const EmbeddingProblem& p, bool with_ids)
      : OfEmbedding(kEmbeddingLadder, p, with_ids, p.batch * p.length) {
    place(buffers_.x, tensors_.random_input("x", p.type, p.batch * p.length, p.dim, 1, 0, 1));
    const Values x = tensors_.rows_of_last(rows_);
    place(buffers_.table,
          tensors_.random_input("table", p.type, p.table_positions, p.dim, 2, 0, 1));
    // The rows that are checked as if they were one text, with a table of the rows that they need.
    Numbers positions;
    for (const std::int64_t token : rows_) positions.push_back(texts_.position_of(token));
    EmbeddingProblem some = p;
    some.batch = 1;
    some.length = some.table_positions = std::ssize(rows_);
    tile::Expected y = reference(some, x, tensors_.rows_of_last(positions));
    y.shape = {some.length, p.dim};
    place(buffers_.y, tensors_.output("y", p.type, p.batch * p.length, p.dim, rows_, std::move(y)));
    add_ids();
  }
  double bytes() const override { return bytes_of(2); }
  std::string checked_part() const override {
    return tile::checked_text(std::ssize(rows_), problem_.batch * problem_.length, "token");
  }
};

class EmbeddingBackward : public OfEmbedding<EmbeddingBackwardLadder> {
 public:
  EmbeddingBackward(const EmbeddingProblem& p, bool with_ids)
      : OfEmbedding(kEmbeddingBackwardLadder, p, with_ids, p.table_positions) {
    place(buffers_.dy, tensors_.random_input("dy", p.type, p.batch * p.length, p.dim, 3, 0, 1));
    // The tokens of the rows that are checked as if they were one text, in their order.
    Numbers tokens;
    std::vector<int> ids;
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      const Numbers here = texts_.tokens_at(rows_[row]);
      tokens.insert(tokens.end(), here.begin(), here.end());
      ids.insert(ids.end(), here.size(), static_cast<int>(row));
    }
    EmbeddingProblem some = p;
    some.batch = 1;
    some.length = std::ssize(tokens);
    some.table_positions = std::ssize(rows_);
    place(buffers_.dtable,
          tensors_.output("dtable", p.type, p.table_positions, p.dim, rows_,
                          backward_reference(some, tensors_.rows_of_last(tokens), ids)));
    buffers_.workspace = tensors_.workspace(sums_bytes(p));
    add_ids();
  }
  std::string_view direction() const override { return "backward"; }
  double bytes() const override { return bytes_of(1); }
  std::string checked_part() const override {
    return tile::checked_text(std::ssize(rows_), problem_.table_positions, "position");
  }
};

template <class Workload>
std::unique_ptr<tile::Workload> make(const Numbers& size, tile::DType type) {
  tile::require_countable("batch", size.at(0), "length", size.at(1));
  tile::require_countable("length", size.at(1), "dim", size.at(2));
  return std::make_unique<Workload>(
      EmbeddingProblem{type, size.at(0), size.at(1), size.at(2), size.at(1)}, size.at(3) != 0);
}

template <class Ladder>
tile::LadderInfo info_of(const Ladder& ladder, tile::MakeWorkload make) {
  return {.name = ladder.name,
          .kernels = ladder.kernels,
          .steps = tile::infos_of(ladder),
          .extents = {"batch", "length", "dim", "ids"},
          .size_hint = "batch, tokens, dimension of the hidden state, and 1 for position ids or 0",
          .make = make,
          .benchmark_sizes = {{4, 4096, 4096, 0}, {4, 4096, 4096, 1}, {16, 1024, 768, 0}},
          .benchmark_types = {tile::DType::bf16, tile::DType::fp32, tile::DType::fp16},
          // Of a thread's batch entries and of the columns of a block.
          .whole_tiles = {{{8, 16, 64, 1}, {4, 16, 0, 0}}, {{2, 4, 4096, 1}, {0, 0, 2048, 0}}}};
}

}  // namespace

tile::LadderInfo embedding_info() { return info_of(kEmbeddingLadder, make<Embedding>); }
tile::LadderInfo embedding_backward_info() {
  return info_of(kEmbeddingBackwardLadder, make<EmbeddingBackward>);
}

}  // namespace rope
