// The position embeddings by the C interface, called as a C program calls it.
#include <cmath>

#include "06_rope/embedding/reference.hpp"
#include "harness/c/test_support.hpp"

namespace embedding_test {
namespace {

using rope::EmbeddingProblem;

constexpr std::int64_t kBatch = 2, kLength = 7, kTokens = kBatch * kLength, kTablePositions = 12;

struct Case {
  std::int64_t dim, first_position;
  bool positions;
};
constexpr Case kCases[] = {{64, 0, false}, {24, 5, false}, {5, 0, true}};
const std::vector<int> kPositions{3, 1, 4, 1, 5,  11, 2,
                                  6, 5, 3, 5, 12, 9,  -7};  // two are not in the table

EmbeddingProblem problem_of(const Case& c, DType type) {
  return {type, kBatch, kLength, c.dim, kTablePositions, c.first_position};
}

template <class Args>
Args sizes(const Case& c, tile_type type) {
  Args args{};
  args.struct_size = sizeof args;
  args.type = type;
  args.batch = kBatch, args.length = kLength, args.dim = c.dim;
  args.table_positions = kTablePositions, args.first_position = c.first_position;
  return args;
}

struct Inputs {
  Values tokens, table;
  std::vector<int> positions;

  Inputs(const Case& c, DType type)
      : tokens(tile::normal(kTokens * c.dim, type, 1)),
        table(tile::normal(kTablePositions * c.dim, type, 2)) {
    if (c.positions) positions = kPositions;
  }
  tile::Expected y(const Case& c, DType type) const {
    return rope::reference(problem_of(c, type), tokens, table, positions);
  }
  tile::Expected dtable(const Case& c, DType type) const {
    return rope::backward_reference(problem_of(c, type), tokens, positions);
  }
};

Memory place(const Case& c, DType type, const Inputs& in, tile_embedding_args* args) {
  Memory memory;
  args->x = memory.input("x", type, kTokens, c.dim, in.tokens);
  args->table = memory.input("table", type, kTablePositions, c.dim, in.table);
  args->y = memory.output("y", type, kTokens, c.dim, c.dim, in.y(c, type));
  args->positions = memory.integers("positions", in.positions);
  return memory;
}
Memory place(const Case& c, DType type, const Inputs& in, tile_embedding_backward_args* args) {
  Memory memory;
  args->dy = memory.input("dy", type, kTokens, c.dim, in.tokens);
  args->dtable = memory.output("dtable", type, kTablePositions, c.dim, c.dim, in.dtable(c, type));
  args->positions = memory.integers("positions", in.positions);
  args->workspace = memory.scratch(rope::sums_bytes(problem_of(c, type)));
  return memory;
}

tile_status call(const tile_embedding_args& args) { return tile_embedding(&args); }
tile_status call(const tile_embedding_backward_args& args) {
  return tile_embedding_backward(&args);
}

// Every step by its name in each type, and the best without one. `best` runs rows of whole chunks.
template <class Args, class Ladder>
void check_steps(const Ladder& ladder, const std::string& best, const std::string& without_chunks) {
  for (const Case& c : kCases) {
    for (std::size_t t = 0; t < std::size(kTypes); ++t) {
      const DType type = tile::kDTypes[t];
      Args args = sizes<Args>(c, kTypes[t]);
      if (!rope::kTypes.contains(type)) {
        check_refused(call(args), TILE_UNSUPPORTED, "type");
        continue;
      }
      const Inputs in(c, type);
      for (std::size_t i = 0; i <= ladder.steps.size(); ++i) {
        const std::string name(i < ladder.steps.size() ? ladder.steps[i].name : best);
        CAPTURE(name);
        CAPTURE(&c - kCases);
        const Memory memory = place(c, type, in, &args);
        args.step = i < ladder.steps.size() ? name.c_str() : nullptr;
        check_ok(call(args));
        memory.check();
        const bool in_chunks = c.dim % 8 == 0;
        CHECK(std::string(tile_last_step()) ==
              (name == best && !in_chunks ? without_chunks : name));
      }
    }
  }
}

void check_same(const Values& got, const Values& wanted) {
  REQUIRE(got.size() == wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    CHECK((got[i] == wanted[i] || (std::isnan(got[i]) && std::isnan(wanted[i]))));
  }
}

}  // namespace

TEST_CASE("embedding: every step by its name, in each type, and the best without one") {
  check_steps<tile_embedding_args>(rope::kEmbeddingLadder, "vectors", "elements");
  check_steps<tile_embedding_backward_args>(rope::kEmbeddingBackwardLadder, "by_position",
                                            "by_position");
}

TEST_CASE("embedding: the references take doubles of the host") {
  for (const Case& c : kCases) {
    const Inputs in(c, DType::fp64);
    const int* positions = in.positions.empty() ? nullptr : in.positions.data();
    auto forward = sizes<tile_embedding_args>(c, TILE_FP64);
    Values y(in.tokens.size(), 7);
    forward.x = in.tokens.data(), forward.table = in.table.data(), forward.y = y.data();
    forward.positions = positions;
    check_ok(tile_embedding_reference(&forward));
    check_same(y, in.y(c, DType::fp64).value);
    forward.x = nullptr;
    check_ok(tile_embedding_reference(&forward));
    check_same(y, rope::reference(problem_of(c, DType::fp64), {}, in.table, in.positions).value);
    auto backward = sizes<tile_embedding_backward_args>(c, TILE_FP64);
    Values dtable(in.table.size(), 7);
    backward.dy = in.tokens.data(), backward.dtable = dtable.data();
    backward.positions = positions;
    check_ok(tile_embedding_backward_reference(&backward));
    check_same(dtable, in.dtable(c, DType::fp64).value);
    backward.type = TILE_FP32;
    check_refused(tile_embedding_backward_reference(&backward), TILE_UNSUPPORTED, "type");
  }
}

TEST_CASE("embedding: what is wrong is named, and nothing is touched") {
  const Case& c = kCases[0];
  const Inputs in(c, DType::bf16);
  const auto refuses = [](auto good, const char* argument, auto change,
                          tile_status wanted = TILE_INVALID_ARGUMENT) {
    change(&good);
    check_refused(call(good), wanted, argument);
  };
  auto forward = sizes<tile_embedding_args>(c, TILE_BF16);
  auto backward = sizes<tile_embedding_backward_args>(c, TILE_BF16);
  const Memory memory = place(c, DType::bf16, in, &forward);
  const Memory backward_memory = place(c, DType::bf16, in, &backward);
  const auto refuse_both = [&](const char* argument, auto change) {
    refuses(forward, argument, change);
    refuses(backward, argument, change);
  };
  refuse_both("struct_size", [](auto* a) { a->struct_size -= 1; });
  refuse_both("type", [](auto* a) { a->type = 0; });
  refuse_both("step", [](auto* a) { a->step = "mma"; });
  refuse_both("length", [](auto* a) { a->length = -1; });
  refuse_both("table_positions", [](auto* a) { a->first_position = 6; });
  refuses(forward, "table", [](tile_embedding_args* a) { a->table = nullptr; });
  refuses(forward, "y", [](tile_embedding_args* a) { a->y = const_cast<void*>(a->table); });
  refuses(backward, "dtable", [](tile_embedding_backward_args* a) { a->dtable = nullptr; });
  refuses(
      backward, "workspace",
      [](tile_embedding_backward_args* a) { a->step = "atomics", a->workspace = nullptr; },
      TILE_UNSUPPORTED);
  refuses(forward, "step", [](tile_embedding_args* a) { a->step = "atomics"; });  // of the other
  memory.check_untouched();
  backward_memory.check_untouched();
}

}  // namespace embedding_test
