// Checks exercise 06.1. Not part of the task.
// Shipped: turned half-split pairs, and the second
#include "rotary/reference.hpp"
#include "test/exercises/checks.hpp"

using namespace rope;

namespace {

struct Task {
  Turned turned;
  Values x;

  Task(std::int64_t count, std::int64_t heads, std::int64_t head_dim, std::int64_t rotary_dim)
      : turned{count, heads, head_dim, rotary_dim} {
    turned.place();
    x = tile::normal(count * heads * head_dim, DType::fp32, 1);
  }

  Expected right() const {
    RotaryProblem p{.type = DType::fp32,
                    .batch = 1,
                    .length = turned.count,
                    .heads = turned.heads,
                    .kv_heads = 0,
                    .head_dim = turned.head_dim,
                    .rotary_dim = turned.rotary_dim,
                    .layout = Layout::interleaved};
    p.table_positions = Turned::kPositions;
    return reference(p, x, turned.heads, paper_frequencies(turned.rotary_dim), turned.position);
  }

  enum class Second { old_x, new_x, no_swap };
  struct Way {
    Layout layout = Layout::interleaved;
    Second second = Second::old_x;
    double sign = 1;
    bool by_token = false;      // the token's number in place of its position
    std::size_t width = 0;      // of a row of the tables; 0: rotary_dim / 2
    std::size_t pair_step = 1;  // from a pair's column to the next
  };
  /// What comes out if the rows are turned in that way. A wrong result has larger errors.
  Expected if_turned(const Way& way) const {
    Expected expected = right();
    Values& v = expected.value;
    v = x;
    const TestTables tables = turned.tables();
    const std::size_t pairs = turned.pairs(), dim = static_cast<std::size_t>(turned.head_dim);
    for (std::size_t row = 0; row < x.size() / dim; ++row) {
      const std::size_t token = row / static_cast<std::size_t>(turned.heads);
      const std::size_t position =
          way.by_token ? token : static_cast<std::size_t>(turned.position[token]);
      for (std::size_t i = 0; i < pairs; ++i) {
        const std::size_t entry = position * (way.width ? way.width : pairs) + i * way.pair_step;
        if (entry >= tables.cos.size()) continue;  // it has read outside, and something else
        const bool half = way.layout == Layout::half_split;
        const std::size_t a = row * dim + (half ? i : 2 * i), b = half ? a + pairs : a + 1;
        const double c = tables.cos[entry], s = way.sign * tables.sin[entry];
        v[a] = way.second == Second::no_swap ? x[a] * c + x[a] * s : x[a] * c - x[b] * s;
        v[b] = way.second == Second::no_swap ? x[b] * c - x[b] * s
               : way.second == Second::new_x ? x[b] * c + v[a] * s
                                             : x[b] * c + x[a] * s;
      }
    }
    for (std::size_t i = 0; i < v.size(); ++i) {
      expected.bound[i] = 4 * expected.bound[i] + 16 * kUnit * (1 + std::abs(v[i]));
    }
    return expected;
  }
};

std::string explain(const Task& t, const Values& got) {
  using Second = Task::Second;
  const tile::Mistake mistakes[] = {
      {"these are turned half-split pairs, and the second element of each was computed with the "
       "new first one",
       t.if_turned({.layout = Layout::half_split, .second = Second::new_x})},
      {"these are turned half-split pairs: here neighbours are one",
       t.if_turned({.layout = Layout::half_split})},
      {"the second element of each pair was computed with the new first one: both need the old "
       "ones",
       t.if_turned({.second = Second::new_x})},
      {"each element meets itself and not its partner, so nothing turns: lengths change",
       t.if_turned({.second = Second::no_swap})},
      {"the rows are turned the other way: the sines have the wrong sign",
       t.if_turned({.sign = -1})},
      {"the token's number was taken for its position", t.if_turned({.by_token = true})},
      {"each pair has the angle of another one: column i of the tables is pair i's",
       t.if_turned({.pair_step = 2})},
      {"nothing has changed at all",
       [&] {
         Expected expected = t.right();
         expected.value = t.x;
         return expected;
       }()},
  };
  if (std::string found = tile::explain_mistake(got, mistakes); !found.empty()) return found;
  const Expected right = t.right();
  const std::size_t dim = static_cast<std::size_t>(t.turned.head_dim);
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (tile::matches(got[i], right.value[i], right.bound[i])) continue;
    if (i % dim >= static_cast<std::size_t>(t.turned.rotary_dim)) {
      return "\nHint: an element from rotary_dim on has changed. How many pairs has a row?";
    }
    break;
  }
  return {};
}

void check(const Task& t) {
  INFO(t.turned.text());
  const Turned::OnDevice device = t.turned.on_device();
  const DeviceBuffer x =
      DeviceBuffer::in_out("x", tile::vector_layout(DType::fp32, std::ssize(t.x)), t.x);
  tile::run_answer([&] { return turn_in_place(t.turned.tokens(device), floats(x)); },
                   std::array{&x, &device.cos, &device.sin, &device.position},
                   "\nHint: how many columns have the tables, and which row is the token's?");
  const Values got = x.download();
  tile::require_right("x", got, t.right(), [&] { return explain(t, got); });
}

}  // namespace

TEST_CASE("06.1 neighbours, in place") {
  check(Task(3, 1, 8, 8));   // whole rows, one head
  check(Task(5, 3, 12, 8));  // a part of each
  check(Task(2, 2, 64, 64));
  check(Task(40, 3, 34, 18));
  check(Task(70, 5, 2, 2));  // a single pair, and more threads than a block has
  check(Task(33, 4, 128, 64));
  check(Task(3, 2, 5, 4));  // an odd row
  check(Task(3, 2, 5, 0));  // nothing turns
}
