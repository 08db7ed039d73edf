// What the tests of the position embeddings share: problems, and how a step is run and checked.
#pragma once

#include <doctest/doctest.h>

#include <bit>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "embedding/reference.hpp"
#include "harness/buffer.hpp"
#include "harness/convert.hpp"
#include "harness/inputs.hpp"
#include "harness/tensor.hpp"
#include "harness/test_main.hpp"
#include "tile/host/device.hpp"

namespace rope::embedding {

using tile::Comparison;
using tile::DeviceBuffer;
using tile::DType;
using tile::Poison;
using tile::Status;
using Values = std::vector<double>;
using Ids = std::vector<int>;
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr auto need_not_run = tile::OwnKernel::need_not_run;

using ForwardStep = tile::TestedStep<EmbeddingLadder>;
using BackwardStep = tile::TestedStep<EmbeddingBackwardLadder>;

/// A problem, and what is not in it.
struct EmbeddingCase {
  EmbeddingProblem p;
  Ids ids = {};  // of each token; none: they count
  struct Offsets {
    std::int64_t tokens = 0, table = 0, y = 0, ids = 0;  // elements from a 256-byte boundary
  } offset = {};
  bool in_place = false, has_x = true;
};

/// With a table that ends with the last token's position.
inline EmbeddingCase simple(DType type, std::int64_t batch, std::int64_t length, std::int64_t dim) {
  return {{type, batch, length, dim, length}};
}

inline std::int64_t tokens_of(const EmbeddingProblem& p) { return p.batch * p.length; }
inline Values normal_tokens(const EmbeddingProblem& p) {
  return tile::normal(tokens_of(p) * p.dim, p.type, 71);
}
inline Values normal_table(const EmbeddingProblem& p) {
  return tile::normal(p.table_positions * p.dim, p.type, 72);
}

/// `count` ids in [lo, hi], in no order.
inline Ids random_ids(std::int64_t count, std::int64_t lo, std::int64_t hi) {
  Ids ids;
  for (const double id : tile::integers(count, DType::fp32, 73, lo, hi)) {
    ids.push_back(static_cast<int>(id));
  }
  return ids;
}

inline std::string describe(const EmbeddingCase& c) {
  std::string text(tile::name(c.p.type));
  for (const auto& [name, n] : {std::pair{"batch", c.p.batch},
                                {"length", c.p.length},
                                {"dim", c.p.dim},
                                {"table_positions", c.p.table_positions},
                                {"first_position", c.p.first_position},
                                {"offset of the tokens", c.offset.tokens},
                                {"of the table", c.offset.table},
                                {"of y", c.offset.y},
                                {"of the ids", c.offset.ids}}) {
    text.append(", ").append(name).append(" ").append(std::to_string(n));
  }
  return text + (c.ids.empty() ? "" : ", ids") + (c.in_place ? ", in place" : "") +
         (c.has_x ? "" : ", without x");
}

inline void check_values(const char* name, const Values& got, const tile::Expected& expected) {
  const Comparison comparison = tile::compare(name, got, expected);
  CHECK_MESSAGE(comparison.ok(), comparison.message);
}

inline void check_intact(std::initializer_list<const DeviceBuffer*> buffers) {
  for (const DeviceBuffer* buffer : buffers) {
    const Status intact = buffer->check();
    CHECK_MESSAGE(intact.ok(), intact.message);
  }
}

/// The ids in device memory; none are a null pointer.
class IdsBuffer {
 public:
  explicit IdsBuffer(const EmbeddingCase& c) {
    Values floats(static_cast<std::size_t>(c.offset.ids), 0.0);
    for (const int id : c.ids) floats.push_back(std::bit_cast<float>(id));
    if (c.ids.empty()) return;
    buffer_ = DeviceBuffer::input(
        "positions", tile::vector_layout(DType::fp32, std::ssize(c.ids), c.offset.ids),
        std::span(floats).subspan(static_cast<std::size_t>(c.offset.ids)));
  }
  const int* raw() const { return buffer_ ? static_cast<const int*>(buffer_->raw()) : nullptr; }
  void check() const {
    if (buffer_) check_intact({&*buffer_});
  }

 private:
  std::optional<DeviceBuffer> buffer_;
};

inline DeviceBuffer input_of(const char* name, DType type, const Values& values,
                             std::int64_t offset) {
  return DeviceBuffer::input(name, tile::vector_layout(type, std::ssize(values), offset), values);
}

/// Runs the step and gives y. Checks all buffers.
inline Values run(const ForwardStep& step, const EmbeddingCase& c, const Values& x,
                  const Values& table, Poison poison = Poison::unwritten_nan) {
  const auto layout = [&](std::int64_t offset) {
    return tile::vector_layout(c.p.type, std::ssize(x), offset);
  };
  const DeviceBuffer y = c.in_place ? DeviceBuffer::in_out("y", layout(c.offset.tokens), x)
                                    : DeviceBuffer::output("y", layout(c.offset.y), poison);
  const DeviceBuffer in = input_of("x", c.p.type, x, c.offset.tokens);
  const DeviceBuffer rows = input_of("table", c.p.type, table, c.offset.table);
  const IdsBuffer ids(c);
  const void* from = !c.has_x ? nullptr : c.in_place ? y.raw() : in.raw();
  const Status done = tile::run_step(step, c.p, {from, rows.raw(), y.raw(), ids.raw()});
  REQUIRE_MESSAGE(done.ok(), done.message);
  check_intact({&y, &in, &rows});
  ids.check();
  return y.download();
}

struct Gradient {
  Values values;
  std::vector<std::byte> bytes;
};
/// Runs the step and gives dtable. Checks all buffers. The workspace holds the same poison.
inline Gradient run(const BackwardStep& step, const EmbeddingCase& c, const Values& dy,
                    Poison poison = Poison::unwritten_nan) {
  const std::int64_t of_table = c.p.table_positions * c.p.dim;
  const DeviceBuffer in = input_of("dy", c.p.type, dy, c.offset.tokens);
  const DeviceBuffer dtable = DeviceBuffer::output(
      "dtable", tile::vector_layout(c.p.type, of_table, c.offset.table), poison);
  const DeviceBuffer workspace =
      DeviceBuffer::output("workspace", tile::vector_layout(DType::fp32, of_table), poison);
  const IdsBuffer ids(c);
  const Status done =
      tile::run_step(step, c.p, {in.raw(), dtable.raw(), ids.raw(), workspace.raw()});
  REQUIRE_MESSAGE(done.ok(), done.message);
  check_intact({&in, &dtable, &workspace});
  ids.check();
  return {dtable.download(), dtable.download_bytes()};
}

/// Runs the step with poison in its output, and compares what it wrote.
inline void check_step(const ForwardStep& step, const EmbeddingCase& c, const Values& x,
                       const Values& table) {
  CAPTURE(step.name);
  CAPTURE(describe(c));
  const tile::Expected expected = reference(c.p, c.has_x ? x : Values{}, table, c.ids);
  for (const Poison poison : tile::poisons_for({&expected})) {
    check_values("y", run(step, c, x, table, poison), expected);
    if (c.in_place) break;  // there is no poison
  }
}
inline void check_step(const ForwardStep& step, const EmbeddingCase& c) {
  check_step(step, c, normal_tokens(c.p), normal_table(c.p));
}
inline void check_step(const BackwardStep& step, const EmbeddingCase& c, const Values& dy) {
  CAPTURE(step.name);
  CAPTURE(describe(c));
  const tile::Expected expected = backward_reference(c.p, dy, c.ids);
  for (const Poison poison : tile::poisons_for({&expected})) {
    check_values("dtable", run(step, c, dy, poison).values, expected);
  }
}
inline void check_step(const BackwardStep& step, const EmbeddingCase& c) {
  check_step(step, c, normal_tokens(c.p));
}

/// Calls check(step, type) for the steps of both passes.
template <class Check>
void for_each_embedding_step(Check check, tile::OwnKernel own = tile::OwnKernel::must_run,
                             tile::Types types = tile::Types::in_turn) {
  tile::for_each_step(kEmbeddingLadder, check, own, types);
  tile::for_each_step(kEmbeddingBackwardLadder, check, own, types);
}

}  // namespace rope::embedding
