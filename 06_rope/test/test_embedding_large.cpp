// Chapter 06's tests: position embeddings of more than 2^31 elements, of the tokens or of the
// table.
#include <cuda_runtime_api.h>

#include "embedding_support.hpp"

namespace rope::embedding {
namespace {

using tile::GuardedMemory;
using Rows = std::vector<std::int64_t>;

constexpr DType kType = DType::bf16;
constexpr std::int64_t kDim = 1024, kMany = (std::int64_t{1} << 21) + 3;
// The first, those on both sides of element 2^31, and the last.
const Rows kRowsLookedAt{0, kMany - 4, kMany - 3, kMany - 1};

/// Whether there is room for two tensors of bf16 and one of fp32, each with kMany rows.
bool has_room() {
  if (tile::device().simulated) return tile::skip("needs 16 GiB"), false;
  std::size_t free_bytes = 0, total_bytes = 0;
  REQUIRE(cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess);
  if (free_bytes >> 30 >= 18) return true;
  return tile::skip("needs 18 GiB of device memory"), false;
}

/// Rows of zeros, but for those of these numbers.
GuardedMemory zeros_but(const char* name, std::int64_t rows, const Rows& numbers,
                        const Values& values) {
  GuardedMemory memory(name, tile::matrix_layout(kType, rows, kDim, kDim));
  constexpr std::size_t kRowBytes = 2 * kDim;
  REQUIRE(cudaMemset(memory.raw(), 0, static_cast<std::size_t>(rows) * kRowBytes) == cudaSuccess);
  const std::vector<std::byte> bytes = tile::from_double(values, kType);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    auto* to =
        static_cast<std::byte*>(memory.raw()) + static_cast<std::size_t>(numbers[i]) * kRowBytes;
    REQUIRE(cudaMemcpy(to, bytes.data() + i * kRowBytes, kRowBytes, cudaMemcpyHostToDevice) ==
            cudaSuccess);
  }
  return memory;
}

/// Compares the rows looked at.
void check_rows(const GuardedMemory& memory, const tile::Expected& expected) {
  const Status intact = memory.check_guards();
  CHECK_MESSAGE(intact.ok(), intact.message);
  check_values(memory.name().c_str(), memory.rows(kRowsLookedAt), expected);
}

/// The rows looked at as tokens of one text, at these ids of a table.
EmbeddingProblem looked_at(std::int64_t table_positions) {
  return {kType, 1, std::ssize(kRowsLookedAt), kDim, table_positions};
}

}  // namespace

TEST_SUITE("large") {
  TEST_CASE("embedding: two million tokens at one position") {
    if (!has_room()) return;
    const EmbeddingProblem p{kType, kMany, 1, kDim, 1};
    const Ids ids(kRowsLookedAt.size(), 0);
    const Values rows = normal_tokens(looked_at(1)), table = normal_table(p);
    for (const ForwardStep& step : tile::selected_steps(kEmbeddingLadder)) {
      CAPTURE(step.name);
      const GuardedMemory x = zeros_but("x", kMany, kRowsLookedAt, rows);
      const DeviceBuffer of_table = input_of("table", kType, table, 0);
      const Status done = tile::run_step(step, p, {x.raw(), of_table.raw(), x.raw(), nullptr});
      REQUIRE_MESSAGE(done.ok(), done.message);
      check_rows(x, reference(looked_at(1), rows, table, ids));
    }
    for (const BackwardStep& step : tile::selected_steps(kEmbeddingBackwardLadder)) {
      CAPTURE(step.name);
      const GuardedMemory dy = zeros_but("dy", kMany, kRowsLookedAt, rows);
      const tile::Layout layout = tile::vector_layout(kType, kDim);
      const DeviceBuffer dtable = DeviceBuffer::output("dtable", layout, Poison::unwritten_nan);
      const GuardedMemory sums("workspace", tile::vector_layout(DType::fp32, kDim));
      const Status done = tile::run_step(step, p, {dy.raw(), dtable.raw(), nullptr, sums.raw()});
      REQUIRE_MESSAGE(done.ok(), done.message);
      check_values("dtable", dtable.download(), backward_reference(looked_at(1), rows, ids));
    }
  }

  TEST_CASE("embedding: a table of two million positions") {
    if (!has_room()) return;
    EmbeddingCase c{looked_at(kMany)};
    for (const std::int64_t row : kRowsLookedAt) c.ids.push_back(static_cast<int>(row));
    const IdsBuffer ids(c);
    // As a table of the rows looked at alone.
    const EmbeddingProblem few = looked_at(std::ssize(kRowsLookedAt));
    const Values tokens = normal_tokens(few), rows = normal_table(few);
    const DeviceBuffer in = input_of("x or dy", kType, tokens, 0);
    for (const ForwardStep& step : tile::selected_steps(kEmbeddingLadder)) {
      CAPTURE(step.name);
      const GuardedMemory table = zeros_but("table", kMany, kRowsLookedAt, rows);
      const DeviceBuffer y = DeviceBuffer::output(
          "y", tile::vector_layout(kType, std::ssize(tokens)), Poison::unwritten_nan);
      const Status done = tile::run_step(step, c.p, {in.raw(), table.raw(), y.raw(), ids.raw()});
      REQUIRE_MESSAGE(done.ok(), done.message);
      check_values("y", y.download(), reference(few, tokens, rows));
    }
    for (const BackwardStep& step : tile::selected_steps(kEmbeddingBackwardLadder)) {
      CAPTURE(step.name);
      GuardedMemory dtable("dtable", tile::matrix_layout(kType, kMany, kDim, kDim));
      GuardedMemory sums("workspace", tile::matrix_layout(DType::fp32, kMany, kDim, kDim));
      const Status done =
          tile::run_step(step, c.p, {in.raw(), dtable.raw(), ids.raw(), sums.raw()});
      REQUIRE_MESSAGE(done.ok(), done.message);
      check_rows(dtable, backward_reference(few, tokens));
      const Rows between{1, kMany / 2, kMany - 2};  // where there is no token
      CHECK(dtable.rows(between) == Values(3 * kDim, 0.0));
    }
  }
}

}  // namespace rope::embedding
