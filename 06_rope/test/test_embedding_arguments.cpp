// Chapter 06's tests: what the position embeddings refuse, by name, and what they take just beside
// it.
#include <functional>

#include "embedding_support.hpp"

namespace rope::embedding {
namespace {

template <class T>
T* moved(T* pointer, std::int64_t bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<std::intptr_t>(pointer) + bytes);
}

/// Valid calls, of both passes: the memory of the tensors follows one another without gaps. What is
/// here is not read: validate() does not look, and nothing is launched.
struct Calls {
  EmbeddingProblem p{DType::bf16, 2, 5, 16, 8};
  EmbeddingBuffers forward = {};
  EmbeddingBackwardBuffers backward = {};
  Calls() {
    std::uintptr_t next = 4096;
    const auto place = [&next](std::int64_t bytes) {
      const std::uintptr_t here = next;
      next += static_cast<std::uintptr_t>(bytes);
      return reinterpret_cast<void*>(here);
    };
    forward.x = backward.dy = place(2 * 5 * 16 * 2);
    forward.y = place(2 * 5 * 16 * 2);
    forward.table = backward.dtable = place(8 * 16 * 2);
    backward.workspace = place(8 * 16 * 4);
    forward.positions = backward.positions = static_cast<const int*>(place(2 * 5 * 4));
  }
};

struct Row {
  const char* refused;  // the argument's name; null: it is accepted
  std::function<void(Calls&)> change;
  tile::Code code = tile::Code::invalid_argument;
};

void check(const Row& row, std::ptrdiff_t number, const Status& status) {
  CAPTURE(number);
  if (!row.refused) {
    CHECK_MESSAGE(status.ok(), status.message);
    return;
  }
  CAPTURE(row.refused);
  CHECK(status.code == row.code);
  const bool is_named = status.message.rfind(std::string(row.refused) + ": ", 0) == 0;
  CHECK_MESSAGE(is_named, status.message);
}

/// Rows for what both passes have.
std::vector<Row> of_both() {
  std::vector<Row> rows{{nullptr, [](Calls&) {}}};
  for (const auto& [name, extent] : {std::pair{"batch", &EmbeddingProblem::batch},
                                     {"length", &EmbeddingProblem::length},
                                     {"dim", &EmbeddingProblem::dim},
                                     {"table_positions", &EmbeddingProblem::table_positions},
                                     {"first_position", &EmbeddingProblem::first_position}}) {
    rows.push_back({name, [extent = extent](Calls& c) { c.p.*extent = -1; }});
    for (const std::int64_t large : {INT64_MAX, (std::int64_t{1} << 29) + 1}) {
      rows.push_back({name, [large, extent = extent](Calls& c) { c.p.*extent = large; },
                      tile::Code::unsupported});
    }
  }
  const auto count = [](Calls& c) { c.forward.positions = c.backward.positions = nullptr; };
  rows.insert(
      rows.end(),
      {{"type", [](Calls& c) { c.p.type = DType::fp64; }, tile::Code::unsupported},
       {"type", [](Calls& c) { c.p.type = static_cast<DType>(99); }, tile::Code::unsupported},
       {nullptr, [=](Calls& c) { count(c), c.p.first_position = 3; }},  // the last one is 7
       {"table_positions", [=](Calls& c) { count(c), c.p.first_position = 4; }},
       {nullptr, [](Calls& c) { c.p.first_position = 1 << 29; }},  // there are ids
       {nullptr, [=](Calls& c) { count(c), c.p.length = 0, c.p.first_position = 100; }},
       {"positions",
        [](Calls& c) {
          c.forward.positions = c.backward.positions = moved(c.forward.positions, 2);
        }},
       {nullptr, [](Calls& c) {
          c.p.dim = 0;
          c.forward = {};
          c.backward = {};
        }}});
  return rows;
}

}  // namespace

TEST_SUITE("chapter") {
  TEST_CASE("embedding: arguments of the forward pass") {
    std::vector<Row> rows = of_both();
    rows.insert(rows.end(),
                {{nullptr, [](Calls& c) { c.forward.x = nullptr; }},
                 {"table", [](Calls& c) { c.forward.table = nullptr; }},
                 {"y", [](Calls& c) { c.forward.y = nullptr; }},
                 {"x", [](Calls& c) { c.forward.x = moved(c.forward.x, 1); }},
                 {"table", [](Calls& c) { c.forward.table = moved(c.forward.table, 1); }},
                 {"y", [](Calls& c) { c.forward.y = moved(c.forward.y, 1); }},
                 // Neighbours touch. One element more, and they overlap.
                 {"y", [](Calls& c) { c.forward.y = moved(c.forward.y, -2); }},
                 {"y", [](Calls& c) { c.forward.y = moved(c.forward.y, 2); }},
                 {"y", [](Calls& c) { c.forward.y = const_cast<void*>(c.forward.table); }},
                 {"y", [](Calls& c) { c.forward.y = const_cast<int*>(c.forward.positions); }},
                 {nullptr, [](Calls& c) { c.forward.y = const_cast<void*>(c.forward.x); }},
                 // No token has a position in the table, so it may be null.
                 {nullptr, [](Calls& c) { c.p.table_positions = 0, c.forward.table = nullptr; }},
                 {nullptr, [](Calls& c) { c.p.batch = 0, c.forward = {}; }}});
    for (const Row& row : rows) {
      Calls calls;
      row.change(calls);
      check(row, &row - rows.data(), validate(calls.p, calls.forward));
    }
  }

  TEST_CASE("embedding backward: arguments") {
    std::vector<Row> rows = of_both();
    rows.insert(
        rows.end(),
        {{"dy", [](Calls& c) { c.backward.dy = nullptr; }},
         {"dtable", [](Calls& c) { c.backward.dtable = nullptr; }},
         {"dy", [](Calls& c) { c.backward.dy = moved(c.backward.dy, 1); }},
         {"dtable", [](Calls& c) { c.backward.dtable = moved(c.backward.dtable, 1); }},
         {"workspace", [](Calls& c) { c.backward.workspace = moved(c.backward.workspace, 4); }},
         {nullptr, [](Calls& c) { c.backward.workspace = nullptr; }},  // by_position runs without
         {"workspace", [](Calls& c) { c.backward.workspace = moved(c.backward.workspace, 16); }},
         {"workspace", [](Calls& c) { c.backward.workspace = moved(c.backward.workspace, -16); }},
         {"dtable", [](Calls& c) { c.backward.dtable = const_cast<void*>(c.backward.dy); }},
         {"dtable", [](Calls& c) { c.backward.dtable = const_cast<int*>(c.backward.positions); }},
         // Without tokens there is no dy, but a gradient of zeros; without a table there is none.
         {nullptr, [](Calls& c) { c.p.batch = 0, c.backward.dy = c.backward.positions = nullptr; }},
         {"dtable", [](Calls& c) { c.p.batch = 0, c.backward.dtable = nullptr; }},
         {nullptr, [](Calls& c) { c.p.table_positions = 0, c.backward.dtable = nullptr; }}});
    for (const Row& row : rows) {
      Calls calls;
      row.change(calls);
      check(row, &row - rows.data(), validate(calls.p, calls.backward));
    }
  }
}

TEST_SUITE("launch") {
  TEST_CASE("embedding: the stream given, and a launch that fails is reported") {
    // A stream that does not exist shows both.
    if (!tile::device().simulated) return tile::skip("a GPU's driver may crash on such a stream");
    const auto check = [](const auto& step, DType type, auto buffers_of) {
      CAPTURE(step.name);
      const EmbeddingProblem p{type, 1, 2, 16, 2};
      const tile::Layout layout = tile::vector_layout(type, 32);
      const DeviceBuffer in = DeviceBuffer::input("in", layout, Values(32, 0.5));
      const DeviceBuffer out = DeviceBuffer::output("out", layout, Poison::unwritten_nan);
      const DeviceBuffer workspace = DeviceBuffer::output(
          "workspace", tile::vector_layout(DType::fp32, 32), Poison::unwritten_nan);
      int no_stream = 0;
      const Status status = run(*step.ladder, step.number, p,
                                buffers_of(in.raw(), out.raw(), workspace.raw()), &no_stream);
      CHECK(status.code == tile::Code::device_error);
      const bool named = status.message.find("cudaErrorInvalidResourceHandle") != std::string::npos;
      CHECK_MESSAGE(named, status.message);
      for (const DeviceBuffer* each : {&out, &workspace}) {
        const Status untouched = each->check_unchanged();
        CHECK_MESSAGE(untouched.ok(), untouched.message);
      }
    };
    tile::for_each_step(
        kEmbeddingLadder,
        [&](const ForwardStep& step, DType type) {
          check(step, type, [](const void* in, void* out, void*) {
            return EmbeddingBuffers{in, in, out, nullptr};
          });
        },
        need_not_run);
    tile::for_each_step(
        kEmbeddingBackwardLadder,
        [&](const BackwardStep& step, DType type) {
          check(step, type, [](const void* in, void* out, void* workspace) {
            return EmbeddingBackwardBuffers{in, out, nullptr, workspace};
          });
        },
        need_not_run);
  }
}

}  // namespace rope::embedding
